"""The process that runs workflows and their activities: it connects, works, and lets go of what it has in order."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorAutoscaling, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from lucius.core.tools import Tools
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.rules import rules
from lucius.engine.temporal.workflow import JobWorkflow

log = structlog.get_logger(__name__)

FIRST_BACKOFF, MAX_BACKOFF = 0.2, 10.0
PASSED_THROUGH = ("lucius", "msgspec", "cel_expr_python", "jsonschema_rs", "structlog", "rfc8785")


class Slots:
    """How much one process takes on."""

    def __init__(self, workflows: int = 100, activities: int = 100, cached: int = 2_000) -> None:
        self.workflows = workflows
        self.activities = activities
        self.cached = cached


class TemporalWorker:
    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        task_queue: str,
        activities: Activities,
        tools: Tools,
        slots: Slots | None = None,
    ) -> None:
        self._connect = connect
        self._task_queue = task_queue
        self._activities = activities
        self._slots = slots or Slots()
        self._trouble = "not connected yet"
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._grace = 10.0
        rules.tools = tools

    async def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="lucius-temporal-worker")

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def troubles(self) -> dict[str, str]:
        return {"temporal": self._trouble} if self._trouble else {}

    async def stop(self, grace: float) -> None:
        """Polls no more; what is under way may end, for so long."""
        self._grace = grace
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace + 1)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        backoff = FIRST_BACKOFF
        while not self._stopping.is_set():
            try:
                client = await self._connect()
                async with self._worker(client):
                    self._trouble, backoff = "", FIRST_BACKOFF
                    await self._stopping.wait()
            except (RPCError, RuntimeError, OSError) as error:
                self._trouble = f"Temporal: {error}"
                log.warning("can't work for Temporal, will try again", reason=str(error), seconds=backoff)
                await asyncio.sleep(random.uniform(0.5, 1) * backoff)
                backoff = min(backoff * 2, MAX_BACKOFF)

    def _worker(self, client: Client) -> Worker:
        does = self._activities
        restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
        return Worker(
            client,
            task_queue=self._task_queue,
            workflows=[JobWorkflow],
            activities=[
                does.load_job,
                does.project,
                does.record_attempt_lease,
                does.publish_to_bus,
                does.external_call,
            ],
            workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
            max_cached_workflows=self._slots.cached,
            max_concurrent_workflow_tasks=self._slots.workflows,
            max_concurrent_activities=self._slots.activities,
            max_concurrent_local_activities=self._slots.activities,
            workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
            graceful_shutdown_timeout=timedelta(seconds=self._grace),
        )
