"""Observing other processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while being read
        return False


async def seen(condition: Callable[[], Any]) -> Any:
    """Return the condition's value once it is truthy; sleep between checks, to leave the processor to others."""
    async with asyncio.timeout(30):
        while not (found := condition()):  # noqa: ASYNC110 - of another process, which sets no event of ours
            await asyncio.sleep(0.005)
    return found


async def written(path: Path) -> str:
    """Return the text that a step writes once it has got that far."""
    return str(await seen(lambda: path.exists() and path.read_text()))
