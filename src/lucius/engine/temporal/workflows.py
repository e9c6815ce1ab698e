"""Temporal, as the API needs it: start a job's workflow, tell it something, or ask it to do something."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.service import RPCError, RPCStatusCode

from lucius.core.model import Instant, Job
from lucius.engine.temporal.search import LANE, NO_ANSWER, PROTOCOL, STATE, TENANT, make_searchable, state_of
from lucius.engine.temporal.wire import ACT, WORKFLOW, Answer, Begin, Happened, Loaded
from lucius.ports.clock import Clock
from lucius.ports.errors import EngineDown

log = structlog.get_logger(__name__)

T = TypeVar("T")

CALL_SECONDS = timedelta(seconds=5)
PROBE_SECONDS = timedelta(seconds=1)
ACT_SECONDS = timedelta(seconds=30)
MOST_LOST_TASKS = 5
TASK_SECONDS = timedelta(seconds=5)  # after which the tasks of a worker that died are another's

NOT_THIS = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.OUT_OF_RANGE, RPCStatusCode.ALREADY_EXISTS)
"""Temporal is there, and refuses what it was asked."""

RUNNING = f"WorkflowType = '{WORKFLOW}' AND ExecutionStatus = 'Running' AND TaskQueue = '{{}}'"


class NoWorkflow(Exception):
    """There is none that runs: it has ended, or was never started."""


class NoAnswer(EngineDown):
    """Temporal did not answer in time, whatever it was asked."""


class _TaskLost(EngineDown):
    """What was asked may have been done; Temporal has no answer to it."""


class Workflows:
    """`eager` if this process works on them, too: then the first task comes with the answer to the start."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        task_queue: str,
        begin: Begin,
        clock: Clock,
        *,
        searchable: bool = True,
        eager: bool = False,
    ) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._connecting: asyncio.Task[Client] | None = None
        self._task_queue = task_queue
        self._begin = begin
        self._clock = clock
        self._searchable = searchable
        self._eager = eager
        self.down = ""
        """Why Temporal could not be reached the last time; empty if it could."""
        self.back_at: Instant = 0
        """When it could be, after it could not."""

    @property
    def publishes(self) -> bool:
        return self._begin.publishes

    async def start(self, job: Job, loaded: Loaded | None = None) -> None:
        """Unless it runs; spare it to load what we have just written. Raises EngineDown."""
        client = await self._connected()
        await self._soon(
            client.start_workflow(
                WORKFLOW,
                self._argument(job, loaded),
                id=job.job_id,
                task_queue=self._task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=self._attributes(job),
                task_timeout=TASK_SECONDS,
                request_eager_start=self._eager,
                rpc_timeout=CALL_SECONDS,
            )
        )

    async def tell(self, job_id: str, signal: str, said: Sequence[Happened], run_id: str = "") -> None:
        """Durably. Raises NoWorkflow or EngineDown: soon, if it was down a moment ago, so that no requests pile up.

        Whoever names the run that is open spares Temporal to look for it. Should there be another by now, it is told.
        """
        if run_id:
            with suppress(NoWorkflow):
                await self._signal(job_id, run_id, signal, said)
                return
        await self._signal(job_id, None, signal, said)

    async def _signal(self, job_id: str, run_id: str | None, signal: str, said: Sequence[Happened]) -> None:
        client = await self._connected()
        handle = client.get_workflow_handle(job_id, run_id=run_id)
        await self._soon(handle.signal(signal, list(said), rpc_timeout=CALL_SECONDS))

    async def act(self, job: Job, asked: Happened) -> Answer:
        """Answered when it is in the ledger; started for it if need be. Raises EngineDown.

        A signal that comes with the end of a workflow makes Temporal fail the task that the act was in, although the
        ledger may have it by then: asked again under the same name, it is done once.
        """
        act_id = uuid.uuid4().hex
        for tries in range(MOST_LOST_TASKS):
            try:
                return await self._ask(job, asked, act_id)
            except (_TaskLost, NoWorkflow) as lost:
                log.info("an act is asked for again: its task was lost", job_id=job.job_id, reason=str(lost))
                await asyncio.sleep(random.uniform(0.5, 1) * 0.05 * 2**tries)
        raise EngineDown(f"Temporal: an act was lost {MOST_LOST_TASKS} times")

    async def _ask(self, job: Job, asked: Happened, act_id: str) -> Answer:
        client = await self._connected()
        start: WithStartWorkflowOperation[Any, str] = WithStartWorkflowOperation(
            WORKFLOW,
            self._argument(job),
            id=job.job_id,
            task_queue=self._task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=self._attributes(job),
            task_timeout=TASK_SECONDS,
        )
        update = client.execute_update_with_start_workflow(
            ACT, asked, start_workflow_operation=start, id=act_id, result_type=Answer, rpc_timeout=ACT_SECONDS
        )
        started = asyncio.create_task(start.workflow_handle())
        started.add_done_callback(lambda done: done.cancelled() or done.exception())  # or it is logged as nobody's
        try:
            answer: Answer = await self._in_words(update)
        finally:
            started.cancel()
        return answer

    async def runs(self, job_id: str) -> bool:
        """Asking leaves no trace in its history. Raises EngineDown."""
        client = await self._connected()
        try:
            about = await self._soon(client.get_workflow_handle(job_id).describe(rpc_timeout=CALL_SECONDS))
        except NoWorkflow:
            return False
        return about.status is WorkflowExecutionStatus.RUNNING

    async def running(self) -> AsyncIterator[str]:
        """The jobs whose workflows run, as far as Temporal's index knows. Raises EngineDown."""
        client = await self._connected()
        found = client.list_workflows(RUNNING.format(self._task_queue), page_size=1_000, rpc_timeout=CALL_SECONDS)
        while (workflow := await self._soon(anext(found, None))) is not None:
            yield workflow.id

    async def check(self) -> None:
        """Find out whether Temporal answers."""
        try:
            client = await self._connected()
            asked = DescribeNamespaceRequest(namespace=client.namespace)
            await self._soon(client.workflow_service.describe_namespace(asked, timeout=CALL_SECONDS))
        except (EngineDown, NoWorkflow) as error:
            log.debug("Temporal does not answer", reason=str(error))

    async def _connected(self) -> Client:
        """All who come meanwhile wait for the same try, and not for longer than for any answer. Raises EngineDown."""
        if self._client is not None:
            return self._client
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect_anew())
            self._connecting.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.wait_for(asyncio.shield(self._connecting), self._patience())
        except TimeoutError:
            self.down = "no answer"
            raise NoAnswer("Temporal does not answer") from None

    async def _connect_anew(self) -> Client:
        client = await self._in_words(self._connect())
        self._searchable = self._searchable and await self._in_words(make_searchable(client))
        self._client = client
        return client

    def _argument(self, job: Job, loaded: Loaded | None = None) -> Begin:
        return replace(self._begin, job_id=job.job_id, searchable=self._searchable, job=loaded)

    def _attributes(self, job: Job) -> TypedSearchAttributes | None:
        if not self._searchable:
            return None
        return TypedSearchAttributes(
            [
                SearchAttributePair(TENANT, job.tenant_id),
                SearchAttributePair(PROTOCOL, job.protocol_id),
                SearchAttributePair(STATE, state_of(job.status)),
                SearchAttributePair(LANE, job.routing.lane),
            ]
        )

    def _patience(self) -> float:
        """Short if it was down a moment ago, so that no requests pile up."""
        return (PROBE_SECONDS if self.down else CALL_SECONDS).total_seconds()

    async def _soon(self, asked: Coroutine[Any, Any, T]) -> T:
        """The SDK tries for longer than a call's own time."""
        return await self._in_words(self._within(self._patience(), asked))

    @staticmethod
    async def _within(seconds: float, asked: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(seconds):
            return await asked

    async def _in_words(self, asked: Awaitable[T]) -> T:
        try:
            answer = await asked
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
                self._answered()
                raise NoWorkflow(error.message) from error
            if error.status is RPCStatusCode.FAILED_PRECONDITION:
                raise _TaskLost(error.message) from error
            if error.status in NOT_THIS:
                self._answered()
                raise EngineDown(f"Temporal: {error.message}") from error
            self.down = error.message
            kind = NoAnswer if error.status in NO_ANSWER else EngineDown
            raise kind(f"Temporal: {error.message}") from error
        except (WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
            raise EngineDown(f"Temporal: {error.__cause__ or error}") from error
        except (OSError, RuntimeError) as error:  # what the client raises when it can't connect
            self.down = str(error) or "no answer in time"
            raise NoAnswer(f"Temporal can't be reached: {self.down}") from error
        self._answered()
        return answer

    def _answered(self) -> None:
        if self.down:
            self.down, self.back_at = "", self._clock.now()
