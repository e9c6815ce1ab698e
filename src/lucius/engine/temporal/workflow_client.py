"""Client of job workflows: starts them, sends them signals and updates, and lists them."""

import asyncio
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

from lucius.backoff import Backoff
from lucius.core.model.records import Instant, Job
from lucius.engine.temporal.messages import ACT_UPDATE, WORKFLOW_TYPE, ActResult, JobMessage, LoadedJob, WorkflowArgs
from lucius.engine.temporal.search import LANE, NO_ANSWER, PROTOCOL, STATE, TENANT, make_searchable, state_of
from lucius.ports.clock import Clock
from lucius.ports.errors import EngineDown

log = structlog.get_logger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT = timedelta(seconds=5)
PROBE_TIMEOUT = timedelta(seconds=1)
UPDATE_TIMEOUT = timedelta(seconds=30)
MAX_UPDATE_TRIES = 5
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.03, 1.0
TASK_TIMEOUT = timedelta(seconds=5)  # after which another worker gets the tasks of one that died

REFUSAL_STATUSES = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.OUT_OF_RANGE, RPCStatusCode.ALREADY_EXISTS)
"""Statuses by which Temporal, although reachable, refuses a request."""

RUNNING_QUERY = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running' AND TaskQueue = '{{}}'"


class NoWorkflow(Exception):
    """Raised if no workflow of the job runs: it has ended, or was never started."""


class NoAnswer(EngineDown):
    """Raised if Temporal did not answer in time or can't be reached."""


class _TaskLost(EngineDown):
    """Raised if Temporal lost the task of an update, which may have been applied nevertheless."""


class WorkflowClient:
    """Starts, signals and updates the workflows of jobs.

    With `eager`, this process runs a worker, too, and gets a workflow's first task in the response to its start.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        task_queue: str,
        args: WorkflowArgs,
        clock: Clock,
        *,
        searchable: bool = True,
        eager: bool = False,
    ) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._connecting: asyncio.Task[Client] | None = None
        self._task_queue = task_queue
        self._args = args
        self._clock = clock
        self._searchable = searchable
        self._eager = eager
        self.down = ""
        """Why the last request did not reach Temporal; empty if it did."""
        self.back_at: Instant = 0
        """When Temporal became reachable again after it had not been."""

    @property
    def publishes(self) -> bool:
        return self._args.publishes

    async def start(self, job: Job, loaded: LoadedJob | None = None) -> None:
        """Start the job's workflow unless it runs; with `loaded`, it need not read the ledger. Raises EngineDown."""
        client = await self._connected()
        await self._soon(
            client.start_workflow(
                WORKFLOW_TYPE,
                self._argument(job, loaded),
                id=job.job_id,
                task_queue=self._task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=self._attributes(job),
                task_timeout=TASK_TIMEOUT,
                request_eager_start=self._eager,
                rpc_timeout=REQUEST_TIMEOUT,
            )
        )

    async def signal(self, job_id: str, signal: str, messages: Sequence[JobMessage], run_id: str = "") -> None:
        """Signal the workflow durably.

        A `run_id` spares Temporal the search for the open run; if that has ended, the current one is signalled. Raises
        NoWorkflow or EngineDown; sooner if Temporal was down a moment ago, so that requests do not pile up.
        """
        if run_id:
            with suppress(NoWorkflow):
                await self._signal_run(job_id, run_id, signal, messages)
                return
        await self._signal_run(job_id, None, signal, messages)

    async def _signal_run(self, job_id: str, run_id: str | None, signal: str, messages: Sequence[JobMessage]) -> None:
        client = await self._connected()
        handle = client.get_workflow_handle(job_id, run_id=run_id)
        await self._soon(handle.signal(signal, list(messages), rpc_timeout=REQUEST_TIMEOUT))

    async def act(self, job: Job, asked: JobMessage) -> ActResult:
        """Send an update, starting the workflow if necessary; return its result once it is in the ledger.

        A signal that arrives as a workflow ends makes Temporal fail the task with the update, although the ledger may
        have it by then: repeated under the same id, it is applied once. Raises EngineDown.
        """
        act_id, backoff = uuid.uuid4().hex, Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        for _ in range(MAX_UPDATE_TRIES):
            try:
                return await self._ask(job, asked, act_id)
            except (_TaskLost, NoWorkflow) as lost:
                log.info("update is sent again: its task was lost", job_id=job.job_id, reason=str(lost))
                await asyncio.sleep(backoff.pause())
        raise EngineDown(f"Temporal: update lost {MAX_UPDATE_TRIES} times")

    async def _ask(self, job: Job, asked: JobMessage, act_id: str) -> ActResult:
        client = await self._connected()
        start: WithStartWorkflowOperation[Any, str] = WithStartWorkflowOperation(
            WORKFLOW_TYPE,
            self._argument(job),
            id=job.job_id,
            task_queue=self._task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            search_attributes=self._attributes(job),
            task_timeout=TASK_TIMEOUT,
        )
        update = client.execute_update_with_start_workflow(
            ACT_UPDATE,
            asked,
            start_workflow_operation=start,
            id=act_id,
            result_type=ActResult,
            rpc_timeout=UPDATE_TIMEOUT,
        )
        started = asyncio.create_task(start.workflow_handle())
        started.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark as retrieved
        try:
            answer: ActResult = await self._in_words(update)
        finally:
            started.cancel()
        return answer

    async def runs(self, job_id: str) -> bool:
        """Return whether a workflow of the job runs, without a trace in its history. Raises EngineDown."""
        client = await self._connected()
        try:
            about = await self._soon(client.get_workflow_handle(job_id).describe(rpc_timeout=REQUEST_TIMEOUT))
        except NoWorkflow:
            return False
        return about.status is WorkflowExecutionStatus.RUNNING

    async def running(self) -> AsyncIterator[str]:
        """Yield the jobs whose workflows run, as far as Temporal's index knows. Raises EngineDown."""
        client = await self._connected()
        found = client.list_workflows(
            RUNNING_QUERY.format(self._task_queue), page_size=1_000, rpc_timeout=REQUEST_TIMEOUT
        )
        while (workflow := await self._soon(anext(found, None))) is not None:
            yield workflow.id

    async def check(self) -> None:
        """Send a request, so that `down` tells whether Temporal answers."""
        try:
            client = await self._connected()
            asked = DescribeNamespaceRequest(namespace=client.namespace)
            await self._soon(client.workflow_service.describe_namespace(asked, timeout=REQUEST_TIMEOUT))
        except (EngineDown, NoWorkflow) as error:
            log.debug("Temporal does not answer", reason=str(error))

    async def _connected(self) -> Client:
        """Return the client. Callers share one attempt to connect and its limited wait. Raises EngineDown."""
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

    def _argument(self, job: Job, loaded: LoadedJob | None = None) -> WorkflowArgs:
        return replace(self._args, job_id=job.job_id, searchable=self._searchable, job=loaded)

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
        """Return a timeout in seconds; short if Temporal was down a moment ago, so that requests do not pile up."""
        return (PROBE_TIMEOUT if self.down else REQUEST_TIMEOUT).total_seconds()

    async def _soon(self, asked: Coroutine[Any, Any, T]) -> T:
        """Await a request within a timeout of its own, as the SDK retries for longer than the request's."""
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
            if error.status in REFUSAL_STATUSES:
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
