"""A pull that waits is answered by the commit that asks for its step. Nothing is lost, or given twice."""

import asyncio
from typing import Any

import pytest

from lucius.contract import Directive
from lucius.core.decision import Decision
from lucius.core.inputs import Ack, DeadlinePassed, Succeeded
from lucius.core.model import OutboxRow, StepStatus
from lucius.core.protocol import StepSpec
from lucius.ports.errors import LedgerDown, VersionConflict
from lucius.ports.ledger import PendingQuery
from lucius.service import doubts
from tests.support.engine import WITHIN, Engine
from tests.support.until import until

OCR = StepSpec(step_id="ocr", step_type="OCR", service="ocr")
SIS = StepSpec(step_id="sis", step_type="SIS", service="sis")


class Gated(Engine):
    """Commits wait at a gate while it is shut, and may fail there."""

    def __init__(self, max_unacked: int = 1_000) -> None:
        super().__init__(max_unacked=max_unacked)
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Exception | None = None
        self.commits: list[Decision] = []
        self._commit = self.ledger.commit
        self.ledger.commit = self._gated  # type: ignore[method-assign]

    async def _gated(self, decision: Decision) -> None:
        await self.open.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        await self._commit(decision)
        self.commits.append(decision)

    async def waiting(
        self, service: str = "ocr", limit: int = 10, seconds: float = WITHIN, **more: object
    ) -> "asyncio.Task[list[Directive]]":
        """A pull that stands in line."""
        before = self.in_line(service)
        pulling = asyncio.create_task(self.dispatcher.pull(service, limit, seconds, **more))  # type: ignore[arg-type]
        await until(lambda: self.in_line(service) > before)
        return pulling

    def in_line(self, service: str = "ocr") -> int:
        return len(self.hub.pulls._waiting.get(service, ()))

    def room(self, service: str = "ocr") -> int:
        """How many rows could still be promised."""
        return sum(pull.left for pull in self.hub.pulls._takers(service))

    def submitting(self, n: int = 1) -> "list[asyncio.Task[str]]":
        return [asyncio.create_task(self.submit(OCR, job_id=f"job-{i + 1}", tenant_id=f"tenant-{i}")) for i in range(n)]


async def test_the_commit_that_asks_for_a_step_answers_the_pull() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    await engine.submit(OCR)
    (directive,) = await pulling
    assert len(engine.commits) == 1
    step = await engine.step("ocr")
    assert (step.status, step.attempt.lease_id) == (StepStatus.INITIATED, directive.lease_id)


async def test_a_job_of_several_steps_takes_a_commit_for_each_and_one_to_begin() -> None:
    engine = Gated()
    ocr, sis = await engine.waiting("ocr"), await engine.waiting("sis")
    await engine.submit(OCR, SIS)
    for pulling in (ocr, sis):
        (got,) = await pulling
        said = Succeeded(
            step_id=got.stepId, attempt_no=got.attempt_no, lease_id=got.lease_id, result={"of": got.stepId}
        )
        await engine.feed(said)
    assert not (await engine.job()).live
    assert len(engine.commits) == 3


async def test_a_directive_carries_what_the_same_commit_has_made_of_the_step_before() -> None:
    engine = Gated()
    ocr, sis = await engine.waiting("ocr"), await engine.waiting("sis")
    await engine.submit(OCR, SIS)
    (got,) = await ocr
    await engine.feed(
        Succeeded(step_id="ocr", attempt_no=got.attempt_no, lease_id=got.lease_id, result={"text": "Hello"})
    )
    (following,) = await sis
    assert following.inputs["ocr"].result == {"text": "Hello"}


async def test_nothing_is_answered_before_it_is_durable() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    await asyncio.sleep(0.01)
    assert not pulling.done()
    engine.open.set()
    assert len(await pulling) == 1
    await submitting


async def test_what_is_decided_while_a_commit_is_under_way_is_answered_together() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.open.clear()
    submitting = engine.submitting(3)
    await until(lambda: engine.room() == 7)
    engine.open.set()
    await asyncio.gather(*submitting)
    assert {directive.jobId for directive in await pulling} == {"job-1", "job-2", "job-3"}


async def test_a_pull_is_given_no_more_than_it_asked_for() -> None:
    engine = Gated()
    pulling = await engine.waiting(limit=2)
    engine.open.clear()
    submitting = engine.submitting(5)
    await until(lambda: engine.room() == 0)
    engine.open.set()
    await asyncio.gather(*submitting)
    first = await pulling
    rest = await engine.dispatcher.pull("ocr", 10, 0)
    assert (len(first), len(rest)) == (2, 3)
    assert len({directive.jobId for directive in (*first, *rest)}) == 5


async def test_those_who_wait_share_the_work() -> None:
    engine = Gated()
    pulls = [await engine.waiting() for _ in range(3)]
    engine.open.clear()
    submitting = engine.submitting(6)
    await until(lambda: engine.room() == 24)
    engine.open.set()
    await asyncio.gather(*submitting)
    assert [len(directives) for directives in await asyncio.gather(*pulls)] == [2, 2, 2]


async def test_who_has_little_room_is_given_little() -> None:
    engine = Gated()
    pulls = [await engine.waiting(limit=1), await engine.waiting(limit=5)]
    engine.open.clear()
    submitting = engine.submitting(4)
    await until(lambda: engine.room() == 2)
    engine.open.set()
    await asyncio.gather(*submitting)
    assert [len(directives) for directives in await asyncio.gather(*pulls)] == [1, 3]


@pytest.mark.parametrize("failure", [LedgerDown("no connection"), RuntimeError("a bug of ours")])
async def test_a_commit_that_fails_gives_nothing_and_the_pull_waits_on(failure: Exception) -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.failure = failure
    with pytest.raises(type(failure)):
        await engine.submit(OCR)
    assert not pulling.done()
    assert engine.room() == 10
    await engine.submit(OCR, job_id="job-2")
    assert [directive.jobId for directive in await pulling] == ["job-2"]


async def test_a_decision_that_came_too_late_is_made_anew_and_gives_once() -> None:
    engine = Gated()
    ocr = await engine.waiting("ocr")
    await engine.submit(OCR, SIS)
    (got,) = await ocr
    sis = await engine.waiting("sis")
    engine.failure = VersionConflict("somebody was faster")
    await engine.feed(Succeeded(step_id="ocr", attempt_no=got.attempt_no, lease_id=got.lease_id, result={}))
    (directive,) = await sis
    assert directive.lease_id == (await engine.step("sis")).attempt.lease_id


async def test_who_is_cut_off_while_he_commits_takes_no_directive_with_him() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)
    engine.open.set()
    assert [directive.jobId for directive in await pulling] == ["job-1"]


async def test_a_pull_whose_time_is_over_waits_for_what_it_was_promised() -> None:
    engine = Gated()
    pulling = await engine.waiting(seconds=0.05)
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: not engine.in_line())
    assert not pulling.done()
    engine.open.set()
    assert len(await pulling) == 1
    await submitting


async def test_a_pull_whose_time_is_over_and_whose_promise_is_withdrawn_gets_nothing() -> None:
    engine = Gated()
    pulling = await engine.waiting(seconds=0.05)
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: not engine.in_line())
    engine.failure = LedgerDown("no connection")
    engine.open.set()
    assert await pulling == []
    await asyncio.gather(submitting, return_exceptions=True)


async def test_a_service_at_its_cap_gets_its_directive_later_and_the_command_is_accepted() -> None:
    engine = Gated(max_unacked=1)
    first = await engine.waiting()
    await engine.submit(OCR)
    (held,) = await first
    second = await engine.waiting()
    await engine.submit(OCR, job_id="job-2")
    assert (await engine.step("ocr", "job-2")).status is StepStatus.DISPATCHING
    await engine.feed(Ack(step_id="ocr", attempt_no=held.attempt_no, lease_id=held.lease_id))
    assert [directive.jobId for directive in await second] == ["job-2"]


async def test_a_result_is_recorded_although_the_next_service_is_at_its_cap() -> None:
    engine = Gated(max_unacked=1)
    for job_id in ("job-1", "job-2"):
        await engine.submit(OCR, SIS, job_id=job_id)
        (got,) = await engine.dispatcher.pull("ocr", 1, 0)
        waiting = await engine.waiting("sis")
        said = Succeeded(step_id="ocr", attempt_no=got.attempt_no, lease_id=got.lease_id, result={})
        await engine.feed(said, job_id=job_id)
    assert (await engine.step("sis", "job-2")).status is StepStatus.DISPATCHING
    waiting.cancel()


async def test_who_asked_for_lanes_finds_his_rows_in_the_outbox() -> None:
    engine = Gated()
    pulling = await engine.waiting(lanes=frozenset(range(16)))
    await engine.submit(OCR)
    assert len(await pulling) == 1
    assert len(engine.commits) == 2


async def test_nothing_is_promised_to_who_hung_up() -> None:
    engine = Gated()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pulling = await engine.waiting(gone=lambda: gone)
    gone.set_result(None)  # and the pull has not had its turn yet
    assert engine.dispatcher.taker("ocr", "acme") is None
    assert await pulling == []


@pytest.mark.parametrize("how", ["hangs up", "is cut off"])
async def test_what_somebody_is_promised_who_goes_away_is_for_the_next(how: str) -> None:
    engine = Gated()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pulling = await engine.waiting(gone=lambda: gone)
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    if how == "hangs up":
        gone.set_result(None)
    else:
        pulling.cancel()
    await until(lambda: not engine.in_line())
    second = await engine.waiting()
    engine.open.set()
    await submitting
    assert len(await second) == 1


async def test_after_an_outage_directives_are_handed_over_a_few_at_a_time() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.dispatcher._pace.outage()
    await engine.submit(OCR)
    assert len(await pulling) == 1
    assert len(engine.commits) == 2


async def test_a_wake_up_is_for_one_who_can_look_at_once() -> None:
    """One row is promised to the first in line, another is found in the outbox of another process."""
    engine = Gated()
    first, second = await engine.waiting(), await engine.waiting()
    pending, looks = engine.ledger.pending, 0

    async def counted(query: PendingQuery) -> list[OutboxRow]:
        nonlocal looks
        looks += 1
        return await pending(query)

    engine.ledger.pending = counted  # type: ignore[method-assign]
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 19)
    engine.hub.pulls.wake_one("ocr", 0)
    await until(lambda: looks == 1)
    engine.open.set()
    await submitting
    assert len(await first) == 1
    second.cancel()


async def test_a_wake_up_that_comes_to_one_who_is_given_a_directive_is_for_the_next() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    seen = engine.hub.pulls.arrivals("ocr")
    engine.hub.pulls.wake_one("ocr", 0)
    engine.open.set()
    await submitting
    assert len(await pulling) == 1
    assert engine.hub.pulls.arrivals("ocr") == seen + 2


async def test_a_server_that_stops_answers_what_it_has_handed_over() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    engine.hub.close()
    engine.open.set()
    assert len(await pulling) == 1
    await submitting


class TestShares:
    async def test_who_comes_with_many_leaves_room_for_others(self) -> None:
        engine = Gated()
        pulling = await engine.waiting(limit=10)
        engine.open.clear()
        many = [asyncio.create_task(engine.submit(OCR, job_id=f"big-{i}", tenant_id="big")) for i in range(100)]
        few = asyncio.create_task(engine.submit(OCR, job_id="small", tenant_id="small"))
        await until(lambda: engine.room() == 4)
        engine.open.set()
        await asyncio.gather(*many, few)
        assert {"small"} < {directive.jobId for directive in await pulling}
        assert len(await engine.dispatcher.pull("ocr", 100, 0)) == 95, "the others wait in the outbox"

    async def test_one_who_asks_for_one_gives_it_to_whoever_comes_first(self) -> None:
        engine = Gated()
        pulling = await engine.waiting(limit=1)
        await engine.submit(OCR)
        assert len(await pulling) == 1
        assert len(engine.commits) == 1


class TestDoubt:
    """A connection may break after COMMIT was sent, and then nobody knows."""

    async def lose_the_answer(self, engine: Gated, times: int = 0) -> None:
        """The next commit is durable, and who made it is not told; then the ledger can't be asked so many times."""
        commit, load = engine.ledger.commit, engine.ledger.load

        async def lost(decision: Decision) -> None:
            await commit(decision)
            engine.ledger.commit = commit  # type: ignore[method-assign]
            engine.ledger.load = away  # type: ignore[method-assign]
            raise LedgerDown("the connection was lost")

        async def away(*asked: Any, **more: Any) -> Any:
            nonlocal times
            if times:
                times -= 1
                raise LedgerDown("no connection")
            engine.ledger.load = load  # type: ignore[method-assign]
            return await load(*asked, **more)

        engine.ledger.commit = lost  # type: ignore[method-assign]
        with pytest.raises(LedgerDown):
            await engine.submit(OCR)

    @pytest.mark.parametrize("times", [0, 3])
    async def test_what_was_handed_over_all_the_same_goes_to_who_waits(self, times: int) -> None:
        engine = Gated()
        pulling = await engine.waiting()
        await self.lose_the_answer(engine, times)
        (directive,) = await pulling
        step = await engine.step("ocr")
        assert (step.status, step.attempt.lease_id) == (StepStatus.INITIATED, directive.lease_id)

    async def test_it_goes_to_who_comes_next_if_nobody_waits_any_more(self) -> None:
        engine = Gated()
        pulling = await engine.waiting()
        await self.lose_the_answer(engine, 1)
        pulling.cancel()
        await until(lambda: bool(engine.hub.pulls._kept))
        assert await engine.dispatcher.pull("sis", 1, 0) == []
        (directive,) = await engine.dispatcher.pull("ocr", 1, 0)
        assert directive.jobId == "job-1"
        assert await engine.dispatcher.pull("ocr", 1, 0) == []

    async def test_what_was_not_made_durable_is_given_to_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doubts, "FIRST_SECONDS", 0.001)
        monkeypatch.setattr(doubts, "MOST_SECONDS", 0.01)
        engine = Gated()
        pulling = await engine.waiting(seconds=0.5)
        engine.failure = LedgerDown("no connection")
        with pytest.raises(LedgerDown):
            await engine.submit(OCR)
        await until(lambda: not engine.dispatcher._doubts._asking)
        assert await pulling == []

    async def test_what_becomes_durable_a_moment_later_is_found(self) -> None:
        """A server goes on with what it was sent, though the connection is gone."""
        engine = Gated()
        pulling = await engine.waiting()
        commit, late = engine.ledger.commit, []

        async def lost(decision: Decision) -> None:
            late.append(decision)
            raise LedgerDown("the connection was lost")

        engine.ledger.commit = lost  # type: ignore[method-assign]
        with pytest.raises(LedgerDown):
            await engine.submit(OCR)
        engine.ledger.commit = commit  # type: ignore[method-assign]
        await asyncio.sleep(0.05)
        await commit(late[0])
        assert [directive.jobId for directive in await pulling] == ["job-1"]

    async def test_it_goes_to_one_who_is_just_looking_for_something_else(self) -> None:
        engine = Gated()
        first = await engine.waiting()
        looking, go_on, pending = asyncio.Event(), asyncio.Event(), engine.ledger.pending

        async def slow(query: PendingQuery) -> list[OutboxRow]:
            looking.set()
            await go_on.wait()
            return await pending(query)

        await self.lose_the_answer(engine, 1)
        first.cancel()
        engine.ledger.pending = slow  # type: ignore[method-assign]
        second = asyncio.create_task(engine.dispatcher.pull("ocr", 1, WITHIN))
        await looking.wait()
        await until(lambda: bool(engine.hub.pulls._kept))
        go_on.set()
        assert [directive.jobId for directive in await second] == ["job-1"]

    @pytest.mark.parametrize("after_ms", [29_000, 31_000])
    async def test_what_has_run_out_of_time_is_given_to_nobody(self, after_ms: int) -> None:
        engine = Gated()
        pulling = await engine.waiting()
        await self.lose_the_answer(engine, 1)
        pulling.cancel()
        await until(lambda: bool(engine.hub.pulls._kept))
        engine.clock.time += after_ms
        assert len(await engine.dispatcher.pull("ocr", 10, 0)) == (after_ms < 30_000)

    async def test_what_is_fenced_by_the_time_somebody_comes_is_given_to_nobody(self) -> None:
        engine = Gated()
        pulling = await engine.waiting()
        await self.lose_the_answer(engine)
        pulling.cancel()
        await until(lambda: bool(engine.hub.pulls._kept))
        engine.clock.time += 31_000
        await engine.feed(DeadlinePassed(0))
        await engine.tried_again("ocr")
        (directive,) = await engine.dispatcher.pull("ocr", 10, 0)
        assert directive.attempt_no == 2


async def test_all_that_is_passed_on_goes_to_one_who_has_room_for_it() -> None:
    engine = Gated()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = await engine.waiting(gone=lambda: gone)
    engine.open.clear()
    submitting = engine.submitting(3)
    await until(lambda: engine.room() == 7)
    gone.set_result(None)
    await until(lambda: not engine.in_line())
    second = await engine.waiting()
    engine.open.set()
    await asyncio.gather(*submitting, first)
    assert len(await second) == 3


async def test_who_is_cut_off_while_directives_are_written_leaves_them_to_the_next() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    load, loading = engine.ledger.load, asyncio.Event()

    async def stuck(*asked: Any, **more: Any) -> Any:
        loading.set()
        await asyncio.Event().wait()

    engine.ledger.load = stuck  # type: ignore[method-assign]
    await engine.submit(OCR)
    await loading.wait()
    engine.ledger.load = load  # type: ignore[method-assign]
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    assert len(await engine.dispatcher.pull("ocr", 1, 0)) == 1


async def test_who_waits_is_told_that_his_own_directive_can_not_be_written() -> None:
    engine = Gated()
    pulling = await engine.waiting()

    async def away(*asked: Any, **more: Any) -> Any:
        raise LedgerDown("no connection")

    load = engine.ledger.load
    engine.ledger.load = away  # type: ignore[method-assign]
    await engine.submit(OCR)
    with pytest.raises(LedgerDown):
        await pulling
    engine.ledger.load = load  # type: ignore[method-assign]
    assert len(await engine.dispatcher.pull("ocr", 1, 0)) == 1


async def test_one_that_can_not_be_written_costs_no_other() -> None:
    engine = Gated()
    pulling = await engine.waiting()
    engine.open.clear()
    submitting = engine.submitting(3)
    await until(lambda: engine.room() == 7)
    load, broken = engine.ledger.load, True

    async def loads(job_id: str, *asked: Any, **more: Any) -> Any:
        if broken and job_id == "job-2":
            raise LedgerDown("no connection")
        return await load(job_id, *asked, **more)

    engine.ledger.load = loads  # type: ignore[method-assign]
    engine.open.set()
    await asyncio.gather(*submitting)
    assert {directive.jobId for directive in await pulling} == {"job-1", "job-3"}
    broken = False
    assert [directive.jobId for directive in await engine.dispatcher.pull("ocr", 10, 0)] == ["job-2"]
