"""What every ledger promises (`lucius.ports.ledger`), whichever store is behind it."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.decision import Decision
from lucius.core.inputs import Cap
from lucius.core.model import (
    AttemptOutcome,
    Blocked,
    BlockedReason,
    Event,
    JobStatus,
    OutboxStatus,
    StepStatus,
)
from lucius.ports.errors import AlreadyAccepted, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import MOST_TENANTS, Drift, JobFilter, Oldest, PendingQuery, idempotency_token
from tests.conformance.builders import (
    PROTOCOL,
    accept,
    attempt,
    command,
    dispatch,
    ended,
    protocol,
    row,
    stale_success,
    step,
    then,
)
from tests.conformance.conftest import FullLedger


async def together(ledger: FullLedger, *decisions: Decision) -> list[BaseException | None]:
    """Commit in one turn of the loop, so that a store which groups commits groups these."""
    return await asyncio.gather(*(ledger.commit(decision) for decision in decisions), return_exceptions=True)


async def commit_all(ledger: FullLedger, *decisions: Decision) -> None:
    for decision in decisions:
        await ledger.commit(decision)


async def finish(ledger: FullLedger, decision: Decision, status: JobStatus = JobStatus.SUCCEEDED) -> Decision:
    done = then(decision, status=status, active=(), due_at=None, blocked=None, completed_at=9_000)
    await ledger.commit(done)
    return done


class TestCommitAndLoad:
    async def test_a_job_is_loaded_as_it_was_committed(self, ledger: FullLedger) -> None:
        decision = dispatch("j1")
        await ledger.commit(decision)
        view = await ledger.load("j1")
        assert view is not None
        assert view.job == decision.job
        assert view.protocol == PROTOCOL
        assert view.steps == {"ocr": decision.steps[0]}

    async def test_a_job_that_was_never_committed_is_not_found(self, ledger: FullLedger) -> None:
        assert await ledger.load("j1") is None
        assert await ledger.job("j1") is None
        assert await ledger.attempts("j1") == []
        assert await ledger.events("j1", 0, 10) == []
        assert await ledger.quarantined("j1") == []

    async def test_a_later_decision_replaces_head_and_steps(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        working = step("j1", status=StepStatus.PROCESSING, updated_at=2_000)
        second = then(first, status=JobStatus.IN_PROGRESS, steps=(working,), due_at=7_000)
        await commit_all(ledger, first, second)
        view = await ledger.load("j1")
        assert view is not None
        assert view.job == second.job
        assert view.steps == {"ocr": working}

    async def test_load_gives_the_active_steps_and_the_named_one(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        done, running = step("j1", status=StepStatus.SUCCEEDED), step("j1", "embedding")
        await commit_all(ledger, first, then(first, active=("embedding",), steps=(done, running)))
        active, named = await ledger.load("j1"), await ledger.load("j1", ["ocr"])
        unknown = await ledger.load("j1", ["sis"])
        assert active is not None
        assert named is not None
        assert unknown is not None
        assert active.steps == unknown.steps == {"embedding": running}
        assert named.steps == {"ocr": done, "embedding": running}

    async def test_a_finished_job_still_answers_for_each_of_its_steps(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        done = step("j1", status=StepStatus.SUCCEEDED, result={"pages": 3}, artifact_refs=["blob://a"])
        second = then(first, status=JobStatus.SUCCEEDED, active=(), steps=(done,))
        await commit_all(ledger, first, second)
        view, bare = await ledger.load("j1", ["ocr"]), await ledger.load("j1")
        assert view is not None
        assert bare is not None
        assert view.job == second.job
        assert view.steps == {"ocr": done}
        assert bare.steps == {}

    async def test_the_reader_gives_every_step_that_has_started(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        done, running = step("j1", status=StepStatus.SUCCEEDED), step("j1", "embedding")
        await commit_all(ledger, first, then(first, active=("embedding",), steps=(done, running)))
        view = await ledger.job("j1")
        assert view is not None
        assert view.steps == {"ocr": done, "embedding": running}

    async def test_what_was_loaded_does_not_change_under_its_reader(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await ledger.commit(first)
        before, whole = await ledger.load("j1"), await ledger.job("j1")
        await ledger.commit(then(first, steps=(step("j1", status=StepStatus.PROCESSING),)))
        assert before is not None
        assert whole is not None
        assert before.steps["ocr"].status is whole.steps["ocr"].status is StepStatus.DISPATCHING

    async def test_the_command_survives_many_changes_of_the_head(self, ledger: FullLedger) -> None:
        asked = command("j1", payload={"ocr": {"text": 'Grüße, "x" \\ \u2028'}}, doc_id="d1", target={"type": "t"})
        decision = accept("j1", asked=asked)
        await ledger.commit(decision)
        for n in range(3):
            decision = then(decision, updated_at=2_000 + n)
            await ledger.commit(decision)
        decision = await finish(ledger, decision)
        view = await ledger.load("j1")
        assert view is not None
        assert view.job == decision.job
        assert view.job.command == asked

    async def test_a_job_that_ended_can_live_again_in_a_new_run(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await ledger.commit(first)
        done = await finish(ledger, first, JobStatus.FAILED_FINAL)
        again = step("j1", attempt=attempt("j1", attempt_no=2))
        await ledger.commit(
            then(done, status=JobStatus.DISPATCHING, run_no=2, active=("ocr",), steps=(again,), due_at=50)
        )
        view = await ledger.load("j1")
        assert view is not None
        assert view.steps == {"ocr": again}
        assert await ledger.due(50, 10) == ["j1"]

    async def test_a_decision_without_changes_needs_no_commit(self, ledger: FullLedger) -> None:
        decision = accept("j1")
        await ledger.commit(Decision(job=decision.job, replies=(), protocol=PROTOCOL, creates=True, changes=False))
        assert await ledger.load("j1") is None

    async def test_a_job_keeps_the_protocol_it_was_accepted_with(self, ledger: FullLedger) -> None:
        first, newer = protocol(1, title="first"), protocol(2, title="newer")
        live, finished = accept("live", pinned=first), accept("finished", pinned=first)
        await commit_all(ledger, live, finished)
        await finish(ledger, finished)
        await ledger.commit(accept("later", pinned=newer))
        for job_id, pinned in (("live", first), ("finished", first), ("later", newer)):
            view = await ledger.load(job_id)
            assert view is not None
            assert view.protocol == pinned

    async def test_a_commit_takes_a_turn_of_the_loop(self, ledger: FullLedger) -> None:
        waiting = asyncio.ensure_future(ledger.commit(accept("j1")))
        assert await ledger.load("j1") is None
        await waiting
        assert await ledger.load("j1") is not None

    async def test_a_commit_whose_caller_is_cancelled_stands(self, ledger: FullLedger) -> None:
        waiting = asyncio.ensure_future(ledger.commit(accept("j1")))
        await asyncio.sleep(0)
        waiting.cancel()
        await ledger.commit(accept("j2"))
        assert waiting.cancelled()
        assert await ledger.load("j1") is not None
        assert await ledger.load("j2") is not None


class TestRefusals:
    async def test_a_decision_on_an_old_version_is_refused(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await commit_all(ledger, first, then(first, updated_at=2_000))
        with pytest.raises(VersionConflict):
            await ledger.commit(then(first, updated_at=3_000))
        view = await ledger.load("j1")
        assert view is not None
        assert view.job.updated_at == 2_000

    async def test_a_decision_on_a_job_that_is_not_there_is_refused(self, ledger: FullLedger) -> None:
        with pytest.raises(VersionConflict):
            await ledger.commit(then(accept("j1")))
        assert await ledger.load("j1") is None

    async def test_a_job_is_created_once(self, ledger: FullLedger) -> None:
        await ledger.commit(accept("j1"))
        with pytest.raises(VersionConflict):
            await ledger.commit(accept("j1", asked=command("j1", idempotency_key="another")))

    async def test_of_two_decisions_on_one_version_the_first_wins(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await ledger.commit(first)
        won, lost = await together(ledger, then(first, updated_at=2_000), then(first, updated_at=3_000))
        assert won is None
        assert isinstance(lost, VersionConflict)
        view = await ledger.load("j1")
        assert view is not None
        assert view.job.updated_at == 2_000

    async def test_a_refused_decision_leaves_nothing_behind(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await commit_all(ledger, first, then(first))
        late = then(
            first,
            event_seq=3,
            status=JobStatus.FAILED_FINAL,
            steps=(step("j1", status=StepStatus.FAILED_FINAL),),
            attempts=(ended("j1", 1),),
            outbox=(row(first.steps[0], status=OutboxStatus.WITHDRAWN),),
            events=(Event("j1", 3, "JOB_FAILED", 2_000),),
            quarantined=(stale_success("j1", 1),),
            counters={"jobs": 7},
        )
        with pytest.raises(VersionConflict):
            await ledger.commit(late)
        view = await ledger.job("j1")
        assert view is not None
        assert view.steps == {"ocr": first.steps[0]}
        assert await ledger.attempts("j1") == []
        assert await ledger.quarantined("j1") == []
        assert await ledger.counters("") == {}
        assert [event.seq for event in await ledger.events("j1", 0, 10)] == [1, 2]
        assert len(await ledger.pending(PendingQuery(limit=10, now=5_000))) == 1

    async def test_a_refusal_fails_nobody_else_in_the_same_group(self, ledger: FullLedger) -> None:
        first = dispatch("moved")
        await commit_all(ledger, first, then(first), accept("held", asked=command("held", idempotency_key="k")))
        outcomes = await together(
            ledger,
            accept("a"),
            then(first),
            accept("dup", asked=command("dup", idempotency_key="k")),
            accept("over", counters={"jobs": 1}, caps=(Cap("jobs", 0),)),
            accept("z"),
        )
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            VersionConflict,
            AlreadyAccepted,
            LimitReached,
            type(None),
        ]
        assert [await ledger.load(job_id) is not None for job_id in ("a", "dup", "over", "z")] == [
            True,
            False,
            False,
            True,
        ]

    async def test_decisions_that_build_on_each_other_fit_one_group(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        sent = row(first.steps[0], status=OutboxStatus.SENT)
        second = then(first, due_at=3_000, outbox=(sent,), steps=(step("j1", status=StepStatus.INITIATED),))
        third = then(second, due_at=4_000, blocked=Blocked(BlockedReason.RESULT, 1))
        assert await together(ledger, first, second, third) == [None, None, None]
        view = await ledger.load("j1")
        assert view is not None
        assert view.job == third.job
        assert view.steps["ocr"].status is StepStatus.INITIATED
        assert await ledger.pending(PendingQuery(limit=10, now=5_000)) == []
        assert await ledger.due(4_000, 10) == ["j1"]

    async def test_a_listener_hears_of_every_durable_decision_and_of_no_other(self, ledger: FullLedger) -> None:
        heard: list[Decision] = []
        ledger.on_commit = heard.append
        first = accept("j1")
        await together(ledger, first, accept("j1"), accept("j2"))
        assert [decision.job.job_id for decision in heard] == ["j1", "j2"]

    async def test_a_listener_that_fails_breaks_no_commit(self, ledger: FullLedger) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("listener")

        ledger.on_commit = fail
        ledger.on_flush = fail
        assert await together(ledger, accept("j1"), accept("j2")) == [None, None]
        assert await ledger.load("j2") is not None

    async def test_the_size_of_each_group_is_reported(self, ledger: FullLedger) -> None:
        sizes: list[int] = []
        ledger.on_flush = lambda size, seconds: sizes.append(size)
        await together(ledger, *(accept(f"j{n}") for n in range(7)))
        assert sizes == [7]

    async def test_a_closed_ledger_refuses_and_had_finished_what_waited(self, ledger: FullLedger) -> None:
        waiting = asyncio.ensure_future(ledger.commit(accept("j1")))
        await asyncio.sleep(0)
        await ledger.close()
        await waiting
        with pytest.raises(LedgerError):
            await ledger.commit(accept("j2"))


class TestIdempotency:
    async def test_a_key_names_the_job_that_holds_it(self, ledger: FullLedger) -> None:
        asked = command("j1", idempotency_key="order-7")
        await ledger.commit(accept("j1", asked=asked))
        held = await ledger.accepted("acme", "key:order-7")
        assert held is not None
        assert (held.job_id, held.idempotency_hash) == ("j1", "hash-of-j1")
        assert await ledger.accepted("acme", "key:order-8") is None

    async def test_without_a_key_the_hash_is_the_key(self, ledger: FullLedger) -> None:
        asked = command("j1", idempotency_hash="abc")
        assert idempotency_token(asked) == "sha256:abc"
        await ledger.commit(accept("j1", asked=asked))
        held = await ledger.accepted("acme", "sha256:abc")
        assert held is not None
        assert held.job_id == "j1"
        with pytest.raises(AlreadyAccepted):
            await ledger.commit(accept("j2", asked=command("j2", idempotency_hash="abc")))

    async def test_a_taken_key_is_refused_and_names_job_and_hash(self, ledger: FullLedger) -> None:
        await ledger.commit(accept("j1", asked=command("j1", idempotency_key="k")))
        with pytest.raises(AlreadyAccepted) as refusal:
            await ledger.commit(accept("j2", asked=command("j2", idempotency_key="k")))
        assert (refusal.value.job_id, refusal.value.idempotency_hash) == ("j1", "hash-of-j1")

    async def test_a_key_taken_by_an_earlier_one_in_the_same_group_is_refused(self, ledger: FullLedger) -> None:
        decisions = [accept(f"j{n}", asked=command(f"j{n}", idempotency_key="k")) for n in range(3)]
        first, second, third = await together(ledger, *decisions)
        assert first is None
        for loser in (second, third):
            assert isinstance(loser, AlreadyAccepted)
            assert loser.job_id == "j0"
        assert (await ledger.jobs(JobFilter(), 10, None)).jobs == [decisions[0].job]

    async def test_tenants_do_not_share_keys(self, ledger: FullLedger) -> None:
        ours, theirs = command("j1", idempotency_key="k"), command("j2", idempotency_key="k", tenant_id="globex")
        await commit_all(ledger, accept("j1", asked=ours), accept("j2", asked=theirs))
        held = await ledger.accepted("globex", "key:k")
        assert held is not None
        assert held.job_id == "j2"

    async def test_a_key_is_kept_after_its_job_has_ended(self, ledger: FullLedger) -> None:
        first = accept("j1", asked=command("j1", idempotency_key="k"))
        await ledger.commit(first)
        await finish(ledger, first)
        with pytest.raises(AlreadyAccepted):
            await ledger.commit(accept("j2", asked=command("j2", idempotency_key="k")))

    async def test_a_duplicate_is_told_so_even_when_the_limit_is_reached(self, ledger: FullLedger) -> None:
        caps = (Cap("jobs", 1),)
        await ledger.commit(accept("j1", asked=command("j1", idempotency_key="k"), counters={"jobs": 1}, caps=caps))
        with pytest.raises(AlreadyAccepted):
            await ledger.commit(accept("j2", asked=command("j2", idempotency_key="k"), counters={"jobs": 1}, caps=caps))


class TestCounters:
    async def test_counters_move_with_the_commits_and_vanish_at_zero(self, ledger: FullLedger) -> None:
        first = accept("j1", counters={"jobs": 1, "jobs/tenant/acme": 1})
        await commit_all(ledger, first, accept("j2", counters={"jobs": 1}))
        assert await ledger.counters("") == {"jobs": 2, "jobs/tenant/acme": 1}
        await ledger.commit(then(first, counters={"jobs": -1, "jobs/tenant/acme": -1}))
        assert await ledger.counters("") == {"jobs": 1}

    async def test_only_those_asked_for_are_told(self, ledger: FullLedger) -> None:
        moved = {"jobs": 1, "jobs/tenant/acme": 2, "jobs/mode/REGULAR": 3, "unacked/ocr": 4, "unacked/ocr0": 5}
        await ledger.commit(accept("j1", counters=moved))
        assert await ledger.counters() == {}
        assert await ledger.counters("jobs", "unacked/ocr", "unacked/sis") == {"jobs": 1, "unacked/ocr": 4}
        assert await ledger.counters("unacked/", "unacked/ocr") == {"unacked/ocr": 4, "unacked/ocr0": 5}
        assert await ledger.counters("jobs/", "pending/") == {"jobs/tenant/acme": 2, "jobs/mode/REGULAR": 3}
        assert await ledger.counters("") == moved

    async def test_a_cap_admits_up_to_its_limit(self, ledger: FullLedger) -> None:
        caps = (Cap("jobs", 2),)
        await ledger.commit(accept("j1", counters={"jobs": 1}, caps=caps))
        await ledger.commit(accept("j2", counters={"jobs": 1}, caps=caps))
        with pytest.raises(LimitReached) as refusal:
            await ledger.commit(accept("j3", counters={"jobs": 1}, caps=caps))
        assert (refusal.value.counter, refusal.value.limit) == ("jobs", 2)
        assert await ledger.counters("") == {"jobs": 2}

    async def test_a_cap_counts_the_earlier_ones_in_the_same_group(self, ledger: FullLedger) -> None:
        caps = (Cap("jobs", 3),)
        outcomes = await together(ledger, *(accept(f"j{n}", counters={"jobs": 1}, caps=caps) for n in range(5)))
        assert outcomes[:3] == [None] * 3
        assert all(isinstance(outcome, LimitReached) for outcome in outcomes[3:])
        assert await ledger.counters("") == {"jobs": 3}

    async def test_one_who_leaves_makes_room_in_the_same_group(self, ledger: FullLedger) -> None:
        caps = (Cap("jobs", 1),)
        first = accept("j1", counters={"jobs": 1}, caps=caps)
        await ledger.commit(first)
        leave = then(first, status=JobStatus.CANCELLED, counters={"jobs": -1})
        assert await together(ledger, leave, accept("j2", counters={"jobs": 1}, caps=caps)) == [None, None]
        assert await ledger.counters("") == {"jobs": 1}

    async def test_caps_hold_for_changes_of_a_job_too(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await ledger.commit(first)
        with pytest.raises(LimitReached):
            await ledger.commit(then(first, counters={"unacked/ocr": 1}, caps=(Cap("unacked/ocr", 0),)))


class TestDue:
    async def test_the_most_overdue_come_first(self, ledger: FullLedger) -> None:
        for job_id, due_at in (("b", 200), ("a", 100), ("c", 300), ("none", None)):
            await ledger.commit(accept(job_id, due_at=due_at))
        assert await ledger.due(250, 10) == ["a", "b"]
        assert await ledger.due(300, 2) == ["a", "b"]
        assert await ledger.due(99, 10) == []

    async def test_jobs_due_at_one_instant_come_in_order_of_acceptance(self, ledger: FullLedger) -> None:
        for job_id in ("z", "m", "a"):
            await ledger.commit(accept(job_id, due_at=100))
        assert await ledger.due(100, 10) == ["z", "m", "a"]

    async def test_a_moved_clock_is_followed(self, ledger: FullLedger) -> None:
        first = accept("j1", due_at=100)
        await commit_all(ledger, first, then(first, due_at=500))
        assert await ledger.due(499, 10) == []
        assert await ledger.due(500, 10) == ["j1"]

    async def test_a_finished_job_is_never_due(self, ledger: FullLedger) -> None:
        first = accept("j1", due_at=100)
        await commit_all(ledger, first, then(first, status=JobStatus.SUCCEEDED))
        assert await ledger.due(1_000, 10) == []


class TestPending:
    async def ids(self, ledger: FullLedger, query: PendingQuery) -> list[str]:
        return [found.job_id for found in await ledger.pending(query)]

    async def test_the_oldest_come_first_over_all_services(self, ledger: FullLedger) -> None:
        await commit_all(
            ledger, dispatch("z", service="sis"), dispatch("m"), dispatch("a", service="sis"), dispatch("b")
        )
        assert await self.ids(ledger, PendingQuery(limit=10, now=5_000)) == ["z", "m", "a", "b"]
        assert await self.ids(ledger, PendingQuery(limit=3, now=5_000)) == ["z", "m", "a"]

    async def test_a_row_is_given_back_whole(self, ledger: FullLedger) -> None:
        decision = dispatch("j1", lane=7)
        await ledger.commit(decision)
        assert await ledger.pending(PendingQuery(limit=10, now=5_000)) == list(decision.outbox)

    async def test_rows_are_found_by_service_and_lane(self, ledger: FullLedger) -> None:
        await commit_all(ledger, dispatch("a", lane=1), dispatch("b", lane=2), dispatch("c", lane=1, service="sis"))
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000, service="ocr")) == ["a", "b"]
        assert sorted(await self.ids(ledger, PendingQuery(limit=9, now=5_000, lanes=frozenset({1})))) == ["a", "c"]
        others = PendingQuery(limit=1, now=5_000, except_services=frozenset({"ocr"}))
        assert await self.ids(ledger, others) == ["c"]
        both = PendingQuery(limit=9, now=5_000, service="ocr", lanes=frozenset({2, 9}))
        assert await self.ids(ledger, both) == ["b"]
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000, lanes=frozenset())) == []
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000, service="nobody")) == []

    async def test_a_row_waits_for_its_next_attempt(self, ledger: FullLedger) -> None:
        await commit_all(ledger, dispatch("later", next_attempt_at=6_000), dispatch("now"))
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_999)) == ["now"]
        assert await self.ids(ledger, PendingQuery(limit=9, now=6_000)) == ["now", "later"]
        assert await self.ids(ledger, PendingQuery(limit=9, now=6_000, later=False)) == ["now"]

    async def test_rows_written_by_a_clock_ahead_of_ours_are_ready_all_the_same(self, ledger: FullLedger) -> None:
        await ledger.commit(dispatch("j1", created_at=99_000))
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000)) == ["j1"]

    async def test_claimed_rows_are_asked_for_apart(self, ledger: FullLedger) -> None:
        await commit_all(ledger, dispatch("claimed", claimed_at=4_000), dispatch("free"))
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000)) == ["free"]
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000, claimed=True)) == ["claimed"]
        other = PendingQuery(limit=9, now=5_000, claimed=True, service="sis")
        assert await self.ids(ledger, other) == []

    async def test_a_claimed_row_that_is_let_go_is_free_again_in_its_old_place(self, ledger: FullLedger) -> None:
        first = dispatch("first", claimed_at=4_000)
        await commit_all(ledger, first, dispatch("second"))
        await ledger.commit(then(first, outbox=(row(first.steps[0]),)))
        assert await self.ids(ledger, PendingQuery(limit=9, now=5_000)) == ["first", "second"]

    async def test_a_row_used_again_for_the_next_attempt_stays_one_row(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        await ledger.commit(first)
        again = row(first.steps[0], attempt_no=2, lease_id="lease-2")
        await ledger.commit(then(first, outbox=(again,)))
        assert await ledger.pending(PendingQuery(limit=9, now=5_000)) == [again]

    @pytest.mark.parametrize("status", [OutboxStatus.SENT, OutboxStatus.FAILED_FINAL, OutboxStatus.WITHDRAWN])
    async def test_a_settled_row_is_not_pending(self, ledger: FullLedger, status: OutboxStatus) -> None:
        first = dispatch("j1")
        await ledger.commit(first)
        await ledger.commit(then(first, outbox=(row(first.steps[0], status=status, settled_at=2_000),)))
        assert await ledger.pending(PendingQuery(limit=9, now=5_000)) == []
        assert await ledger.backlog(5_000) == {}

    async def test_the_backlog_tells_the_oldest_of_each_service_that_is_due(self, ledger: FullLedger) -> None:
        await commit_all(
            ledger,
            dispatch("a", created_at=300),
            dispatch("b", created_at=200, next_attempt_at=9_000),
            dispatch("c", created_at=400, service="sis"),
            dispatch("d", created_at=100, service="sis", claimed_at=500),
        )
        assert await ledger.backlog(8_999) == {"ocr": Oldest(300), "sis": Oldest(400)}
        assert await ledger.backlog(9_000) == {"ocr": Oldest(200), "sis": Oldest(400)}
        assert await ledger.backlog(8_999, "ocr") == {"ocr": Oldest(300)}
        assert await ledger.backlog(9_000, "ocr") == {"ocr": Oldest(200)}
        assert await ledger.backlog(9_000, "translate") == {}

    @pytest.mark.parametrize("service", ["ocr", None])
    async def test_a_backlog_of_very_many_tenants_says_that_older_ones_are_possible(
        self, ledger: FullLedger, service: str | None
    ) -> None:
        names = [f"tenant-{n:04}" for n in range(MOST_TENANTS + 1)]
        rows = [of_tenant(name, 1, created_at=5_000 - n)[0] for n, name in enumerate(names)]
        await together(ledger, *rows[:9])
        assert await ledger.backlog(9_000, service) == {"ocr": Oldest(5_000 - 8)}
        await together(ledger, *rows[9:])
        found = (await ledger.backlog(9_000, service))["ocr"]
        assert found.older_possible == (found.at > 5_000 - MOST_TENANTS)

    async def test_what_waits_for_its_next_attempt_is_not_old(self, ledger: FullLedger) -> None:
        await ledger.commit(dispatch("a", created_at=300, next_attempt_at=9_000))
        assert await ledger.backlog(8_000) == {}


def of_tenant(tenant_id: str, n: int, **fields: Any) -> list[Decision]:
    """So many jobs of a tenant, each with a row that is ready."""
    asked = [command(f"{tenant_id}-{i}", tenant_id=tenant_id) for i in range(n)]
    return [dispatch(f"{tenant_id}-{i}", asked=asked[i], tenant_id=tenant_id, **fields) for i in range(n)]


class TestFairTurns:
    """Of `Outbox.pending`: who shares a service, or a lane of it, takes turns."""

    async def served(self, ledger: FullLedger, limit: int, **wanted: Any) -> list[str]:
        query = PendingQuery(**{"limit": limit, "now": 5_000, "service": "ocr", **wanted})
        return [found.job_id for found in await ledger.pending(query)]

    async def tenants(self, ledger: FullLedger, limit: int, **wanted: Any) -> list[str]:
        return [job_id.split("-")[0] for job_id in await self.served(ledger, limit, **wanted)]

    async def test_a_long_backlog_does_not_hide_the_few_rows_behind_it(self, ledger: FullLedger) -> None:
        await together(ledger, *of_tenant("long", 1_000))
        await together(ledger, *of_tenant("b", 2), *of_tenant("c", 1))
        served = await self.served(ledger, 7)
        assert sorted(served[:3]) == ["b-0", "c-0", "long-0"]
        assert sorted(served[3:5]) == ["b-1", "long-1"]
        assert served[5:] == ["long-2", "long-3"]

    async def test_each_tenants_oldest_come_first(self, ledger: FullLedger) -> None:
        rows = [row for pair in zip(of_tenant("a", 5), of_tenant("b", 5), strict=True) for row in pair]
        await commit_all(ledger, *rows)
        served = await self.served(ledger, 10)
        assert [job_id for job_id in served if job_id[0] == "a"] == [f"a-{i}" for i in range(5)]
        assert [job_id for job_id in served if job_id[0] == "b"] == [f"b-{i}" for i in range(5)]

    async def test_nobody_is_asked_twice_before_everybody_was_asked_once(self, ledger: FullLedger) -> None:
        await together(ledger, *of_tenant("a", 50), *of_tenant("b", 50), *of_tenant("c", 50))
        one_by_one = [(await self.tenants(ledger, 1))[0] for _ in range(9)]
        for turn in range(0, 9, 3):
            assert sorted(one_by_one[turn : turn + 3]) == ["a", "b", "c"]
        two_by_two = [tenant for _ in range(6) for tenant in await self.tenants(ledger, 2)]
        assert Counter(two_by_two) == {"a": 4, "b": 4, "c": 4}

    async def test_a_tenant_who_comes_later_gets_the_next_turn_but_few(self, ledger: FullLedger) -> None:
        await together(ledger, *of_tenant("a", 500))
        await self.served(ledger, 10)
        await together(ledger, *of_tenant("b", 1))
        assert "b-0" in [*await self.served(ledger, 1), *await self.served(ledger, 1)]

    async def test_tenants_take_turns_inside_a_lane(self, ledger: FullLedger) -> None:
        others = (*of_tenant("far", 20, lane=9), *of_tenant("b", 2, lane=4))
        await together(ledger, *of_tenant("a", 20, lane=4), *others)
        in_lane = [(await self.tenants(ledger, 1, lanes=frozenset({4})))[0] for _ in range(4)]
        assert Counter(in_lane) == {"a": 2, "b": 2}
        assert await self.tenants(ledger, 2, lanes=frozenset({9})) == ["far", "far"]

    async def test_a_lane_is_not_served_out_of_turn_for_another(self, ledger: FullLedger) -> None:
        await together(ledger, *of_tenant("a", 20, lane=1), *of_tenant("b", 20, lane=1), *of_tenant("m", 20, lane=2))
        served = []
        for _ in range(8):
            served += await self.tenants(ledger, 1, lanes=frozenset({1}))
            await self.tenants(ledger, 1, lanes=frozenset({2}))
        assert Counter(served) == {"a": 4, "b": 4}

    async def test_who_waits_for_a_backoff_is_passed_over_until_it_is_due(self, ledger: FullLedger) -> None:
        await together(ledger, *of_tenant("a", 3), *of_tenant("late", 3, next_attempt_at=6_000))
        assert await self.tenants(ledger, 9) == ["a"] * 3
        assert await self.tenants(ledger, 9, now=5_999) == ["a"] * 3
        assert await self.tenants(ledger, 5, now=6_000) == ["a"] * 3 + ["late"] * 2
        first = of_tenant("late", 1)[0]
        await ledger.commit(then(first, outbox=(row(first.steps[0], tenant_id="late"),)))
        assert "late-0" in await self.served(ledger, 2)

    async def test_a_look_in_vain_is_no_last_look(self, ledger: FullLedger) -> None:
        soon, (late,) = of_tenant("a", 1, next_attempt_at=6_000)[0], of_tenant("a", 2, next_attempt_at=9_000)[1:]
        await together(ledger, soon, late)
        await ledger.commit(then(soon, outbox=(replace(soon.outbox[0], status=OutboxStatus.SENT),)))
        assert await self.served(ledger, 9, now=7_000) == []
        assert await self.served(ledger, 9, now=9_000) == ["a-1"]

    async def test_whoever_has_nothing_left_is_passed_over(self, ledger: FullLedger) -> None:
        gone = of_tenant("gone", 2)
        await together(ledger, *gone, *of_tenant("a", 4))
        sent = [then(one, outbox=(replace(one.outbox[0], status=OutboxStatus.SENT),)) for one in gone]
        await together(ledger, *sent)
        assert [await self.tenants(ledger, 1) for _ in range(3)] == [["a"]] * 3
        await ledger.commit(of_tenant("gone", 3)[2])
        assert Counter(await self.tenants(ledger, 2)) == {"a": 1, "gone": 1}

    async def test_a_claimed_row_that_is_let_go_has_its_tenants_turn_again(self, ledger: FullLedger) -> None:
        (claimed,) = of_tenant("b", 1, claimed_at=4_000)
        await together(ledger, claimed, *of_tenant("a", 4))
        assert await self.tenants(ledger, 2) == ["a", "a"]
        await ledger.commit(then(claimed, outbox=(replace(claimed.outbox[0], claimed_at=None),)))
        assert Counter(await self.tenants(ledger, 2)) == {"a": 1, "b": 1}

    async def test_rows_in_hand_are_left_out_and_cost_nobody_a_turn(self, ledger: FullLedger) -> None:
        held = of_tenant("a", 40)
        await together(ledger, *held, *of_tenant("b", 40))
        in_hand = frozenset(one.outbox[0].outbox_id for one in held[:30])
        assert sorted(await self.served(ledger, 2, except_rows=in_hand)) == ["a-30", "b-0"]
        one_by_one = [(await self.tenants(ledger, 1, except_rows=in_hand))[0] for _ in range(8)]
        assert Counter(one_by_one) == {"a": 4, "b": 4}
        everything = await self.served(ledger, 80, except_rows=in_hand)
        assert len(everything) == 50

    async def test_a_tenant_with_all_its_rows_in_hand_is_not_forgotten(self, ledger: FullLedger) -> None:
        (held,) = of_tenant("a", 1)
        await ledger.commit(held)
        assert await self.served(ledger, 9, except_rows=frozenset({held.outbox[0].outbox_id})) == []
        assert await self.served(ledger, 9) == ["a-0"]

    async def test_without_a_service_the_services_take_turns_too(self, ledger: FullLedger) -> None:
        await together(ledger, *of_tenant("a", 300), *of_tenant("b", 1))
        await ledger.commit(dispatch("other", service="sis"))
        served = await self.served(ledger, 3, service=None)
        assert sorted(served) == ["a-0", "b-0", "other"]
        one_by_one = [(await self.served(ledger, 1, service=None))[0] for _ in range(4)]
        assert {"other", "b-0"} <= set(one_by_one)


class TestDrift:
    async def without_row(self, ledger: FullLedger, job_id: str) -> Decision:
        lost = dispatch(job_id)
        lost = Decision(job=lost.job, replies=(), protocol=PROTOCOL, creates=True, steps=lost.steps)
        await ledger.commit(lost)
        return lost

    async def test_a_job_that_waits_in_the_outbox_has_not_drifted(self, ledger: FullLedger) -> None:
        await commit_all(ledger, dispatch("waits"), dispatch("backoff", next_attempt_at=10**12))
        assert await ledger.drifted(10) == []

    async def test_a_dispatching_step_without_a_row_is_named(self, ledger: FullLedger) -> None:
        await self.without_row(ledger, "j1")
        assert await ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_so_is_one_that_has_a_clock(self, ledger: FullLedger) -> None:
        lost = await self.without_row(ledger, "j1")
        await ledger.commit(then(lost, due_at=10**12))
        assert await ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_a_dispatching_step_whose_row_is_settled_is_named(self, ledger: FullLedger) -> None:
        await ledger.commit(dispatch("j1", status=OutboxStatus.SENT))
        assert await ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_a_row_of_an_earlier_attempt_does_not_count(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        newer = step("j1", attempt=attempt("j1", attempt_no=2))
        await commit_all(ledger, first, then(first, steps=(newer,)))
        assert await ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_a_live_job_without_clock_or_row_has_drifted(self, ledger: FullLedger) -> None:
        await commit_all(ledger, accept("lost"), accept("ticks", due_at=10**12))
        assert await ledger.drifted(10) == [Drift("lost")]

    async def test_a_finished_job_has_not_drifted(self, ledger: FullLedger) -> None:
        await finish(ledger, await self.without_row(ledger, "j1"))
        assert await ledger.drifted(10) == []

    async def test_drift_is_limited_and_found_again_until_repaired(self, ledger: FullLedger) -> None:
        lost = [accept(f"j{n}") for n in range(3)]
        await commit_all(ledger, *lost)
        assert await ledger.drifted(2) == [Drift("j0"), Drift("j1")]
        await commit_all(ledger, *(then(decision, due_at=1) for decision in lost[:2]))
        assert await ledger.drifted(2) == [Drift("j2")]


class TestListing:
    async def ids(self, ledger: FullLedger, where: JobFilter, limit: int = 50) -> list[str]:
        return [job.job_id for job in (await ledger.jobs(where, limit, None)).jobs]

    async def fill(self, ledger: FullLedger) -> None:
        handover = Blocked(BlockedReason.HANDOVER, 1, None, "ocr", "ocr")
        result = Blocked(BlockedReason.RESULT, 1, None, "embedding", "embedding")
        globex = {"tenant_id": "globex"}
        await commit_all(
            ledger,
            accept("a", created_at=100, blocked=handover),
            accept("b", created_at=200, asked=command("b", **globex), blocked=result),
            accept("c", created_at=300, asked=command("c", request_type="SIS"), status=JobStatus.QUEUED),
            accept("d", created_at=400, asked=command("d", tenant_id="initech"), blocked=handover),
        )
        last = accept("e", created_at=500, asked=command("e", request_type="SIS", **globex), blocked=result)
        await ledger.commit(last)
        await finish(ledger, last, JobStatus.FAILED_FINAL)

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            (JobFilter(), "edcba"),
            (JobFilter(tenants=frozenset({"acme"})), "ca"),
            (JobFilter(tenants=frozenset({"acme", "globex"})), "ecba"),
            (JobFilter(tenants=frozenset()), ""),
            (JobFilter(status=JobStatus.DISPATCHING), "dba"),
            (JobFilter(status=JobStatus.FAILED_FINAL), "e"),
            (JobFilter(status=JobStatus.CANCELLED), ""),
            (JobFilter(request_type="SIS"), "ec"),
            (JobFilter(request_type="NONE"), ""),
            (JobFilter(request_type="SIS", status=JobStatus.QUEUED), "c"),
            (JobFilter(request_type="SIS", tenants=frozenset({"globex"})), "e"),
            (JobFilter(blocked_on=BlockedReason.HANDOVER), "da"),
            (JobFilter(blocked_on=BlockedReason.RESULT), "b"),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, tenants=frozenset({"acme"})), "a"),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, status=JobStatus.QUEUED), ""),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, request_type="OCR"), "da"),
            (JobFilter(blocked_services=frozenset({"embedding"})), "b"),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, blocked_services=frozenset({"ocr", "x"})), "da"),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, blocked_services=frozenset({"x"})), ""),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, except_services=frozenset({"ocr"})), ""),
            (JobFilter(blocked_on=BlockedReason.HANDOVER, except_services=frozenset({"x"})), "da"),
            (JobFilter(created_after=200), "edc"),
            (JobFilter(created_after=199, tenants=frozenset({"globex"})), "eb"),
            (JobFilter(created_after=200, blocked_on=BlockedReason.HANDOVER), "d"),
            (JobFilter(created_after=500), ""),
        ],
    )
    async def test_jobs_are_listed_newest_first_by_any_filter(
        self, ledger: FullLedger, where: JobFilter, expected: str
    ) -> None:
        await self.fill(ledger)
        assert await self.ids(ledger, where) == list(expected)

    @pytest.mark.parametrize(
        "where",
        [
            JobFilter(),
            JobFilter(tenants=frozenset({"acme", "globex"})),
            JobFilter(status=JobStatus.DISPATCHING),
            JobFilter(blocked_on=BlockedReason.RESULT),
            JobFilter(created_after=0),
        ],
    )
    async def test_pages_join_without_gap_or_overlap(self, ledger: FullLedger, where: JobFilter) -> None:
        blocked = Blocked(BlockedReason.RESULT, 1, None, "ocr", "ocr")
        for n in range(10):
            asked = command(f"j{n}", tenant_id=("acme", "globex")[n % 2])
            await ledger.commit(accept(f"j{n}", asked=asked, blocked=blocked))
        seen: list[str] = []
        sizes: list[int] = []
        cursor: str | None = None
        while not sizes or cursor is not None:
            page = await ledger.jobs(where, 4, cursor)
            seen += [job.job_id for job in page.jobs]
            sizes.append(len(page.jobs))
            cursor = page.next_cursor
        assert seen == [f"j{n}" for n in reversed(range(10))]
        assert sizes == [4, 4, 2]

    async def test_a_full_last_page_has_no_cursor(self, ledger: FullLedger) -> None:
        await commit_all(ledger, accept("a"), accept("b"))
        assert (await ledger.jobs(JobFilter(), 2, None)).next_cursor is None

    async def test_a_job_accepted_meanwhile_does_not_shift_the_pages(self, ledger: FullLedger) -> None:
        await commit_all(ledger, accept("a"), accept("b"), accept("c"))
        first = await ledger.jobs(JobFilter(), 2, None)
        await ledger.commit(accept("new"))
        second = await ledger.jobs(JobFilter(), 2, first.next_cursor)
        assert [job.job_id for job in second.jobs] == ["a"]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "!!!", "é", "MTIz", "am9iczo", "am9iczp4"])
    async def test_a_cursor_we_did_not_give_out_is_refused(self, ledger: FullLedger, cursor: str) -> None:
        await ledger.commit(accept("a"))
        with pytest.raises(ValueError, match="cursor"):
            await ledger.jobs(JobFilter(), 2, cursor)

    async def test_a_clock_that_went_back_hides_no_job(self, ledger: FullLedger) -> None:
        await commit_all(ledger, accept("a", created_at=9_000), accept("b", created_at=100))
        await ledger.commit(accept("c", created_at=300))
        assert await self.ids(ledger, JobFilter()) == ["c", "b", "a"]
        assert await self.ids(ledger, JobFilter(created_after=200)) == ["c", "a"]
        assert await self.ids(ledger, JobFilter(created_after=300)) == ["a"]

    async def test_jobs_are_listed_as_they_are_now(self, ledger: FullLedger) -> None:
        first = accept("j1")
        await ledger.commit(first)
        done = await finish(ledger, first)
        assert (await ledger.jobs(JobFilter(), 10, None)).jobs == [done.job]


class TestHistory:
    async def test_events_are_read_in_pages_in_order(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        more = tuple(Event("j1", seq, "HEARTBEAT", seq, "ocr", 1, {"progress": 0.5}) for seq in (3, 4, 5))
        await commit_all(ledger, first, dispatch("other"), then(first, event_seq=5, events=more))
        assert await ledger.events("j1", 0, 100) == [*first.events, *more]
        assert [event.seq for event in await ledger.events("j1", 1, 2)] == [2, 3]
        assert await ledger.events("j1", 4, 100) == [more[-1]]
        assert await ledger.events("j1", 5, 100) == []

    async def test_ended_attempts_are_kept_oldest_first(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        one = ended("j1", 1, created_at=100)
        two = ended("j1", 2, created_at=200, outcome=AttemptOutcome.ACK_TIMEOUT)
        other = ended("j1", 1, "embedding", created_at=300, outcome=AttemptOutcome.SUCCEEDED)
        second = then(first, attempts=(two, other))
        await commit_all(ledger, first, second, then(second, attempts=(one,)))
        assert await ledger.attempts("j1") == [one, two, other]

    async def test_an_attempt_that_succeeds_after_its_timeout_has_one_entry(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        timed_out = ended("j1", 1, outcome=AttemptOutcome.ACK_TIMEOUT)
        succeeded = ended("j1", 1, outcome=AttemptOutcome.SUCCEEDED)
        second = then(first, attempts=(timed_out,))
        await commit_all(ledger, first, second, then(second, attempts=(succeeded,)))
        assert await ledger.attempts("j1") == [succeeded]

    async def test_successes_of_fenced_attempts_are_kept_once_each(self, ledger: FullLedger) -> None:
        first = dispatch("j1")
        second = then(first, quarantined=(stale_success("j1", 2, result={"pages": 3}), stale_success("j1", 1)))
        again = then(second, quarantined=(stale_success("j1", 2, received_at=9_999),))
        await commit_all(ledger, first, second, again)
        assert await ledger.quarantined("j1") == list(second.quarantined)
        assert await ledger.quarantined("j2") == []
