"""The `local:` bus on a real ledger: the cost of pulling, and guarantees against loss."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.adapters.ledger.sqlite.store import SqliteStore
from lucius.contract import Directive
from lucius.core.model.records import Step
from lucius.core.model.statuses import AttemptOutcome, OutboxStatus, StepStatus
from tests.conformance.control_plane import KEY, QUIET, ControlPlaneUnderTest, control_plane
from tests.integration.worker.support import until

SOON = 5.0  # seconds; nothing polls more often than every ten minutes in these tests
DAY_MS = 86_400_000  # after every deadline of an attempt, and before the timeout of the shipped protocols' jobs


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlaneUnderTest]:
    async with control_plane(tmp_path, **QUIET) as plane:
        yield plane


async def step_of(plane: ControlPlaneUnderTest, job_id: str) -> Step:
    view = await plane.runtime.store.jobs.job(job_id)
    assert view is not None
    return view.steps["ocr"]


def names(directives: list[Directive]) -> list[str]:
    return [directive.message_id for directive in directives]


async def test_waiting_pull_is_woken_by_the_commit(plane: ControlPlaneUnderTest) -> None:
    for number in range(5):
        waiting = asyncio.create_task(plane.consumer("ocr").pull(1, 60))
        await until(lambda: plane.waiting() == 1)
        job_id = await plane.submit(number)
        assert names(await asyncio.wait_for(waiting, SOON)) == [f"{job_id}/ocr/1"]


async def test_next_step_wakes_only_pulls_of_its_service(plane: ControlPlaneUnderTest) -> None:
    embedding = asyncio.create_task(plane.consumer("embedding").pull(1, 60))
    sis = asyncio.create_task(plane.consumer("sis").pull(1, 60))
    await until(lambda: plane.waiting() == 2)
    job_id = await plane.submit(1, request_type="OCR_EMBEDDING")
    (directive,) = await plane.consumer("ocr").pull(1, 60)
    await plane.call_back("result", directive, status="SUCCEEDED")
    assert names(await asyncio.wait_for(embedding, SOON)) == [f"{job_id}/embedding/1"]
    assert not sis.done()
    sis.cancel()


async def test_pull_of_another_lane_does_not_consume_the_wake_up(plane: ControlPlaneUnderTest) -> None:
    other = asyncio.create_task(plane.consumer("ocr", [4]).pull(1, 60))
    await until(lambda: plane.waiting() == 1)
    fitting = asyncio.create_task(plane.consumer("ocr", [3]).pull(1, 60))
    await until(lambda: plane.waiting() == 2)
    job_id = await plane.submit(1, lane=3)
    assert names(await asyncio.wait_for(fitting, SOON)) == [f"{job_id}/ocr/1"]
    other.cancel()


async def test_only_one_of_two_racing_pulls_gets_the_row(plane: ControlPlaneUnderTest) -> None:
    for number in range(20):
        first = await plane.submit(2 * number)
        racing = [asyncio.create_task(plane.consumer("ocr").pull(1, 60)) for _ in range(2)]
        done, losing = await asyncio.wait(racing, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert [names(task.result()) for task in done] == [[f"{first}/ocr/1"]]
        second = await plane.submit(2 * number + 1)
        assert names(await asyncio.wait_for(losing.pop(), SOON)) == [f"{second}/ocr/1"]


async def test_concurrent_pulls_get_each_attempt_once(plane: ControlPlaneUnderTest) -> None:
    jobs = 150
    found: list[str] = []

    async def puller() -> None:
        consumer = plane.consumer("ocr")
        while len(found) < jobs:
            found.extend(names(await consumer.pull(7, 0.2)))

    pulling = [asyncio.create_task(puller()) for _ in range(10)]
    submitted = await asyncio.gather(*(plane.submit(number) for number in range(jobs)))
    await asyncio.wait_for(asyncio.gather(*pulling), 60)
    assert sorted(found) == sorted(f"{job_id}/ocr/1" for job_id in submitted)


async def test_waiting_rows_use_no_attempts_and_have_no_deadline(tmp_path: Path) -> None:
    times = {"LUCIUS_ACK_TIMEOUT": "0.001", "LUCIUS_SWEEP_INTERVAL": "0.01", "LUCIUS_REPAIR_INTERVAL": "0.1"}
    async with control_plane(tmp_path, **times) as plane:
        submitted = [await plane.submit(number) for number in range(100)]
        assert await plane.runtime.store.ledger.due(plane.runtime.clock.now() + DAY_MS, 1000) == []
        assert await plane.runtime.store.ledger.drifted(1000) == []
        for job_id in submitted:
            step = await step_of(plane, job_id)
            assert (step.status, step.attempt.attempt_no) == (StepStatus.DISPATCHING, 1)


async def test_cap_on_unacknowledged_directives_applies_to_all_pulls_together(tmp_path: Path) -> None:
    async with control_plane(tmp_path, LUCIUS_MAX_UNACKED="5", **QUIET) as plane:
        submitted = [await plane.submit(number) for number in range(12)]
        pulled = await asyncio.gather(*(plane.consumer("ocr").pull(4, 0) for _ in range(4)))
        given = [directive for directives in pulled for directive in directives]
        assert len(given) == 5
        assert (await plane.runtime.store.jobs.counters("unacked/ocr"))["unacked/ocr"] == 5
        assert await plane.consumer("ocr").pull(10, 0) == []
        waiting_jobs = set(submitted) - {directive.jobId for directive in given}
        assert {(await step_of(plane, job_id)).attempt.attempt_no for job_id in waiting_jobs} == {1}
        due = await plane.runtime.store.ledger.due(plane.runtime.clock.now() + DAY_MS, 100)
        assert set(due) == {directive.jobId for directive in given}


async def test_ack_or_result_frees_capacity_for_a_waiting_pull(tmp_path: Path) -> None:
    async with control_plane(tmp_path, LUCIUS_MAX_UNACKED="2", **QUIET) as plane:
        for number in range(5):
            await plane.submit(number)
        held = await plane.consumer("ocr").pull(10, 0)
        waiting = asyncio.create_task(plane.consumer("ocr").pull(10, 60))
        await until(lambda: plane.waiting() == 1)
        await plane.call_back("ack", held[0])
        assert len(await asyncio.wait_for(waiting, SOON)) == 1
        waiting = asyncio.create_task(plane.consumer("ocr").pull(10, 60))
        await until(lambda: plane.waiting() == 1)
        await plane.call_back("result", held[1], status="SUCCEEDED")
        assert len(await asyncio.wait_for(waiting, SOON)) == 1


class TestDisconnectedPull:
    async def send_unread_pull(self, plane: ControlPlaneUnderTest, wait_seconds: float) -> asyncio.StreamWriter:
        """Send a pull whose answer is never read; return the connection's writer."""
        _, writer = await asyncio.open_connection("127.0.0.1", plane.port)
        body = json.dumps({"max": 10, "wait_seconds": wait_seconds})
        head = f"POST /v1/services/ocr/directives:pull HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        return writer

    async def test_directive_is_not_handed_to_a_disconnected_waiting_pull(self, plane: ControlPlaneUnderTest) -> None:
        writer = await self.send_unread_pull(plane, 60)
        await until(lambda: plane.waiting() == 1)
        writer.close()
        await until(lambda: plane.waiting() == 0)
        job_id = await plane.submit(1)
        assert names(await plane.consumer("ocr").pull(1, 60)) == [f"{job_id}/ocr/1"]

    async def test_lost_pull_answer_uses_up_one_attempt(self, tmp_path: Path) -> None:
        times = {"LUCIUS_ACK_TIMEOUT": "1", "LUCIUS_BACKOFF_SCALE": "0", "LUCIUS_SWEEP_INTERVAL": "0.02"}
        async with control_plane(tmp_path, **times) as plane:
            submitted = [await plane.submit(number) for number in range(10)]
            writer = await self.send_unread_pull(plane, 0)
            async with asyncio.timeout(20):
                while (await step_of(plane, submitted[-1])).status is StepStatus.DISPATCHING:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            writer.transport.abort()
            await self.finish_all(plane, submitted)
            for job_id in submitted:
                lost, done = await plane.runtime.store.history.attempts(job_id)
                assert lost.attempt.outcome is AttemptOutcome.ACK_TIMEOUT
                assert (done.attempt.attempt_no, done.attempt.outcome) == (2, AttemptOutcome.SUCCEEDED)

    async def finish_all(self, plane: ControlPlaneUnderTest, submitted: list[str]) -> None:
        left = set(submitted)
        consumer = plane.consumer("ocr")
        async with asyncio.timeout(30):
            while left:
                for directive in await consumer.pull(10, 5):
                    answer = await plane.call_back("result", directive, status="SUCCEEDED")
                    assert answer["disposition"] == "APPLIED"
                    left.discard(directive.jobId)

    async def test_disconnect_at_any_moment_loses_no_job(self, tmp_path: Path) -> None:
        times = {"LUCIUS_ACK_TIMEOUT": "1", "LUCIUS_BACKOFF_SCALE": "0", "LUCIUS_SWEEP_INTERVAL": "0.02"}
        async with control_plane(tmp_path, **times) as plane:
            submitted: list[str] = []
            for number in range(40):
                writer = await self.send_unread_pull(plane, 60)
                submitting = asyncio.create_task(plane.submit(number))
                for _ in range(number):  # abort later each time, from before the commit to after the answer
                    await asyncio.sleep(0)
                writer.transport.abort()
                submitted.append(await submitting)
            await self.finish_all(plane, submitted)
            assert await plane.runtime.store.jobs.backlog(10**15) == {}


async def test_pulled_row_is_settled(plane: ControlPlaneUnderTest) -> None:
    job_id = await plane.submit(1)
    await plane.consumer("ocr").pull(1, 0)
    assert isinstance(plane.runtime.store, SqliteStore)
    rows = plane.runtime.store.file.fetch_rows("SELECT status FROM outbox")
    assert rows == [(OutboxStatus.SENT,)]
    assert (await step_of(plane, job_id)).status is StepStatus.INITIATED
