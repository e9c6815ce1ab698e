"""The ledgers that workflows are projected into: one of the process that works on them, and one that is shared."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from tests.support.temporal import binary

MOST_EVENTS = 40
"""Then the server suggests to continue as new; 4,096 unless told otherwise."""


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("emptied_postgres_url"))
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
async def narrow() -> AsyncIterator[str]:
    """A server that finds histories large very soon."""
    suggests = f"limit.historyCount.suggestContinueAsNew={MOST_EVENTS}"
    server = await WorkflowEnvironment.start_local(
        dev_server_existing_path=binary(), dev_server_extra_args=["--dynamic-config-value", suggests]
    )
    async with server:
        yield server.client.service_client.config.target_host
