"""The process that runs workflows and their activities: it connects, works, and lets go of what it has in order."""

import asyncio
import random
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

from lucius import __version__
from lucius.core.tools import Tools
from lucius.engine.temporal.activities import BEATS_EVERY, Activities
from lucius.engine.temporal.outages import Outages
from lucius.engine.temporal.rules import rules
from lucius.engine.temporal.runner import InTheLoop, JobRunner
from lucius.engine.temporal.workflow import JobWorkflow

log = structlog.get_logger(__name__)

FIRST_BACKOFF, MAX_BACKOFF = 0.2, 10.0
LOOK_SECONDS, ANSWERS_WITHIN = 1.0, timedelta(seconds=2)
AWAY = "Temporal does not answer: the log says why"  # the reason names hosts, and anyone may ask for our troubles
PASSED_THROUGH = ("lucius", "msgspec", "cel_expr_python", "jsonschema_rs", "structlog", "rfc8785")


class NoNamespace(RuntimeError):
    """Temporal answers, and does not know ours. Its name is no secret."""


class Slots(Struct, frozen=True, kw_only=True):
    """How much one process takes on, and how long it may take to let go of it."""

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
        slots: Slots | None = None,
    ) -> None:
        self._connect = connect
        self._task_queue = task_queue
        self._activities = activities
        self._slots = slots or Slots()
        self._trouble = "not connected yet"
        self._polls = False
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
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
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace + 1 if self._polls else 0)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        backoff = FIRST_BACKOFF
        while not self._stopping.is_set():
            try:
                client = await self._connect()
                await _ask(client)  # the SDK only finds out when it has begun, and says it in a page
                worker = self._worker(client)
                try:
                    async with worker:
                        self._polls, backoff = True, FIRST_BACKOFF
                        await self._watch(client)
                finally:
                    _let_go(worker)
            except Exception as error:  # whatever it is: who gave up would never work again
                self._polls, self._trouble = False, _in_public(error)
                unheard_of = not isinstance(error, RPCError | RuntimeError | OSError)
                log.warning(
                    "can't work for Temporal, will try again", reason=str(error), seconds=backoff, exc_info=unheard_of
                )
                await asyncio.sleep(random.uniform(0.5, 1) * backoff)
                backoff = min(backoff * 2, MAX_BACKOFF)

    async def _watch(self, client: Client) -> None:
        """Until told to stop. The SDK polls for ever and does not say that nobody answers: so we ask."""
        while not self._stopping.is_set():
            trouble = ""
            try:
                await _ask(client)
            except (RPCError, NoNamespace) as error:
                trouble = _in_public(error)
                if not self._trouble:
                    log.warning("nothing comes from Temporal", reason=str(error))
            self._trouble = trouble
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
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
            interceptors=[Outages()],
            workflow_task_executor=InTheLoop(max_workers=1),
            workflow_runner=JobRunner(restrictions=restrictions),
            workflow_failure_exception_types=[NondeterminismError],  # the ledger has all that the next run needs
            max_cached_workflows=self._slots.cached,
            max_concurrent_workflow_tasks=self._slots.workflows,
            max_concurrent_activities=self._slots.activities,
            max_concurrent_local_activities=self._slots.activities,
            workflow_task_poller_behavior=pollers,
            activity_task_poller_behavior=pollers,
            max_heartbeat_throttle_interval=BEATS_EVERY,  # or the SDK holds back all but one in 24 s
            graceful_shutdown_timeout=timedelta(seconds=self._slots.drain_seconds),
            build_id=f"lucius-{__version__}",  # else it reads and hashes every module that is loaded, for seconds
        )


async def _ask(client: Client) -> None:
    """Whether Temporal is there, and our namespace in it. Raises RPCError or NoNamespace if not."""
    asked = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(asked, timeout=ANSWERS_WITHIN)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NoNamespace(f"namespace {client.namespace} does not exist in Temporal") from error
        raise


def _let_go(worker: Worker) -> None:
    """One that failed to start is left by the SDK on the client's list, which takes no other of the same task queue.
    One that did start has been taken off, and has nothing more to be told."""
    with suppress(AttributeError):
        worker._bridge_worker.initiate_shutdown()


def _in_public(error: Exception) -> str:
    return str(error) if isinstance(error, NoNamespace) else AWAY
