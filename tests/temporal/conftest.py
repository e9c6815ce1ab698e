"""Ledgers that workflows are projected into: one local to the worker's process, and one that is shared."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.support.fastpath import FASTPATH
from tests.support.temporal import binary

MAX_EVENTS = 40
"""Events after which the server suggests to continue as new; its default is 4,096."""


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("emptied_postgres_url"))
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(params=["on", "off"])
def each_fastpath(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with the shortcuts of the Temporal engine and without them."""
    monkeypatch.setenv(FASTPATH, request.param)
    return str(request.param)


@pytest.fixture
def fastpath_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with the shortcuts, even if the whole run is without them."""
    monkeypatch.setenv(FASTPATH, "on")


@pytest.fixture
def fastpath_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test by the plain route."""
    monkeypatch.setenv(FASTPATH, "off")


@pytest.fixture
async def short_history_server() -> AsyncIterator[str]:
    """Yield the address of a server that suggests to continue as new after `MAX_EVENTS` events."""
    suggests = f"limit.historyCount.suggestContinueAsNew={MAX_EVENTS}"
    server = await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary(), dev_server_extra_args=["--dynamic-config-value", suggests]
    )
    async with server:
        yield server.client.service_client.config.target_host
