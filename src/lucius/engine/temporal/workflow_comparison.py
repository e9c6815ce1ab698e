"""Finds workflows that run although the ledger has no live job for them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import structlog

from lucius.engine.temporal.workflow_client import NoWorkflow, WorkflowClient
from lucius.ports.ledger import Ledger

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 60.0
MAX_COMPARED_JOBS = 5_000
"""Workflows per `compare_all`, each compared by a read of its own; the next call continues after them."""
MAX_LOGGED_IDS = 20


class WorkflowComparison:
    """Makes workflows compare themselves with the ledger if it has lost their jobs."""

    def __init__(
        self,
        ledger: Ledger,
        workflows: WorkflowClient,
        on_repair: Callable[[str], None],
        poll_backoff: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`poll_backoff` returns the factor by which replicas that share this work slow down."""
        self._ledger = ledger
        self._workflows = workflows
        self._on_repair = on_repair
        self._poll_backoff = poll_backoff
        self._running: AsyncIterator[str] | None = None

    async def turn(self) -> None:
        await asyncio.sleep(INTERVAL_SECONDS * self._poll_backoff() * random.uniform(0.5, 1))
        await self.compare_all()

    async def compare_all(self) -> int:
        """Make running workflows without a live job in the ledger compare with it; return how many there were.

        Live jobs without a workflow are found by their deadlines, or by the lack of one. With more than
        `MAX_COMPARED_JOBS` workflows, several calls are needed for all of them. Raises EngineDown.
        """
        compared: list[str] = []
        async for job_id in self._next_running():
            snapshot = await self._ledger.load(job_id, fresh=True)
            if snapshot is None or not snapshot.job.live:
                with suppress(NoWorkflow):  # it has ended meanwhile, as the ledger says
                    await self._workflows.signal(job_id, "resync", [])
                    compared.append(job_id)
                    self._on_repair("compared")
        if compared:
            log.warning(
                "running workflows had no live job in the ledger, and compare now",
                workflows=len(compared),
                job_ids=compared[:MAX_LOGGED_IDS],
            )
        return len(compared)

    async def _next_running(self) -> AsyncIterator[str]:
        """Yield running jobs, continuing after the last call; from the first if that reached the end or failed."""
        running, self._running = self._running or self._workflows.running(), None
        for _ in range(MAX_COMPARED_JOBS):
            job_id = await anext(running, None)
            if job_id is None:
                return
            yield job_id
        self._running = running
