"""Looking at other processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end while we read
        return False


async def seen(condition: Callable[[], Any]) -> Any:
    """What it answers, once that is something. Leaves the processor to those that are waited for."""
    async with asyncio.timeout(30):
        while not (found := condition()):  # noqa: ASYNC110 - of another process, which sets no event of ours
            await asyncio.sleep(0.005)
    return found


async def written(path: Path) -> str:
    """What a step writes to say that it has got so far."""
    return str(await seen(lambda: path.exists() and path.read_text()))
