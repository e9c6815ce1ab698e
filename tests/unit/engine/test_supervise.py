"""A loop that must not die says what it met: a page for a fault of ours, a line for an outage of others."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.engine.supervise import supervised
from lucius.ports.errors import BusDown, LedgerDown


@pytest.mark.parametrize(
    ("failure", "level"), [(LedgerDown("away"), "warning"), (BusDown("away"), "warning"), (KeyError("x"), "error")]
)
async def test_an_outage_is_a_line_and_a_fault_is_a_page(failure: Exception, level: str) -> None:
    again = asyncio.Event()
    turns = iter([failure])

    async def turn() -> None:
        for meets in turns:
            raise meets
        again.set()
        await asyncio.Event().wait()

    failed: list[str] = []
    with capture_logs() as logs:
        loop = asyncio.create_task(supervised("relay", turn, failed.append))
        async with asyncio.timeout(5):
            await again.wait()
        loop.cancel()
    said: dict[str, Any] = dict(logs[0])
    assert (said["log_level"], said["loop"]) == (level, "relay")
    assert bool(said.get("exc_info")) == (level == "error")
    assert failed == ["relay"]
