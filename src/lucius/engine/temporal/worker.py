"""Temporal worker of this process: connects, runs workflows and activities, and shuts down in order."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import structlog
from msgspec import Struct
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PollerBehaviorAutoscaling, Worker
from temporalio.worker.workflow_sandbox import SandboxRestrictions
from temporalio.workflow import NondeterminismError

from lucius.backoff import Backoff
from lucius.core.model.tools import Tools
from lucius.engine.temporal.activities import HEARTBEAT_INTERVAL, Activities
from lucius.engine.temporal.error_interceptor import ErrorInterceptor
from lucius.engine.temporal.runner import EventLoopExecutor, JobRunner
from lucius.engine.temporal.workflow import JobWorkflow
from lucius.engine.temporal.workflow_tools import workflow_tools
from lucius.version import __version__

log = structlog.get_logger(__name__)

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.2, 10.0
CHECK_INTERVAL_SECONDS, ANSWER_TIMEOUT = 1.0, timedelta(seconds=2)
AWAY_MESSAGE = "Temporal does not answer: see the log for the reason"
"""The reason names hosts, and readiness checks are public."""
PASSED_THROUGH = ("lucius", "msgspec", "cel_expr_python", "jsonschema_rs", "structlog", "rfc8785")


class NoNamespace(RuntimeError):
    """Raised if Temporal answers but does not know the namespace. The message may be public."""


class WorkerSlots(Struct, frozen=True, kw_only=True):
    """Limits for the concurrent work of one process, and its time to shut down."""

    workflows: int = 100
    activities: int = 100
    cached: int = 2_000
    pollers: int = 100
    drain_seconds: float = 10.0


class TemporalWorker:
    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        task_queue: str,
        activities: Activities,
        tools: Tools,
        slots: WorkerSlots | None = None,
    ) -> None:
        self._connect = connect
        self._task_queue = task_queue
        self._activities = activities
        self._slots = slots or WorkerSlots()
        self._trouble = "not connected yet"
        self._polls = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        workflow_tools.tools = tools

    async def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="lucius-temporal-worker")

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def troubles(self) -> dict[str, str]:
        return {"temporal": self._trouble} if self._trouble else {}

    async def stop(self, grace: float) -> None:
        """Stop polling; let running tasks finish for `grace` seconds."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace + 1 if self._polls else 0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        backoff = Backoff(FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        while not self._stopping.is_set():
            try:
                client = await self._connect()
                await _ask(client)  # the SDK notices only after it has started, and logs a long traceback
                worker = self._worker(client)
                try:
                    async with worker:
                        self._polls = True
                        backoff.went_well()
                        await self._watch(client)
                finally:
                    _let_go(worker)
            except Exception as error:  # any error: without a retry this process would never work again
                self._polls, self._trouble = False, _in_public(error)
                pause = backoff.pause()
                unheard_of = not isinstance(error, RPCError | RuntimeError | OSError)
                log.warning(
                    "Temporal worker failed, will try again", reason=str(error), seconds=pause, exc_info=unheard_of
                )
                await asyncio.sleep(pause)

    async def _watch(self, client: Client) -> None:
        """Check Temporal until stopped: the SDK polls for ever and does not report that Temporal is unreachable."""
        while not self._stopping.is_set():
            trouble = ""
            try:
                await _ask(client)
            except (RPCError, NoNamespace) as error:
                trouble = _in_public(error)
                if not self._trouble:
                    log.warning("Temporal check failed", reason=str(error))
            self._trouble = trouble
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL_SECONDS):
                    await self._stopping.wait()

    def _worker(self, client: Client) -> Worker:
        does = self._activities
        pollers = PollerBehaviorAutoscaling(maximum=self._slots.pollers, initial=min(5, self._slots.pollers))
        restrictions = SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
        return Worker(
            client,
            task_queue=self._task_queue,
            workflows=[JobWorkflow],
            activities=[
                does.load_job,
                does.load_steps,
                does.project,
                does.record_attempt_lease,
                does.compare,
                does.publish_to_bus,
                does.external_call,
            ],
            interceptors=[ErrorInterceptor()],
            workflow_task_executor=EventLoopExecutor(max_workers=1),
            workflow_runner=JobRunner(restrictions=restrictions),
            workflow_failure_exception_types=[NondeterminismError],  # the ledger has all that the next run needs
            max_cached_workflows=self._slots.cached,
            max_concurrent_workflow_tasks=self._slots.workflows,
            max_concurrent_activities=self._slots.activities,
            max_concurrent_local_activities=self._slots.activities,
            workflow_task_poller_behavior=pollers,
            activity_task_poller_behavior=pollers,
            max_heartbeat_throttle_interval=HEARTBEAT_INTERVAL,  # else the SDK sends only one in 24 s
            graceful_shutdown_timeout=timedelta(seconds=self._slots.drain_seconds),
            build_id=f"lucius-{__version__}",  # else it reads and hashes every module that is loaded, for seconds
        )


async def _ask(client: Client) -> None:
    """Check that Temporal answers and knows the namespace. Raises RPCError or NoNamespace if not."""
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(asked, timeout=ANSWER_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NoNamespace(f"namespace {client.namespace} does not exist in Temporal") from error
        raise


def _let_go(worker: Worker) -> None:
    """Shut down a worker that failed to start: the SDK leaves it registered, and refuses another for its task queue.

    For a worker that did start this has no effect, as the SDK has removed it.
    """
    with suppress(AttributeError):
        worker._bridge_worker.initiate_shutdown()


def _in_public(error: Exception) -> str:
    return str(error) if isinstance(error, NoNamespace) else AWAY_MESSAGE
