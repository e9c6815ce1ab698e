"""The Temporal worker retries indefinitely, and reports its troubles."""

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from unittest.mock import create_autospec

import pytest
from google.protobuf.duration_pb2 import Duration
from structlog.testing import capture_logs
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from lucius.adapters.expressions.expressions import CelTools
from lucius.engine.temporal import worker as worker_module
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.client import TemporalAddress, connect
from lucius.engine.temporal.worker import TemporalWorker
from tests.support.temporal import TemporalServer

WITHIN = 30.0
QUEUE = "of-a-namespace-made-late"


class Connecting:
    """Connection factory that fails once with this error and then succeeds."""

    def __init__(self, server: TemporalServer, error: Exception) -> None:
        self._server = server
        self._errors = [error]

    async def __call__(self) -> Client:
        if self._errors:
            raise self._errors.pop()
        return await connect(TemporalAddress(target=self._server.address))


@pytest.mark.parametrize("error", [RuntimeError("not yet"), ValueError("unexpected error"), TimeoutError()])
async def test_connection_is_retried_after_any_error(temporal_server: TemporalServer, error: Exception) -> None:
    connecting = Connecting(temporal_server, error)
    worker = TemporalWorker(connecting, "does-not-give-up", _activities(), CelTools())
    assert (worker.running, worker.troubles()) == (False, {"temporal": "not connected yet"})
    await worker.start()
    async with asyncio.timeout(20):
        while worker.troubles():
            assert worker.running
            await asyncio.sleep(0.01)
    await worker.stop(5)
    assert not worker.running


class TestNamespaceCreatedLater:
    """All tries use the process's one client."""

    @pytest.fixture
    async def client(self, temporal_server: TemporalServer) -> Client:
        return await connect(TemporalAddress(target=temporal_server.address, namespace=f"late-{uuid.uuid4().hex[:8]}"))

    async def test_missing_namespace_is_reported_by_logs_and_troubles(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_module, "ANSWER_TIMEOUT", timedelta(seconds=WITHIN))
        missing = f"namespace {client.namespace} does not exist in Temporal"
        with capture_logs() as logs:
            async with _working_with(client) as worker:
                await _until(lambda: len(logs) > 2)
                assert worker.troubles() == {"temporal": missing}
        assert {log["reason"] for log in logs} == {missing}

    async def test_worker_polls_once_the_namespace_exists(self, client: Client) -> None:
        with capture_logs() as logs:
            async with _working_with(client):
                await _until(lambda: len(logs) > 1)
                await _make_namespace(client)
                async with asyncio.timeout(WITHIN):
                    while not await _polled(client):  # noqa: ASYNC110 - it happens at the server
                        await asyncio.sleep(0.1)

    async def test_worker_that_failed_to_start_does_not_block_the_next_try(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As if the namespace vanished between check and start: the SDK then keeps the worker it failed to start."""
        monkeypatch.setattr(worker_module, "_ask", create_autospec(worker_module._ask))
        with capture_logs() as logs:
            async with _working_with(client):
                await _until(lambda: len(logs) > 2)
        for log in logs:
            assert f"Namespace {client.namespace} was not found" in log["reason"]


async def test_worker_sets_its_own_build_id_and_reads_no_modules(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would do so for a build id, blocking the event loop."""
    monkeypatch.setattr("temporalio.worker._worker.load_default_build_id", lambda: pytest.fail("it reads all modules"))
    client = await connect(TemporalAddress(target=temporal_server.address))
    TemporalWorker(Connecting(temporal_server, ValueError()), "named", _activities(), CelTools())._worker(client)


async def test_worker_that_never_connected_stops_at_once() -> None:
    tries = asyncio.Event()

    async def nowhere() -> Client:
        tries.set()
        await asyncio.Event().wait()
        raise AssertionError

    worker = TemporalWorker(nowhere, "nowhere", _activities(), CelTools())
    await worker.start()
    await tries.wait()
    async with asyncio.timeout(2):
        await worker.stop(60)
    assert not worker.running


@asynccontextmanager
async def _working_with(client: Client) -> AsyncIterator[TemporalWorker]:
    async def the_same() -> Client:
        return client

    worker = TemporalWorker(the_same, QUEUE, _activities(), CelTools())
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(5)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not true():  # noqa: ASYNC110 - it happens in a thread of the SDK, too
            await asyncio.sleep(0.01)


async def _make_namespace(client: Client) -> None:
    kept = Duration(seconds=86_400)
    made = RegisterNamespaceRequest(namespace=client.namespace, workflow_execution_retention_period=kept)
    await client.workflow_service.register_namespace(made)


async def _polled(client: Client) -> bool:
    asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=QUEUE))
    try:
        return bool((await client.workflow_service.describe_task_queue(asked)).pollers)
    except RPCError:  # it takes a while until all parts of the server know the namespace
        return False


def _activities() -> Activities:
    """Return activities that are never called."""
    part = create_autospec(object)
    names = list(inspect.signature(Activities).parameters)
    return Activities(**dict.fromkeys(names, part))
