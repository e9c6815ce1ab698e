"""A read-only server, such as after a failover, counts as down."""

import asyncio
from collections.abc import Iterator

import pytest

from lucius.adapters.ledger.postgres import database
from lucius.adapters.ledger.postgres.store import PostgresStore, open_postgres
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


async def commit_until(store: PostgresStore, name: str, refused: bool) -> None:
    """Commit until it is refused, or not: the server's processes apply a setting one after the other."""
    async with asyncio.timeout(10):
        for number in range(10_000):
            job_id = f"{name}-{number}"
            try:
                await store.ledger.commit(dispatch(job_id, asked=command(job_id)))
            except LedgerDown:
                if refused:
                    return
            else:
                if not refused:
                    return
            await asyncio.sleep(0.01)


async def test_read_only_server_refuses_commits_and_is_not_ready_until_writable(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "READ_RETRY_SECONDS", 0.1)
    store = await open_postgres(server.url())
    try:
        await commit_until(store, "before", refused=False)
        make_read_only(server, "on")
        await commit_until(store, "meanwhile", refused=True)
        with pytest.raises(LedgerDown):  # so readiness reports that this process is not ready
            await store.ledger.due(0, 1)
        make_read_only(server, "off")
        await commit_until(store, "afterwards", refused=False)
    finally:
        await store.close()
