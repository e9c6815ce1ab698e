"""Runs the background work of the Temporal engine in this process: maintenance loops and, if asked, a worker."""

import asyncio
from collections.abc import Awaitable, Callable

from lucius.engine.supervisor import supervised
from lucius.engine.temporal.inbox_redelivery import InboxRedelivery
from lucius.engine.temporal.worker import TemporalWorker
from lucius.engine.temporal.workflow_client import WorkflowClient
from lucius.engine.temporal.workflow_comparison import WorkflowComparison

CHECK_INTERVAL_SECONDS = 2.0


class Background:
    """Starts and stops the engine's tasks. Every process checks Temporal; with `repairs`, it also repairs drift."""

    def __init__(
        self,
        workflows: WorkflowClient,
        redelivery: InboxRedelivery,
        comparison: WorkflowComparison,
        *,
        make_worker: Callable[[], TemporalWorker] | None,
        repairs: bool,
        on_failure: Callable[[str], None],
    ) -> None:
        """`make_worker` is called at start, as the worker needs parts that in turn need the engine."""
        self.redelivery = redelivery
        self.comparison = comparison
        self._workflows = workflows
        self._make_worker = make_worker
        self._repairs = repairs
        self._on_failure = on_failure
        self._worker: TemporalWorker | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        if self._make_worker is not None:
            self._worker = self._make_worker()
            await self._worker.start()
        loops: dict[str, Callable[[], Awaitable[None]]] = {"temporal": self._check_turn}
        if self._repairs:
            loops |= {"inbox": self.redelivery.turn, "workflows": self.comparison.turn}
        self._tasks = [asyncio.create_task(supervised(*loop, self._on_failure)) for loop in loops.items()]

    def stop_loops(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop_worker(self, grace: float) -> None:
        """Let the worker finish its running tasks for `grace` seconds."""
        if self._worker is not None:
            await self._worker.stop(grace)

    @property
    def is_worker_running(self) -> bool:
        return self._worker is not None and self._worker.running

    def worker_troubles(self) -> dict[str, str]:
        return self._worker.troubles() if self._worker is not None else {}

    async def _check_turn(self) -> None:
        """Check whether Temporal answers, so that callers know before they need it."""
        await self._workflows.check()
        await asyncio.sleep(CHECK_INTERVAL_SECONDS)
