"""A waiting pull is answered by the commit that requests its step. Nothing is lost or handed over twice."""

import asyncio
from typing import Any

import pytest

from lucius.contract import Directive
from lucius.core.model.counters import unacked_counter
from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Ack, DeadlinePassed, Succeeded
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import StepSpec
from lucius.ports.errors import LedgerDown, VersionConflict
from lucius.ports.outbox import PendingQuery
from lucius.ports.peers import Wake
from lucius.usecases.handover import uncertain_commits
from tests.simulation.clock import in_virtual_time
from tests.support.engine import WITHIN, Engine
from tests.support.until import until

OCR = StepSpec(step_id="ocr", step_type="OCR", service="ocr")
SIS = StepSpec(step_id="sis", step_type="SIS", service="sis")


class BlockableEngine(Engine):
    """An engine whose commits wait until `open` is set, and can be made to fail."""

    def __init__(self, max_unacked: int = 1_000, jitter: float = 0.5) -> None:
        super().__init__(max_unacked=max_unacked, jitter=jitter)
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Exception | None = None
        self.commits: list[Decision] = []
        self._commit = self.ledger.commit
        self.ledger.commit = self._blockable_commit  # type: ignore[method-assign]

    async def _blockable_commit(self, decision: Decision) -> None:
        await self.open.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        await self._commit(decision)
        self.commits.append(decision)

    async def waiting(
        self, service: str = "ocr", limit: int = 10, seconds: float = WITHIN, **more: object
    ) -> "asyncio.Task[list[Directive]]":
        """Start a pull and wait until it is queued; return its task."""
        before = self.in_line(service)
        pulling = asyncio.create_task(self.directive_pulls.pull(service, limit, seconds, **more))  # type: ignore[arg-type]
        await until(lambda: self.in_line(service) > before)
        return pulling

    def in_line(self, service: str = "ocr") -> int:
        return len(self.notifier.pulls.waiting(service))

    def room(self, service: str = "ocr") -> int:
        """Return the number of directives that waiting pulls can still be assigned."""
        return self.notifier.pulls.room(service)

    def submitting(self, n: int = 1) -> "list[asyncio.Task[str]]":
        return [asyncio.create_task(self.submit(OCR, job_id=f"job-{i + 1}", tenant_id=f"tenant-{i}")) for i in range(n)]


async def test_commit_that_requests_a_step_answers_the_waiting_pull() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    await engine.submit(OCR)
    (directive,) = await pulling
    assert len(engine.commits) == 1
    step = await engine.step("ocr")
    assert (step.status, step.attempt.lease_id) == (StepStatus.INITIATED, directive.lease_id)


async def test_job_of_two_steps_takes_three_commits() -> None:
    engine = BlockableEngine()
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


async def test_directive_carries_the_result_recorded_in_the_same_commit() -> None:
    engine = BlockableEngine()
    ocr, sis = await engine.waiting("ocr"), await engine.waiting("sis")
    await engine.submit(OCR, SIS)
    (got,) = await ocr
    await engine.feed(
        Succeeded(step_id="ocr", attempt_no=got.attempt_no, lease_id=got.lease_id, result={"text": "Hello"})
    )
    (following,) = await sis
    assert following.inputs["ocr"].result == {"text": "Hello"}


@in_virtual_time
async def test_pull_is_not_answered_before_the_commit_is_durable() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    await asyncio.sleep(0.01)
    assert not pulling.done()
    engine.open.set()
    assert len(await pulling) == 1
    await submitting


async def test_decisions_made_during_a_commit_answer_one_pull_together() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.open.clear()
    submitting = engine.submitting(3)
    await until(lambda: engine.room() == 7)
    engine.open.set()
    await asyncio.gather(*submitting)
    assert {directive.jobId for directive in await pulling} == {"job-1", "job-2", "job-3"}


async def test_pull_gets_at_most_its_limit_and_the_rest_stays_for_the_next() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting(limit=2)
    engine.open.clear()
    submitting = engine.submitting(5)
    await until(lambda: engine.room() == 0)
    engine.open.set()
    await asyncio.gather(*submitting)
    first = await pulling
    rest = await engine.directive_pulls.pull("ocr", 10, 0)
    assert (len(first), len(rest)) == (2, 3)
    assert len({directive.jobId for directive in (*first, *rest)}) == 5


async def test_waiting_pulls_share_directives_evenly() -> None:
    engine = BlockableEngine()
    pulls = [await engine.waiting() for _ in range(3)]
    engine.open.clear()
    submitting = engine.submitting(6)
    await until(lambda: engine.room() == 24)
    engine.open.set()
    await asyncio.gather(*submitting)
    assert [len(directives) for directives in await asyncio.gather(*pulls)] == [2, 2, 2]


async def test_pull_with_a_small_limit_gets_few_and_a_larger_one_the_rest() -> None:
    engine = BlockableEngine()
    pulls = [await engine.waiting(limit=1), await engine.waiting(limit=5)]
    engine.open.clear()
    submitting = engine.submitting(4)
    await until(lambda: engine.room() == 2)
    engine.open.set()
    await asyncio.gather(*submitting)
    assert [len(directives) for directives in await asyncio.gather(*pulls)] == [1, 3]


@pytest.mark.parametrize("failure", [LedgerDown("no connection"), RuntimeError("a bug of ours")])
async def test_failed_commit_hands_nothing_over_and_the_pull_keeps_waiting(failure: Exception) -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.failure = failure
    with pytest.raises(type(failure)):
        await engine.submit(OCR)
    assert not pulling.done()
    assert engine.room() == 10
    await engine.submit(OCR, job_id="job-2")
    assert [directive.jobId for directive in await pulling] == ["job-2"]


async def test_decision_remade_after_a_version_conflict_hands_over_the_current_lease() -> None:
    engine = BlockableEngine()
    ocr = await engine.waiting("ocr")
    await engine.submit(OCR, SIS)
    (got,) = await ocr
    sis = await engine.waiting("sis")
    engine.failure = VersionConflict("somebody was faster")
    await engine.feed(Succeeded(step_id="ocr", attempt_no=got.attempt_no, lease_id=got.lease_id, result={}))
    (directive,) = await sis
    assert directive.lease_id == (await engine.step("sis")).attempt.lease_id


async def test_submission_cancelled_during_its_commit_still_answers_the_pull() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)
    engine.open.set()
    assert [directive.jobId for directive in await pulling] == ["job-1"]


async def test_timed_out_pull_waits_for_the_directive_assigned_to_it() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting(seconds=0.5)
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: not engine.in_line())
    assert not pulling.done()
    engine.open.set()
    assert len(await pulling) == 1
    await submitting


async def test_timed_out_pull_returns_empty_if_the_commit_of_its_directive_fails() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting(seconds=0.5)
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: not engine.in_line())
    engine.failure = LedgerDown("no connection")
    engine.open.set()
    assert await pulling == []
    await asyncio.gather(submitting, return_exceptions=True)


async def test_command_is_accepted_while_its_service_is_at_its_cap_and_handed_over_after_an_ack() -> None:
    engine = BlockableEngine(max_unacked=1)
    first = await engine.waiting()
    await engine.submit(OCR)
    (held,) = await first
    second = await engine.waiting()
    await engine.submit(OCR, job_id="job-2")
    assert (await engine.step("ocr", "job-2")).status is StepStatus.DISPATCHING
    await engine.feed(Ack(step_id="ocr", attempt_no=held.attempt_no, lease_id=held.lease_id))
    assert [directive.jobId for directive in await second] == ["job-2"]


async def test_result_is_recorded_although_the_next_service_is_at_its_cap() -> None:
    engine = BlockableEngine(max_unacked=1)
    for job_id in ("job-1", "job-2"):
        await engine.submit(OCR, SIS, job_id=job_id)
        (got,) = await engine.directive_pulls.pull("ocr", 1, 0)
        waiting = await engine.waiting("sis")
        said = Succeeded(step_id="ocr", attempt_no=got.attempt_no, lease_id=got.lease_id, result={})
        await engine.feed(said, job_id=job_id)
    assert (await engine.step("sis", "job-2")).status is StepStatus.DISPATCHING
    waiting.cancel()


async def test_pull_for_lanes_claims_its_rows_from_the_outbox_in_a_second_commit() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting(lanes=frozenset(range(16)))
    await engine.submit(OCR)
    assert len(await pulling) == 1
    assert len(engine.commits) == 2


async def test_pull_for_some_tenants_gets_no_directive_of_another_tenant() -> None:
    engine = BlockableEngine()
    bound = await engine.waiting(tenants=frozenset({"tenant-1"}), seconds=60)
    await engine.submit(OCR, job_id="job-1", tenant_id="tenant-0")
    assert not bound.done()
    await engine.submit(OCR, job_id="job-2", tenant_id="tenant-1")
    assert [directive.jobId for directive in await bound] == ["job-2"]
    assert [directive.jobId for directive in await engine.directive_pulls.pull("ocr", 9, 0)] == ["job-1"]


async def test_undelivered_directive_is_kept_from_pulls_for_other_tenants() -> None:
    engine = BlockableEngine()
    bound = await engine.waiting(tenants=frozenset({"tenant-1"}), seconds=60)
    free = await engine.waiting()
    engine.open.clear()
    submitting = engine.submitting(1)
    await until(lambda: engine.room() < 10)
    free.cancel()
    engine.open.set()
    await asyncio.gather(*submitting)
    assert await engine.directive_pulls.pull("ocr", 9, 0, tenants=frozenset({"tenant-1"})) == []
    assert not bound.done()
    assert [directive.jobId for directive in await engine.directive_pulls.pull("ocr", 9, 0)] == ["job-1"]
    bound.cancel()


async def test_a_row_of_an_unknown_tenant_wakes_a_pull_for_all_tenants() -> None:
    """Another process announces only service and lane. A bound pull that finds nothing must not consume the wake-up."""
    engine = BlockableEngine()
    bound = await engine.waiting(tenants=frozenset({"tenant-1"}), seconds=60)
    free = await engine.waiting(seconds=60)
    pulls = engine.notifier.pulls.waiting("ocr")
    engine.notifier.pulls.wake_one("ocr", 0)
    assert [pull.rung for pull in pulls] == [False, True]
    await until(lambda: engine.in_line() == 2)
    free.cancel()
    await until(lambda: engine.in_line() == 1)
    (pull,) = engine.notifier.pulls.waiting("ocr")
    engine.notifier.pulls.wake_one("ocr", 0)
    assert pull.rung
    bound.cancel()


LANE, OWN = 14, frozenset({"acme"})
ANY_LANE = frozenset(range(16))
"""Pulls that name lanes are never given a directive by the commit that creates it."""


async def test_pull_by_a_key_bound_to_tenants_gets_its_rows_from_the_outbox() -> None:
    engine = BlockableEngine()
    bound = await engine.waiting(tenants=OWN)
    assert engine.room() == 0
    await engine.submit(OCR)
    assert [directive.jobId for directive in await bound] == ["job-1"]
    assert len(engine.commits) == 2
    assert engine.commits[-1].counters == {f"pending/ocr/{LANE}": -1, "unacked/ocr/acme": 1}


async def test_directive_that_no_shared_pull_took_is_not_given_to_a_tenants_own_pull() -> None:
    """It counts towards the window of the shared service, which a tenant's own pulls must not fill."""
    engine = BlockableEngine()
    bound = await engine.waiting(tenants=OWN, seconds=60)
    free = await engine.waiting()
    engine.open.clear()
    submitting = asyncio.create_task(engine.submit(OCR))
    await until(lambda: engine.room() < 10)
    free.cancel()
    engine.open.set()
    await submitting
    assert await engine.directive_pulls.pull("ocr", 9, 0, tenants=OWN) == []
    assert not bound.done()
    assert [directive.jobId for directive in await engine.directive_pulls.pull("ocr", 9, 0)] == ["job-1"]
    bound.cancel()


@pytest.mark.parametrize(("full", "open_"), [(OWN, None), (None, OWN)])
async def test_row_that_a_cap_refuses_goes_to_a_waiting_pull_of_the_other_kind(
    full: frozenset[str] | None, open_: frozenset[str] | None
) -> None:
    engine = BlockableEngine(max_unacked=1)
    await engine.submit(OCR)
    assert len(await engine.directive_pulls.pull("ocr", 1, 0, tenants=full)) == 1
    refused = await engine.waiting(tenants=full, lanes=ANY_LANE, seconds=60)
    taking = await engine.waiting(tenants=open_, lanes=ANY_LANE, seconds=60)
    engine.store.hooks.on_commit = lambda decision: None
    await engine.submit(OCR, job_id="job-2")
    engine.notifier.pulls.wake_all("ocr", lambda pull: pull.tenants == full)
    async with asyncio.timeout(WITHIN):
        assert [directive.jobId for directive in await taking] == ["job-2"]
    refused.cancel()


async def test_row_announced_by_another_process_wakes_tenants_own_pulls_if_the_shared_window_is_full() -> None:
    engine = BlockableEngine(max_unacked=1)
    await engine.submit(OCR)
    assert len(await engine.directive_pulls.pull("ocr", 1, 0)) == 1
    await engine.submit(OCR, job_id="job-2", tenant_id="globex")
    assert await engine.directive_pulls.pull("ocr", 1, 0) == []  # learns that the window is full
    free = await engine.waiting(seconds=60)
    bound = await engine.waiting(tenants=OWN, seconds=60)
    engine.store.hooks.on_commit = lambda decision: None  # as if another process made the commit
    await engine.submit(OCR, job_id="job-3")
    engine.notifier.apply_wake(Wake(ready=(("ocr", LANE),)))
    async with asyncio.timeout(WITHIN):
        assert [directive.jobId for directive in await bound] == ["job-3"]
    free.cancel()


async def test_shared_pull_that_finds_its_window_full_wakes_tenants_own_pulls() -> None:
    """Other processes filled the window since it last had room here, and announced a row without its tenant."""
    engine = BlockableEngine(max_unacked=2)
    for job_id in ("job-1", "job-2", "job-3"):
        await engine.submit(OCR, job_id=job_id, tenant_id="globex")
    held = await engine.directive_pulls.pull("ocr", 2, 0)
    assert await engine.directive_pulls.pull("ocr", 1, 0) == []  # learns that the window is full
    for one, taken in zip(held, (1, 0), strict=True):  # one at a time: the window is never half empty
        await engine.feed(Ack(step_id="ocr", attempt_no=one.attempt_no, lease_id=one.lease_id), job_id=one.jobId)
        assert len(await engine.directive_pulls.pull("ocr", 1, 0)) == taken
    free = await engine.waiting(seconds=60)  # finds room, but no row
    bound = await engine.waiting(tenants=OWN, seconds=60)
    engine.store.hooks.on_commit = lambda decision: None  # as if another process made the commits
    await engine.submit(OCR, job_id="job-4", tenant_id="globex")
    assert len(await engine.directive_pulls.pull("ocr", 1, 0)) == 1
    await engine.submit(OCR, job_id="job-5")
    engine.notifier.apply_wake(Wake(ready=(("ocr", LANE),)))
    async with asyncio.timeout(WITHIN):
        assert [directive.jobId for directive in await bound] == ["job-5"]
    free.cancel()


async def test_pick_up_in_another_process_wakes_the_pulls_of_its_window() -> None:
    engine = BlockableEngine(max_unacked=1)
    for job_id in ("job-1", "job-2", "job-3"):
        await engine.submit(OCR, job_id=job_id)
    for tenants in (OWN, None):
        assert len(await engine.directive_pulls.pull("ocr", 1, 0, tenants=tenants)) == 1
    for tenants in (OWN, None):
        await engine.waiting(tenants=tenants, seconds=60)
    pulls = {pull.tenants: pull for pull in engine.notifier.pulls.waiting("ocr")}
    engine.notifier.apply_wake(Wake(picked_up=("ocr/acme",)))
    assert [pulls[tenants].rung for tenants in (OWN, None)] == [True, False]
    engine.notifier.apply_wake(Wake(picked_up=("ocr",)))
    assert pulls[None].rung
    engine.notifier.close()


async def test_row_is_announced_to_other_processes_if_only_pulls_at_their_cap_wait_here() -> None:
    engine = BlockableEngine(max_unacked=1)
    for job_id in ("job-1", "job-2"):
        await engine.submit(OCR, job_id=job_id)
    (held,) = await engine.directive_pulls.pull("ocr", 1, 0, tenants=OWN)
    (row,) = await engine.row_holds.take("ocr", 1)
    await engine.row_holds.put_back([row])
    bound = await engine.waiting(tenants=OWN, seconds=60)
    assert not engine.notifier.awaits(row)
    await engine.feed(Ack(step_id="ocr", attempt_no=held.attempt_no, lease_id=held.lease_id), job_id=held.jobId)
    assert [directive.jobId for directive in await bound] == ["job-2"]
    bound = await engine.waiting(tenants=OWN, seconds=60)
    assert engine.notifier.awaits(row), "the window had room"
    bound.cancel()


@pytest.mark.parametrize(("jitter", "served"), [(0.0, "a3"), (0.9, "b1")])
async def test_tenants_of_a_key_are_served_in_random_order_if_the_window_of_one_is_nearly_full(
    jitter: float, served: str
) -> None:
    engine = BlockableEngine(max_unacked=2, jitter=jitter)
    for job_id in ("a1", "a2", "a3", "b1"):
        await engine.submit(OCR, job_id=job_id, tenant_id=job_id[0])
    held = await engine.directive_pulls.pull("ocr", 9, 0, tenants=frozenset("a"))
    assert (
        await engine.directive_pulls.pull("ocr", 9, 0, tenants=frozenset("a")) == []
    )  # learns that the window is full
    first = held[0]
    await engine.feed(Ack(step_id="ocr", attempt_no=first.attempt_no, lease_id=first.lease_id), job_id=first.jobId)
    assert [one.jobId for one in await engine.directive_pulls.pull("ocr", 9, 0, tenants=frozenset("ab"))] == [served]


async def test_tenant_at_its_cap_does_not_keep_a_key_from_the_directives_of_its_other_tenants() -> None:
    engine = BlockableEngine(max_unacked=1)
    both = frozenset({"a", "b"})
    for number, tenant in enumerate("aab", start=1):
        await engine.submit(OCR, job_id=f"job-{number}", tenant_id=tenant)
    (of_a,) = await engine.directive_pulls.pull("ocr", 9, 0, tenants=frozenset("a"))
    assert await engine.directive_pulls.pull("ocr", 9, 0, tenants=frozenset("a")) == []
    assert [directive.jobId for directive in await engine.directive_pulls.pull("ocr", 9, 0, tenants=both)] == ["job-3"]
    await engine.feed(Ack(step_id="ocr", attempt_no=of_a.attempt_no, lease_id=of_a.lease_id), job_id=of_a.jobId)
    assert [directive.jobId for directive in await engine.directive_pulls.pull("ocr", 9, 0, tenants=both)] == ["job-2"]


@pytest.mark.parametrize("tenants", [OWN, None])
async def test_pick_up_during_a_refused_hand_over_wakes_the_pulls_of_its_window(
    tenants: frozenset[str] | None,
) -> None:
    engine = BlockableEngine()
    counter = unacked_counter("ocr", "acme" if tenants else None)
    pulling = [await engine.waiting(tenants=kind, seconds=60) for kind in (OWN, None)]
    pulls = {pull.tenants: pull for pull in engine.notifier.pulls.waiting("ocr")}
    engine.notifier.relay.clear()
    seen = engine.notifier.pick_ups(counter)
    engine.notifier.freed(counter)
    engine.notifier.hold(counter, seen)
    assert {kind for kind, pull in pulls.items() if pull.rung} == {tenants}
    assert engine.notifier.relay.is_set()
    assert not engine.notifier.is_held(counter)
    engine.notifier.close()
    assert await asyncio.gather(*pulling) == [[], []]


async def test_new_row_wakes_the_pull_bound_to_its_tenant_and_not_one_bound_to_another() -> None:
    engine = BlockableEngine()
    of_globex = await engine.waiting(tenants=frozenset({"globex"}), seconds=60)
    of_acme = await engine.waiting(tenants=OWN, seconds=60)
    await engine.submit(OCR)
    async with asyncio.timeout(WITHIN):
        assert [directive.jobId for directive in await of_acme] == ["job-1"]
    of_globex.cancel()


async def test_rows_of_a_service_at_its_cap_do_not_keep_a_push_bus_from_the_rows_of_others() -> None:
    engine = BlockableEngine(max_unacked=1)
    for job_id in ("job-1", "job-2", "job-3", "job-4"):
        await engine.submit(OCR, job_id=job_id)
    await engine.submit(SIS, job_id="job-5")
    assert len(await engine.directive_pulls.pull("ocr", 1, 0)) == 1
    assert await engine.directive_pulls.pull("ocr", 1, 0) == []  # learns that the window is full
    assert [row.job_id for row in await engine.bus_handover.take_rows(2)] == ["job-5"]


async def test_pull_whose_client_disconnected_is_assigned_nothing() -> None:
    engine = BlockableEngine()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pulling = await engine.waiting(gone=lambda: gone)
    gone.set_result(None)  # the pull has not run since
    assert engine.room() == 0
    assert await pulling == []


@pytest.mark.parametrize("how", ["disconnects", "is cancelled"])
async def test_directive_of_an_abandoned_pull_goes_to_the_next_pull(how: str) -> None:
    engine = BlockableEngine()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pulling = await engine.waiting(gone=lambda: gone)
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    if how == "disconnects":
        gone.set_result(None)
    else:
        pulling.cancel()
    await until(lambda: not engine.in_line())
    second = await engine.waiting()
    engine.open.set()
    await submitting
    assert len(await second) == 1


async def test_pull_after_an_outage_is_handed_rows_from_the_outbox_in_a_second_commit() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.broker.pace.outage()
    await engine.submit(OCR)
    assert len(await pulling) == 1
    assert len(engine.commits) == 2


async def test_wake_up_goes_to_a_pull_without_an_assigned_directive() -> None:
    """One row is assigned to the first waiting pull; another process announces a second row."""
    engine = BlockableEngine()
    first, second = await engine.waiting(), await engine.waiting()
    pending, looks = engine.store.outbox.pending, 0

    async def counted(query: PendingQuery) -> list[OutboxRow]:
        nonlocal looks
        looks += 1
        return await pending(query)

    engine.store.outbox.pending = counted  # type: ignore[method-assign]
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 19)
    engine.notifier.pulls.wake_one("ocr", 0)
    await until(lambda: looks == 1)
    engine.open.set()
    await submitting
    assert len(await first) == 1
    second.cancel()


async def test_wake_up_of_an_answered_pull_is_passed_on() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    seen = engine.notifier.pulls.arrivals("ocr")
    engine.notifier.pulls.wake_one("ocr", 0)
    engine.open.set()
    await submitting
    assert len(await pulling) == 1
    assert engine.notifier.pulls.arrivals("ocr") == seen + 2


async def test_stopping_server_still_answers_pulls_with_assigned_directives() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()
    engine.open.clear()
    (submitting,) = engine.submitting()
    await until(lambda: engine.room() == 9)
    engine.notifier.close()
    engine.open.set()
    assert len(await pulling) == 1
    await submitting


class TestDistributionAmongPulls:
    async def test_flood_of_one_tenant_leaves_room_in_a_pull_for_another_tenant(self) -> None:
        engine = BlockableEngine()
        pulling = await engine.waiting(limit=10)
        engine.open.clear()
        many = [asyncio.create_task(engine.submit(OCR, job_id=f"big-{i}", tenant_id="big")) for i in range(100)]
        few = asyncio.create_task(engine.submit(OCR, job_id="small", tenant_id="small"))
        await until(lambda: engine.room() == 4)
        engine.open.set()
        await asyncio.gather(*many, few)
        assert {"small"} < {directive.jobId for directive in await pulling}
        assert len(await engine.directive_pulls.pull("ocr", 100, 0)) == 95, "the others wait in the outbox"

    async def test_pull_for_one_directive_is_answered_in_a_single_commit(self) -> None:
        engine = BlockableEngine()
        pulling = await engine.waiting(limit=1)
        await engine.submit(OCR)
        assert len(await pulling) == 1
        assert len(engine.commits) == 1


class TestUncertainCommit:
    """If a connection breaks after COMMIT was sent, it is unknown whether the commit succeeded."""

    async def lose_commit_answer(self, engine: BlockableEngine, times: int = 0) -> None:
        """Make the next commit durable without an answer, and then let the ledger fail `times` reads."""
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
    async def test_directive_of_a_durable_commit_reaches_the_waiting_pull_although_the_answer_was_lost(
        self, times: int
    ) -> None:
        engine = BlockableEngine()
        pulling = await engine.waiting()
        await self.lose_commit_answer(engine, times)
        (directive,) = await pulling
        step = await engine.step("ocr")
        assert (step.status, step.attempt.lease_id) == (StepStatus.INITIATED, directive.lease_id)

    async def test_directive_of_an_uncertain_commit_is_kept_for_the_next_pull_of_its_service(self) -> None:
        engine = BlockableEngine()
        pulling = await engine.waiting()
        await self.lose_commit_answer(engine, 1)
        pulling.cancel()
        await until(lambda: engine.notifier.pulls.kept_count > 0)
        assert await engine.directive_pulls.pull("sis", 1, 0) == []
        (directive,) = await engine.directive_pulls.pull("ocr", 1, 0)
        assert directive.jobId == "job-1"
        assert await engine.directive_pulls.pull("ocr", 1, 0) == []

    async def test_directive_of_a_lost_commit_is_never_handed_over(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uncertain_commits, "FIRST_SECONDS", 0.001)
        monkeypatch.setattr(uncertain_commits, "MAX_SECONDS", 0.01)
        engine = BlockableEngine()
        pulling = await engine.waiting(seconds=0.5)
        engine.failure = LedgerDown("no connection")
        with pytest.raises(LedgerDown):
            await engine.submit(OCR)
        await until(lambda: not engine.broker.uncertain_count)
        assert await pulling == []

    @in_virtual_time
    async def test_directive_is_handed_over_if_the_uncertain_commit_becomes_durable_later(self) -> None:
        """A server finishes what it was sent, although the connection is gone."""
        engine = BlockableEngine()
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

    async def test_directive_of_an_uncertain_commit_reaches_a_pull_that_is_reading_the_outbox(self) -> None:
        engine = BlockableEngine()
        first = await engine.waiting()
        looking, go_on, pending = asyncio.Event(), asyncio.Event(), engine.store.outbox.pending

        async def slow(query: PendingQuery) -> list[OutboxRow]:
            looking.set()
            await go_on.wait()
            return await pending(query)

        await self.lose_commit_answer(engine, 1)
        first.cancel()
        engine.store.outbox.pending = slow  # type: ignore[method-assign]
        second = asyncio.create_task(engine.directive_pulls.pull("ocr", 1, WITHIN))
        await looking.wait()
        await until(lambda: engine.notifier.pulls.kept_count > 0)
        go_on.set()
        assert [directive.jobId for directive in await second] == ["job-1"]

    @pytest.mark.parametrize("after_ms", [29_000, 31_000])
    async def test_kept_directive_is_not_handed_over_after_its_ack_deadline(self, after_ms: int) -> None:
        engine = BlockableEngine()
        pulling = await engine.waiting()
        await self.lose_commit_answer(engine, 1)
        pulling.cancel()
        await until(lambda: engine.notifier.pulls.kept_count > 0)
        engine.clock.time += after_ms
        assert len(await engine.directive_pulls.pull("ocr", 10, 0)) == (after_ms < 30_000)

    async def test_kept_directive_of_a_fenced_attempt_is_not_handed_over(self) -> None:
        engine = BlockableEngine()
        pulling = await engine.waiting()
        await self.lose_commit_answer(engine)
        pulling.cancel()
        await until(lambda: engine.notifier.pulls.kept_count > 0)
        engine.clock.time += 31_000
        await engine.feed(DeadlinePassed(0))
        await engine.tried_again("ocr")
        (directive,) = await engine.directive_pulls.pull("ocr", 10, 0)
        assert directive.attempt_no == 2


async def test_directives_of_a_disconnected_pull_go_together_to_one_with_room() -> None:
    engine = BlockableEngine()
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


async def test_directives_of_a_pull_cancelled_during_rendering_go_to_the_next_pull() -> None:
    engine = BlockableEngine()
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
    assert len(await engine.directive_pulls.pull("ocr", 1, 0)) == 1


async def test_pull_raises_if_its_only_directive_cannot_be_rendered_and_the_next_pull_gets_it() -> None:
    engine = BlockableEngine()
    pulling = await engine.waiting()

    async def away(*asked: Any, **more: Any) -> Any:
        raise LedgerDown("no connection")

    load = engine.ledger.load
    engine.ledger.load = away  # type: ignore[method-assign]
    await engine.submit(OCR)
    with pytest.raises(LedgerDown):
        await pulling
    engine.ledger.load = load  # type: ignore[method-assign]
    assert len(await engine.directive_pulls.pull("ocr", 1, 0)) == 1


async def test_directive_that_cannot_be_rendered_delays_no_other_directive() -> None:
    engine = BlockableEngine()
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
    assert [directive.jobId for directive in await engine.directive_pulls.pull("ocr", 10, 0)] == ["job-2"]
