"""Signals that come twice, in any order, late, or while workers, Temporal or the ledger are away or killed.

Nothing is lost, and nothing is applied twice.
"""

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus

from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import Settings
from lucius.core.model.decision import Decision, Defaults
from lucius.core.model.inputs import Ack, HandedOver, Heartbeat, Input, Succeeded
from lucius.core.model.records import NEVER, Attempt
from lucius.engine.temporal import workflow_client
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.engine import TemporalEngine
from lucius.engine.temporal.messages import encode_input
from lucius.observability.readiness import Role
from lucius.ports.errors import LedgerDown
from lucius.ports.inbox import InboxMessage
from tests.e2e import checker
from tests.e2e.support import REPO
from tests.support.api import SECRET, Answer, Api, serving, settings_for
from tests.support.fastpath import fastpath_env
from tests.support.postgres import PostgresServer
from tests.support.temporal import TemporalServer
from tests.temporal.storm_cut_worker import CUT
from tests.temporal.twin_api import TimeFlows, over_temporal

T = TypeVar("T")

WITHIN = 30.0
SOON = 4.0
SIGNALS: dict[type[Input], str] = {
    HandedOver: "handed_over",
    Ack: "step_ack",
    Heartbeat: "heartbeat",
    Succeeded: "step_result",
}
TWO_STEPS = {"request_type": "OCR_EMBEDDING"}


class Clock(TimeFlows):
    ahead = 0

    def now(self) -> int:
        return super().now() + self.ahead

    def advance(self, seconds: float) -> None:
        self.ahead += round(seconds * 1000)


class Plane:
    """An API, and workers that come and go."""

    def __init__(self, settings: Settings, api: Api, client: Client) -> None:
        self.settings = settings
        self.api = api
        self._client = client

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[ControlPlane]:
        async with open_runtime(self.settings, role=Role.WORKER) as runtime:
            yield runtime

    @asynccontextmanager
    async def cut_worker(self, commits: int) -> AsyncIterator[None]:
        """Run a worker until it has made this many commits; leaving the context waits for its exit."""
        settings = self.settings
        env = {
            "LUCIUS_LEDGER_URL": settings.ledger_url,
            "LUCIUS_ENGINE": "temporal",
            "LUCIUS_TEMPORAL_ADDRESS": settings.temporal_address,
            "LUCIUS_TEMPORAL_TASK_QUEUE": settings.temporal_task_queue,
            "LUCIUS_TOKEN_SECRET": SECRET,
            **fastpath_env(),
            "LUCIUS_DATA_DIR": str(settings.data_dir),
        }
        args = ("-m", "tests.temporal.storm_cut_worker", str(commits))
        process = await asyncio.create_subprocess_exec(sys.executable, *args, env=env, cwd=REPO)
        try:
            yield
            async with asyncio.timeout(WITHIN):
                assert await process.wait() == CUT
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def send_signal(self, job_id: str, said: Input, message_id: str = "") -> None:
        handle = self._client.get_workflow_handle(job_id)
        await handle.signal(SIGNALS[type(said)], [encode_input(said, message_id)])

    async def send_redelivery(self, job_id: str, said: Input, message_id: str) -> None:
        """Send the input as a reader of the inbox does."""
        await self._client.get_workflow_handle(job_id).signal("resync", [encode_input(said, message_id)])

    async def attempt(self, job_id: str, step_id: str = "ocr", number: int = 1) -> Attempt:
        """Return the attempt as soon as it exists."""

        async def there() -> Attempt | None:
            view = await self.api.runtime.store.jobs.job(job_id)
            step = view.steps.get(step_id) if view else None
            return step.attempt if step and step.attempt.attempt_no == number else None

        return await until(there, f"attempt {number} of {step_id}")

    async def acked(self, job_id: str, step_id: str = "ocr") -> bool:
        return (await self.attempt(job_id, step_id)).acked_at is not None

    async def ended(self, job_id: str, status: str = "SUCCEEDED") -> Any:
        async def has_ended() -> Any:
            job = await self.api.job(job_id)
            return job if job["completed_at"] else None

        job = await until(has_ended, f"{job_id} ends")
        assert job["status"] == status, job
        return job

    async def do(self, service: str) -> dict[str, Any]:
        """Pull one directive, acknowledge it and succeed; return it."""
        directive = await self.pull(service)
        (await self.api.callback("ack", directive)).ok()
        (await self.api.succeed(directive, result={"by": service})).ok()
        return directive

    async def pull(self, service: str) -> dict[str, Any]:
        async def pulled() -> list[dict[str, Any]]:
            return await self.api.pull(service, wait_seconds=5)

        (directive,) = await until(pulled, f"there is work for {service}")
        return directive

    async def dispositions(self, job_id: str) -> list[tuple[str, str]]:
        events = await self.api.runtime.store.history.events(job_id, 0, 500)
        return [(e.type.removeprefix("CALLBACK_"), e.data["disposition"]) for e in events if "disposition" in e.data]

    async def read(self) -> None:
        """Wait until the inbox is empty."""

        async def is_empty() -> bool:
            return not await self.api.runtime.store.inbox.list_pending(NEVER, 1)

        await until(is_empty, "the inbox is empty")

    async def signals(self, job_id: str) -> int:
        events = self._client.get_workflow_handle(job_id).fetch_history_events()
        signalled = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
        return len([event async for event in events if event.event_type == signalled])

    async def at_rest(self, job_id: str) -> None:
        """Wait until the workflow has no pending task."""

        async def nothing_to_do() -> bool:
            about = await self._client.get_workflow_handle(job_id).describe()
            return not about.raw_description.HasField("pending_workflow_task")

        await until(nothing_to_do, f"{job_id} is at rest")

    async def closed(self, job_id: str) -> bool:
        about = await self._client.get_workflow_handle(job_id).describe()
        return about.status is not WorkflowExecutionStatus.RUNNING

    def jobs(self) -> TemporalEngine:
        jobs = self.api.runtime.engine
        assert isinstance(jobs, TemporalEngine)
        return jobs


async def until(ask: Callable[[], Awaitable[T | None]], what: str) -> T:
    deadline = asyncio.get_running_loop().time() + WITHIN
    while not (found := await ask()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {WITHIN:.0f} s: {what}"
        await asyncio.sleep(0.02)
    return found


@pytest.fixture
async def plane(tmp_path: Path, emptied_postgres_url: str, temporal_server: TemporalServer) -> AsyncIterator[Plane]:
    async with opened(tmp_path, emptied_postgres_url, temporal_server) as plane:
        yield plane


@asynccontextmanager
async def opened(folder: Path, ledger_url: str, server: TemporalServer, **defaults: Any) -> AsyncIterator[Plane]:
    quick = Defaults(**{"backoff_scale": 0.01, **defaults})
    settings = over_temporal(settings_for(folder, ledger_url=ledger_url, defaults=quick), server)
    client = await Client.connect(server.address, data_converter=data_converter({}))
    async with serving(settings, Clock()) as api:
        yield Plane(settings, api, client)


@pytest.fixture
def whole(postgres: PostgresServer) -> Iterator[None]:
    """Assert afterwards that the ledger is consistent: results applied once, one lease per attempt, right counters."""
    yield
    ledger = checker.assemble(checker.read(postgres.query, "in_turn"))
    assert ledger.jobs
    assert checker.always(ledger) == []
    assert postgres.query("SELECT * FROM in_turn.inbox") == []


pytestmark = pytest.mark.usefixtures("each_fastpath", "whole")


def handed_over(attempt: Attempt, step_id: str = "ocr") -> HandedOver:
    return HandedOver(step_id, attempt.attempt_no, attempt.lease_id)


def ack(attempt: Attempt, step_id: str = "ocr") -> Ack:
    return Ack(step_id=step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id)


def heartbeat(attempt: Attempt, step_id: str = "ocr") -> Heartbeat:
    return Heartbeat(step_id=step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id)


def succeeded(attempt: Attempt, step_id: str = "ocr", **result: Any) -> Succeeded:
    return Succeeded(
        step_id=step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id, result=result or {"by": "us"}
    )


async def test_repeated_signal_is_applied_once(plane: Plane) -> None:
    async with plane.worker():
        job_id = await plane.api.submit(**TWO_STEPS)
        first = await plane.attempt(job_id)
        for said in (handed_over(first), ack(first), succeeded(first)):
            await plane.send_signal(job_id, said)
            await plane.send_signal(job_id, said)
        directive = await plane.do("embedding")
        await plane.ended(job_id)
        assert directive["attempt_no"] == 1
        found = Counter(await plane.dispositions(job_id))
        assert found == {
            ("ACK", "APPLIED"): 2,
            ("RESULT", "APPLIED"): 2,
            ("ACK", "DUPLICATE"): 1,
            ("RESULT", "DUPLICATE"): 1,
        }


async def test_redelivered_message_is_recorded_once(plane: Plane) -> None:
    """Repeated before the message is read, while it is, and afterwards."""
    async with plane.worker():
        job_id = await plane.api.submit(**TWO_STEPS)
        first = await plane.attempt(job_id)
        for said in (ack(first), succeeded(first)):
            await plane.send_signal(job_id, said, message_id=f"the {type(said)}")
            for _ in range(5):
                await plane.send_redelivery(job_id, said, message_id=f"the {type(said)}")
        await plane.do("embedding")
        await plane.ended(job_id)
        assert Counter(await plane.dispositions(job_id)) == {("ACK", "APPLIED"): 2, ("RESULT", "APPLIED"): 2}


@pytest.mark.parametrize("present", [True, False], ids=["as-they-come", "all-at-once"])
async def test_signals_in_every_order_lead_to_the_same_end(plane: Plane, present: bool) -> None:
    """A worker receives them one by one, or returns to all of them at once."""
    signals = (ack, heartbeat, succeeded)
    orders = list(itertools.permutations((handed_over, *signals) if present else signals))
    async with plane.worker():
        jobs = [await plane.api.submit(**TWO_STEPS, input_ref=f"blob://in/{n}") for n in range(len(orders))]
        attempts = await asyncio.gather(*map(plane.attempt, jobs))
        if present:
            await _send_all(plane, jobs, attempts, orders)
            await _check_all(plane, jobs, attempts)
            return
        for job_id in jobs:
            await plane.at_rest(job_id)
    await _send_all(plane, jobs, attempts, orders)
    async with plane.worker():
        await _check_all(plane, jobs, attempts)


async def _check_all(plane: Plane, jobs: list[str], attempts: Sequence[Attempt]) -> None:
    await asyncio.gather(*(plane.do("embedding") for _ in jobs))
    for job_id, first in zip(jobs, attempts, strict=True):
        job = await plane.ended(job_id)
        assert [step["attempt_no"] for step in job["steps"]] == [1, 1]
        assert job["steps"][0]["result"] == {"by": "us"}
        assert Counter(await plane.dispositions(job_id))[("RESULT", "APPLIED")] == 2
        assert (await plane.attempt(job_id)).lease_id == first.lease_id


async def _send_all(plane: Plane, jobs: list[str], attempts: Sequence[Attempt], orders: list[Any]) -> None:
    async def in_order(job_id: str, attempt: Attempt, order: Any) -> None:
        for said in order:
            await plane.send_signal(job_id, said(attempt))

    await asyncio.gather(*map(in_order, jobs, attempts, orders))


async def test_result_of_an_old_lease_is_recorded_as_stale_and_changes_nothing(
    tmp_path: Path, emptied_postgres_url: str, temporal_server: TemporalServer
) -> None:
    async with opened(tmp_path, emptied_postgres_url, temporal_server, ack_timeout_ms=300) as plane, plane.worker():
        job_id = await plane.api.submit()
        old = await plane.api.pull(wait_seconds=5)
        new = await plane.api.pull(wait_seconds=5)
        assert [d["attempt_no"] for d in (*old, *new)] == [1, 2]
        (await plane.api.callback("ack", new[0])).ok()
        (await plane.api.succeed(old[0], result={"by": "old"})).problem(409, "STALE_CALLBACK")
        assert (await plane.api.succeed(new[0], result={"by": "new"})).ok()["disposition"] == "APPLIED"
        job = await plane.ended(job_id)
        assert job["steps"][0]["result"] == {"by": "new"}
        assert ("RESULT", "STALE") in await plane.dispositions(job_id)


async def test_attempt_handed_over_by_another_process_during_a_pull_is_not_handed_over_again(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with plane.worker():
        job_id = await plane.api.submit()
        first, store = await plane.attempt(job_id), plane.api.runtime.store
        put = store.inbox.put

        async def put_after_the_race(messages: Sequence[InboxMessage]) -> list[bool]:
            monkeypatch.setattr(store.inbox, "put", put)
            await plane.send_signal(job_id, ack(first))
            await until(lambda: plane.acked(job_id), "another process handed it over, and it was acknowledged")
            return await put(messages)

        monkeypatch.setattr(store.inbox, "put", put_after_the_race)
        assert await plane.api.pull("ocr") == []
        assert await store.inbox.list_pending(NEVER, 1) == []
        await plane.send_signal(job_id, succeeded(first))
        await plane.ended(job_id)


async def test_callback_repeated_while_the_first_is_read_is_a_duplicate(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger does not show the first message yet, and the inbox no longer does."""
    async with plane.worker():
        job_id = await plane.api.submit(**TWO_STEPS)
        directive = await plane.pull("ocr")
    assert (await plane.api.succeed(directive)).ok()["disposition"] == "APPLIED"
    store = plane.api.runtime.store
    put = store.inbox.put

    async def put_after_the_race(messages: Sequence[InboxMessage]) -> list[bool]:
        monkeypatch.setattr(store.inbox, "put", put)
        await plane.attempt(job_id, "embedding")
        await plane.read()
        return await put(messages)

    monkeypatch.setattr(store.inbox, "put", put_after_the_race)
    again = asyncio.create_task(plane.api.succeed(directive))
    async with plane.worker():
        assert (await again).ok()["disposition"] == "DUPLICATE"
        await plane.do("embedding")
        await plane.ended(job_id)
    assert Counter(await plane.dispositions(job_id))["RESULT", "DUPLICATE"] == 1


async def test_callbacks_without_a_worker_are_applied_once_a_worker_runs(plane: Plane) -> None:
    async with plane.worker():
        job_id = await plane.api.submit()
        await plane.attempt(job_id)
    (directive,) = await plane.api.pull()
    answers = [await plane.api.callback("ack", directive), await plane.api.succeed(directive)]
    assert [answer.ok()["disposition"] for answer in answers] == ["APPLIED", "APPLIED"]
    assert (await plane.api.succeed(directive)).ok()["disposition"] == "DUPLICATE"
    assert (await plane.api.job(job_id))["completed_at"] is None
    async with plane.worker():
        job = await plane.ended(job_id)
        assert job["steps"][0]["attempt_no"] == 1
        await plane.read()


async def test_unread_messages_are_signalled_only_once(plane: Plane) -> None:
    async with plane.worker():
        job_id = await plane.api.submit()
        await plane.attempt(job_id)
    (directive,) = await plane.api.pull()
    (await plane.api.succeed(directive)).ok()
    before = await plane.signals(job_id)
    plane.api.clock.advance(60)
    for _ in range(20):
        await plane.jobs().background.redelivery.read_inbox()
    assert await plane.signals(job_id) <= before + 3  # as many messages, once each
    async with plane.worker():
        await plane.ended(job_id)
        await plane.read()


async def test_operator_act_without_a_worker_is_refused_for_now(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane.worker():
        job_id = await plane.api.submit()
        await plane.attempt(job_id)
    monkeypatch.setattr(workflow_client, "UPDATE_TIMEOUT", workflow_client.REQUEST_TIMEOUT / 5)
    _assert_refused_for_now(await plane.api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "changed my mind"}))
    async with plane.worker():

        async def answered() -> bool:
            answer = await plane.api.post(f"/v1/jobs/{job_id}:cancel", {"reason": "changed my mind"})
            return answer.status in (200, 202, 409)

        await until(answered, "the cancel is taken")
        await plane.ended(job_id, "CANCELLED")


async def test_result_after_the_end_is_recorded_as_late_or_duplicate(plane: Plane) -> None:
    async with plane.worker():
        job_id = await plane.api.submit()
        directive = await plane.do("ocr")
        await plane.ended(job_id)

        await until(lambda: plane.closed(job_id), "its workflow has ended")
        assert (await plane.api.succeed(directive, result={"by": "another"})).ok()["disposition"] == "LATE"
        assert (await plane.api.succeed(directive, result={"by": "ocr"})).ok()["disposition"] == "DUPLICATE"
        job = await plane.ended(job_id)
        assert job["steps"][0]["result"] == {"by": "ocr"}
        assert [what for what in await plane.dispositions(job_id) if what[0] == "RESULT"] == [
            ("RESULT", "APPLIED"),
            ("RESULT", "LATE"),
            ("RESULT", "DUPLICATE"),
        ]
        assert await plane.closed(job_id)


def _assert_refused_for_now(answer: Answer) -> None:
    assert (answer.status, answer.json["code"]) == (503, "NOT_READY"), answer.body
    assert int(answer.headers["retry-after"]) >= 1


async def test_temporal_outage_loses_no_callback_or_command(tmp_path: Path, emptied_postgres_url: str) -> None:
    """Callbacks are refused for now but delivered later; commands are accepted and run later."""
    server = TemporalServer(durable=True).start()
    try:
        async with opened(tmp_path, emptied_postgres_url, server) as plane, plane.worker():
            first = await plane.api.submit(input_ref="blob://in/1")
            (directive,) = await plane.api.pull(wait_seconds=5)
            await asyncio.to_thread(server.stop, crash=True)
            _assert_refused_for_now(await plane.api.succeed(directive, result={"by": "ocr"}))
            async with asyncio.timeout(SOON):
                _assert_refused_for_now(await plane.api.succeed(directive, result={"by": "ocr"}))
            second = await plane.api.submit(input_ref="blob://in/2")
            _assert_refused_for_now(await plane.api.post(f"/v1/jobs/{first}:cancel", {"reason": "changed my mind"}))
            assert (await plane.api.job(second))["status"] == "QUEUED"
            await asyncio.to_thread(server.start)
            plane.api.clock.advance(10)

            async def told() -> bool:
                await plane.api.sweep()
                return bool((await plane.api.job(first))["completed_at"])

            async def started() -> bool:
                plane.api.clock.advance(5)
                await plane.api.sweep()
                return bool((await plane.api.job(second))["status"] != "QUEUED")

            await until(told, "the callback is told by who finds it in the inbox")
            await until(started, "who sweeps finds the job that waits to be started")
            await plane.do("ocr")
            for job_id in (first, second):
                job = await plane.ended(job_id)
                assert job["steps"][0]["attempt_no"] == 1
            await plane.read()
    finally:
        server.remove()


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_ledger_failure_during_a_projection_loses_nothing(plane: Plane, before: bool) -> None:
    """Each commit of the worker fails at the first try: before it is done, or after."""
    async with plane.worker() as runtime:
        failures = _fail_once(runtime, before=before)
        job_id = await plane.api.submit(**TWO_STEPS)
        await plane.do("ocr")
        await plane.do("embedding")
        job = await plane.ended(job_id)
        assert [step["attempt_no"] for step in job["steps"]] == [1, 1]
        assert Counter(await plane.dispositions(job_id)) == {("ACK", "APPLIED"): 2, ("RESULT", "APPLIED"): 2}
        assert len(failures) >= 3
        await plane.read()


def _fail_once(runtime: ControlPlane, *, before: bool) -> set[int]:
    """Make the first commit of each version fail, and return the versions that did."""
    commit, failed = runtime.store.ledger.commit, set[int]()

    async def failing(decision: Decision) -> None:
        first = decision.job.version not in failed
        failed.add(decision.job.version)
        if not (first and before):
            await commit(decision)
        if first:
            raise LedgerDown("it went away just now")

    runtime.store.ledger.commit = failing  # type: ignore[method-assign]
    return failed


async def test_worker_killed_after_a_projection_loses_nothing(
    tmp_path: Path, emptied_postgres_url: str, temporal_server: TemporalServer
) -> None:
    """The ledger is then ahead of Temporal by the first attempt, an ACK or the end; the next worker continues from it.

    All three run at once, as Temporal takes ten seconds to give a task to another worker.
    """

    async def cut(commits: int, service: str) -> None:
        async with opened(tmp_path / service, emptied_postgres_url, temporal_server) as plane:
            await _kill_worker_after(plane, commits, service)

    await asyncio.gather(cut(1, "ocr"), cut(2, "embedding"), cut(3, "sis"))


async def _kill_worker_after(plane: Plane, commits: int, service: str) -> None:
    api = plane.api
    payload = {"prompt_set": ["Who pays?"]} if service == "sis" else {}
    async with plane.cut_worker(commits):
        job_id = await api.submit(request_type=service.upper(), payload={service: payload})
        directive = await plane.pull(service)
        first = await plane.attempt(job_id, service)
        if commits > 1:
            (await api.callback("ack", directive)).ok()
        if commits > 2:
            await until(lambda: plane.acked(job_id, service), "the ACK is in the ledger")
            (await api.succeed(directive, result={"by": service})).ok()
    async with plane.worker():
        if commits == 1:
            (await api.fail(directive, failure_class="TRANSIENT")).ok()
            directive = await plane.pull(service)
        if commits < 3:
            (await api.succeed(directive, result={"by": service})).ok()
        job = await plane.ended(job_id)
        last = await plane.attempt(job_id, service, directive["attempt_no"])
        assert (job["steps"][0]["attempt_no"], job["steps"][0]["result"]) == (2 if commits == 1 else 1, {"by": service})
        assert (last.lease_id == first.lease_id) is (commits > 1), "each attempt has a lease of its own"
        assert Counter(await plane.dispositions(job_id))[("RESULT", "APPLIED")] == last.attempt_no
        await until(lambda: plane.closed(job_id), "its workflow has ended")
        await plane.read()


async def test_operator_act_of_a_killed_worker_is_applied_once_and_answered(
    tmp_path: Path, emptied_postgres_url: str, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker finds the act in the ledger; repeated, it would be refused or done twice."""
    monkeypatch.setattr("tests.support.api.WITHIN", WITHIN)

    async def cut(act: Callable[[Plane], Awaitable[None]], name: str) -> None:
        async with opened(tmp_path / name, emptied_postgres_url, temporal_server) as plane:
            await act(plane)

    await asyncio.gather(cut(_retry_with_killed_worker, "retry"), cut(_pause_with_killed_worker, "pause"))


async def _retry_with_killed_worker(plane: Plane) -> None:
    """Retry an ended job: the retry is the first input of the workflow's next run."""
    async with plane.worker():
        job_id = await plane.api.submit()
        (await plane.api.fail(await plane.pull("ocr"), failure_class="NON_RETRYABLE")).ok()
        await plane.ended(job_id, "FAILED_FINAL")
        await until(lambda: plane.closed(job_id), "its workflow has ended")
    async with plane.cut_worker(1):
        asked = asyncio.create_task(plane.api.post(f"/v1/jobs/{job_id}:retry", {"reason": "once"}))
    async with plane.worker():
        (await asked).ok(202)
        assert (await plane.api.event_types(job_id)).count("RUN_STARTED") == 1
        await plane.do("ocr")
        await plane.ended(job_id)
        await plane.read()


async def _pause_with_killed_worker(plane: Plane) -> None:
    async with plane.worker():
        job_id = await plane.api.submit(request_type="EMBEDDING")
        await plane.attempt(job_id, "embedding")
        await plane.at_rest(job_id)
    async with plane.cut_worker(1):
        asked = asyncio.create_task(plane.api.post(f"/v1/jobs/{job_id}:pause", {"reason": "once"}))
    async with plane.worker():
        (await asked).ok(202)
        assert (await plane.api.event_types(job_id)).count("JOB_PAUSED") == 1
        (await plane.api.post(f"/v1/jobs/{job_id}:resume", {"reason": "once"})).ok(202)
        await plane.do("embedding")
        await plane.ended(job_id)
        await plane.read()
