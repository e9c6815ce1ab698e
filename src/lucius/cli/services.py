"""The shipped platform services, by name, in this process."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from lucius.cli.connection import Connection
from lucius.cli.errors import Misused
from lucius.services import SERVICES
from lucius.services.run import run_services
from lucius.worker import Output, PlatformService, Task

SLICES = 10


class Slowed(PlatformService):
    """A service that takes its time: what demos and tests of failures need something to be cut short in."""

    def __init__(self, inner: PlatformService, seconds: float) -> None:
        self.service = inner.service
        self._inner = inner
        self._slice = seconds / SLICES

    async def execute(self, task: Task) -> Output:
        for done in range(SLICES):
            task.progress(done / SLICES)
            await asyncio.sleep(self._slice)
            task.raise_if_cancelled()
        return await self._inner.execute(task)


async def run_named(
    names: Sequence[str],
    to: Connection,
    *,
    concurrency: int,
    data_dir: Path | None,
    health_port: int | None,
    grace: float,
    delay: float,
) -> None:
    await run_services(
        [_slowed(name, delay) for name in dict.fromkeys(names)],
        to.url,
        to.api_key,
        concurrency=concurrency,
        data_dir=data_dir,
        health_port=health_port,
        grace=grace,
    )


def _slowed(name: str, delay: float) -> PlatformService:
    kind = SERVICES.get(name)
    if kind is None:
        raise Misused(f"there is no service {name!r}; shipped: {', '.join(SERVICES)}")
    service = kind(demo_inputs=os.environ.get("LUCIUS_DEMO_INPUTS") == "1")
    return Slowed(service, delay) if delay > 0 else service
