"""A supervised loop logs what it caught: an error for a bug in Lucius, a warning for an outage of another system."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.engine.supervisor import supervised
from lucius.ports.errors import BusDown, LedgerDown


@pytest.mark.parametrize(
    ("failure", "level"), [(LedgerDown("away"), "warning"), (BusDown("away"), "warning"), (KeyError("x"), "error")]
)
async def test_outage_is_logged_as_a_warning_and_a_bug_as_an_error(failure: Exception, level: str) -> None:
    again = asyncio.Event()
    turns = iter([failure])

    async def run_once() -> None:
        for meets in turns:
            raise meets
        again.set()
        await asyncio.Event().wait()

    failed: list[str] = []
    with capture_logs() as logs:
        loop = asyncio.create_task(supervised("relay", run_once, failed.append))
        async with asyncio.timeout(5):
            await again.wait()
        loop.cancel()
    said: dict[str, Any] = dict(logs[0])
    assert (said["log_level"], said["loop"]) == (level, "relay")
    assert bool(said.get("exc_info")) == (level == "error")
    assert failed == ["relay"]
