"""A server that can be read and not written, as one is after a failover, is as good as away."""

import asyncio
from collections.abc import Iterator

import pytest

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.postgres import database
from lucius.ports.errors import LedgerDown
from tests.conformance.builders import command, dispatch
from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    need_postgres()
    own = PostgresServer().start()
    yield own
    own.remove()


def make_read_only(server: PostgresServer, setting: str) -> None:
    server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {setting}")
    server.execute("SELECT pg_reload_conf()")


async def commit_until(ledger: PostgresLedger, name: str, refused: bool) -> None:
    """Its processes hear of a setting one after the other."""
    async with asyncio.timeout(10):
        for number in range(10_000):
            job_id = f"{name}-{number}"
            try:
                await ledger.commit(dispatch(job_id, asked=command(job_id)))
            except LedgerDown:
                if refused:
                    return
            else:
                if not refused:
                    return
            await asyncio.sleep(0.01)


async def test_it_takes_no_commit_and_is_not_worth_reading_until_it_can_be_written(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.1)
    ledger = await PostgresLedger.open(server.url())
    try:
        await commit_until(ledger, "before", refused=False)
        make_read_only(server, "on")
        await commit_until(ledger, "meanwhile", refused=True)
        with pytest.raises(LedgerDown):  # so whoever asks is told that we are not ready
            await ledger.due(0, 1)
        make_read_only(server, "off")
        await commit_until(ledger, "afterwards", refused=False)
    finally:
        await ledger.close()
