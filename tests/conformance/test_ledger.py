"""Guarantees of every ledger (`lucius.ports.ledger`)."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Cap
from lucius.core.model.records import Blocked, Event
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, JobStatus, OutboxStatus, StepStatus
from lucius.ports.errors import AlreadyAccepted, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import Drift, idempotency_token
from lucius.ports.outbox import PendingQuery
from lucius.ports.readers import MAX_TENANTS, JobFilter, Oldest
from lucius.ports.store import Store
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


async def together(store: Store, *decisions: Decision) -> list[BaseException | None]:
    """Commit in one turn of the event loop, so that stores with group commit put these into one group."""
    return await asyncio.gather(*(store.ledger.commit(decision) for decision in decisions), return_exceptions=True)


async def commit_all(store: Store, *decisions: Decision) -> None:
    for decision in decisions:
        await store.ledger.commit(decision)


async def finish(store: Store, decision: Decision, status: JobStatus = JobStatus.SUCCEEDED) -> Decision:
    done = then(decision, status=status, active=(), due_at=None, blocked=None, completed_at=9_000)
    await store.ledger.commit(done)
    return done


class TestCommitAndLoad:
    async def test_a_job_is_loaded_as_it_was_committed(self, store: Store) -> None:
        decision = dispatch("j1")
        await store.ledger.commit(decision)
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job == decision.job
        assert view.protocol == PROTOCOL
        assert view.steps == {"ocr": decision.steps[0]}

    async def test_a_job_that_was_never_committed_is_not_found(self, store: Store) -> None:
        assert await store.ledger.load("j1") is None
        assert await store.jobs.job("j1") is None
        assert await store.history.attempts("j1") == []
        assert await store.history.events("j1", 0, 10) == []
        assert await store.history.quarantined("j1") == []

    async def test_a_later_decision_replaces_head_and_steps(self, store: Store) -> None:
        first = dispatch("j1")
        working = step("j1", status=StepStatus.PROCESSING, updated_at=2_000)
        second = then(first, status=JobStatus.IN_PROGRESS, steps=(working,), due_at=7_000)
        await commit_all(store, first, second)
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job == second.job
        assert view.steps == {"ocr": working}

    async def test_load_returns_the_active_steps_and_the_requested_one(self, store: Store) -> None:
        first = dispatch("j1")
        done, running = step("j1", status=StepStatus.SUCCEEDED), step("j1", "embedding")
        await commit_all(store, first, then(first, active=("embedding",), steps=(done, running)))
        active, named = await store.ledger.load("j1"), await store.ledger.load("j1", ["ocr"])
        unknown = await store.ledger.load("j1", ["sis"])
        assert active is not None
        assert named is not None
        assert unknown is not None
        assert active.steps == unknown.steps == {"embedding": running}
        assert named.steps == {"ocr": done, "embedding": running}

    async def test_steps_of_a_finished_job_can_still_be_loaded(self, store: Store) -> None:
        first = dispatch("j1")
        done = step("j1", status=StepStatus.SUCCEEDED, result={"pages": 3}, artifact_refs=["blob://a"])
        second = then(first, status=JobStatus.SUCCEEDED, active=(), steps=(done,))
        await commit_all(store, first, second)
        view, bare = await store.ledger.load("j1", ["ocr"]), await store.ledger.load("j1")
        assert view is not None
        assert bare is not None
        assert view.job == second.job
        assert view.steps == {"ocr": done}
        assert bare.steps == {}

    async def test_job_reader_returns_all_started_steps(self, store: Store) -> None:
        first = dispatch("j1")
        done, running = step("j1", status=StepStatus.SUCCEEDED), step("j1", "embedding")
        await commit_all(store, first, then(first, active=("embedding",), steps=(done, running)))
        view = await store.jobs.job("j1")
        assert view is not None
        assert view.steps == {"ocr": done, "embedding": running}

    async def test_loaded_snapshot_does_not_change_with_later_commits(self, store: Store) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        before, whole = await store.ledger.load("j1"), await store.jobs.job("j1")
        await store.ledger.commit(then(first, steps=(step("j1", status=StepStatus.PROCESSING),)))
        assert before is not None
        assert whole is not None
        assert before.steps["ocr"].status is whole.steps["ocr"].status is StepStatus.DISPATCHING

    async def test_command_is_unchanged_after_many_commits(self, store: Store) -> None:
        asked = command("j1", payload={"ocr": {"text": 'Grüße, "x" \\ \u2028'}}, doc_id="d1", target={"type": "t"})
        decision = accept("j1", asked=asked)
        await store.ledger.commit(decision)
        for n in range(3):
            decision = then(decision, updated_at=2_000 + n)
            await store.ledger.commit(decision)
        decision = await finish(store, decision)
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job == decision.job
        assert view.job.command == asked

    async def test_finished_job_can_become_live_in_a_new_run(self, store: Store) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        done = await finish(store, first, JobStatus.FAILED_FINAL)
        again = step("j1", attempt=attempt("j1", attempt_no=2))
        await store.ledger.commit(
            then(done, status=JobStatus.DISPATCHING, run_no=2, active=("ocr",), steps=(again,), due_at=50)
        )
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.steps == {"ocr": again}
        assert await store.ledger.due(50, 10) == ["j1"]

    async def test_commit_of_a_decision_without_changes_stores_nothing(self, store: Store) -> None:
        decision = accept("j1")
        await store.ledger.commit(
            Decision(job=decision.job, replies=(), protocol=PROTOCOL, creates=True, changes=False)
        )
        assert await store.ledger.load("j1") is None

    async def test_a_job_keeps_the_protocol_it_was_accepted_with(self, store: Store) -> None:
        first, newer = protocol(1, title="first"), protocol(2, title="newer")
        live, finished = accept("live", pinned=first), accept("finished", pinned=first)
        await commit_all(store, live, finished)
        await finish(store, finished)
        await store.ledger.commit(accept("later", pinned=newer))
        for job_id, pinned in (("live", first), ("finished", first), ("later", newer)):
            view = await store.ledger.load(job_id)
            assert view is not None
            assert view.protocol == pinned

    async def test_commit_is_visible_only_after_it_is_awaited(self, store: Store) -> None:
        waiting = asyncio.ensure_future(store.ledger.commit(accept("j1")))
        assert await store.ledger.load("j1") is None
        await waiting
        assert await store.ledger.load("j1") is not None

    async def test_commit_with_a_cancelled_caller_is_durable(self, store: Store) -> None:
        waiting = asyncio.ensure_future(store.ledger.commit(accept("j1")))
        await asyncio.sleep(0)
        waiting.cancel()
        await store.ledger.commit(accept("j2"))
        assert waiting.cancelled()
        assert await store.ledger.load("j1") is not None
        assert await store.ledger.load("j2") is not None


class TestRefusals:
    async def test_a_decision_on_an_old_version_is_refused(self, store: Store) -> None:
        first = dispatch("j1")
        await commit_all(store, first, then(first, updated_at=2_000))
        with pytest.raises(VersionConflict):
            await store.ledger.commit(then(first, updated_at=3_000))
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job.updated_at == 2_000

    async def test_decision_on_an_unknown_job_is_refused(self, store: Store) -> None:
        with pytest.raises(VersionConflict):
            await store.ledger.commit(then(accept("j1")))
        assert await store.ledger.load("j1") is None

    async def test_a_job_is_created_once(self, store: Store) -> None:
        await store.ledger.commit(accept("j1"))
        with pytest.raises(VersionConflict):
            await store.ledger.commit(accept("j1", asked=command("j1", idempotency_key="another")))

    async def test_second_decision_on_one_version_is_refused(self, store: Store) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        won, lost = await together(store, then(first, updated_at=2_000), then(first, updated_at=3_000))
        assert won is None
        assert isinstance(lost, VersionConflict)
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job.updated_at == 2_000

    async def test_a_refused_decision_leaves_nothing_behind(self, store: Store) -> None:
        first = dispatch("j1")
        await commit_all(store, first, then(first))
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
            await store.ledger.commit(late)
        view = await store.jobs.job("j1")
        assert view is not None
        assert view.steps == {"ocr": first.steps[0]}
        assert await store.history.attempts("j1") == []
        assert await store.history.quarantined("j1") == []
        assert await store.jobs.counters("") == {}
        assert [event.seq for event in await store.history.events("j1", 0, 10)] == [1, 2]
        assert len(await store.outbox.pending(PendingQuery(limit=10, now=5_000))) == 1

    async def test_refused_decision_does_not_affect_others_in_its_group(self, store: Store) -> None:
        first = dispatch("moved")
        await commit_all(store, first, then(first), accept("held", asked=command("held", idempotency_key="k")))
        outcomes = await together(
            store,
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
        assert [await store.ledger.load(job_id) is not None for job_id in ("a", "dup", "over", "z")] == [
            True,
            False,
            False,
            True,
        ]

    async def test_consecutive_decisions_on_one_job_fit_in_one_group(self, store: Store) -> None:
        first = dispatch("j1")
        sent = row(first.steps[0], status=OutboxStatus.SENT)
        second = then(first, due_at=3_000, outbox=(sent,), steps=(step("j1", status=StepStatus.INITIATED),))
        third = then(second, due_at=4_000, blocked=Blocked(BlockedReason.RESULT, 1))
        assert await together(store, first, second, third) == [None, None, None]
        view = await store.ledger.load("j1")
        assert view is not None
        assert view.job == third.job
        assert view.steps["ocr"].status is StepStatus.INITIATED
        assert await store.outbox.pending(PendingQuery(limit=10, now=5_000)) == []
        assert await store.ledger.due(4_000, 10) == ["j1"]

    async def test_commit_listener_gets_only_durable_decisions(self, store: Store) -> None:
        seen: list[Decision] = []
        store.hooks.on_commit = seen.append
        first = accept("j1")
        await together(store, first, accept("j1"), accept("j2"))
        assert [decision.job.job_id for decision in seen] == ["j1", "j2"]

    async def test_a_listener_that_fails_breaks_no_commit(self, store: Store) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("listener")

        store.hooks.on_commit = fail
        store.hooks.on_flush = fail
        assert await together(store, accept("j1"), accept("j2")) == [None, None]
        assert await store.ledger.load("j2") is not None

    async def test_the_size_of_each_group_is_reported(self, store: Store) -> None:
        sizes: list[int] = []
        store.hooks.on_flush = lambda size, seconds: sizes.append(size)
        await together(store, *(accept(f"j{n}") for n in range(7)))
        assert sizes == [7]

    async def test_close_finishes_waiting_commits_and_refuses_later_ones(self, store: Store) -> None:
        waiting = asyncio.ensure_future(store.ledger.commit(accept("j1")))
        await asyncio.sleep(0)
        await store.close()
        await waiting
        with pytest.raises(LedgerError):
            await store.ledger.commit(accept("j2"))


class TestIdempotency:
    async def test_accepted_returns_the_job_that_holds_a_key(self, store: Store) -> None:
        asked = command("j1", idempotency_key="order-7")
        await store.ledger.commit(accept("j1", asked=asked))
        held = await store.ledger.accepted("acme", "key:order-7")
        assert held is not None
        assert (held.job_id, held.idempotency_hash) == ("j1", "hash-of-j1")
        assert await store.ledger.accepted("acme", "key:order-8") is None

    async def test_command_hash_is_the_default_idempotency_key(self, store: Store) -> None:
        asked = command("j1", idempotency_hash="abc")
        assert idempotency_token(asked) == "sha256:abc"
        await store.ledger.commit(accept("j1", asked=asked))
        held = await store.ledger.accepted("acme", "sha256:abc")
        assert held is not None
        assert held.job_id == "j1"
        with pytest.raises(AlreadyAccepted):
            await store.ledger.commit(accept("j2", asked=command("j2", idempotency_hash="abc")))

    async def test_a_taken_key_is_refused_and_names_job_and_hash(self, store: Store) -> None:
        await store.ledger.commit(accept("j1", asked=command("j1", idempotency_key="k")))
        with pytest.raises(AlreadyAccepted) as refusal:
            await store.ledger.commit(accept("j2", asked=command("j2", idempotency_key="k")))
        assert (refusal.value.job_id, refusal.value.idempotency_hash) == ("j1", "hash-of-j1")

    async def test_key_taken_earlier_in_the_same_group_is_refused(self, store: Store) -> None:
        decisions = [accept(f"j{n}", asked=command(f"j{n}", idempotency_key="k")) for n in range(3)]
        first, second, third = await together(store, *decisions)
        assert first is None
        for loser in (second, third):
            assert isinstance(loser, AlreadyAccepted)
            assert loser.job_id == "j0"
        assert (await store.jobs.jobs(JobFilter(), 10, None)).jobs == [decisions[0].job]

    async def test_tenants_do_not_share_keys(self, store: Store) -> None:
        ours, theirs = command("j1", idempotency_key="k"), command("j2", idempotency_key="k", tenant_id="globex")
        await commit_all(store, accept("j1", asked=ours), accept("j2", asked=theirs))
        held = await store.ledger.accepted("globex", "key:k")
        assert held is not None
        assert held.job_id == "j2"

    async def test_a_key_is_kept_after_its_job_has_ended(self, store: Store) -> None:
        first = accept("j1", asked=command("j1", idempotency_key="k"))
        await store.ledger.commit(first)
        await finish(store, first)
        with pytest.raises(AlreadyAccepted):
            await store.ledger.commit(accept("j2", asked=command("j2", idempotency_key="k")))

    async def test_duplicate_is_refused_as_a_duplicate_although_the_limit_is_reached(self, store: Store) -> None:
        caps = (Cap("jobs", 1),)
        await store.ledger.commit(
            accept("j1", asked=command("j1", idempotency_key="k"), counters={"jobs": 1}, caps=caps)
        )
        with pytest.raises(AlreadyAccepted):
            await store.ledger.commit(
                accept("j2", asked=command("j2", idempotency_key="k"), counters={"jobs": 1}, caps=caps)
            )


class TestCounters:
    async def test_counters_move_with_the_commits_and_vanish_at_zero(self, store: Store) -> None:
        first = accept("j1", counters={"jobs": 1, "jobs/tenant/acme": 1})
        await commit_all(store, first, accept("j2", counters={"jobs": 1}))
        assert await store.jobs.counters("") == {"jobs": 2, "jobs/tenant/acme": 1}
        await store.ledger.commit(then(first, counters={"jobs": -1, "jobs/tenant/acme": -1}))
        assert await store.jobs.counters("") == {"jobs": 1}

    async def test_counters_are_selected_by_name_and_prefix(self, store: Store) -> None:
        moved = {"jobs": 1, "jobs/tenant/acme": 2, "jobs/mode/REGULAR": 3, "unacked/ocr": 4, "unacked/ocr0": 5}
        await store.ledger.commit(accept("j1", counters=moved))
        assert await store.jobs.counters() == {}
        assert await store.jobs.counters("jobs", "unacked/ocr", "unacked/sis") == {"jobs": 1, "unacked/ocr": 4}
        assert await store.jobs.counters("unacked/", "unacked/ocr") == {"unacked/ocr": 4, "unacked/ocr0": 5}
        assert await store.jobs.counters("jobs/", "pending/") == {"jobs/tenant/acme": 2, "jobs/mode/REGULAR": 3}
        assert await store.jobs.counters("") == moved

    async def test_a_cap_admits_up_to_its_limit(self, store: Store) -> None:
        caps = (Cap("jobs", 2),)
        await store.ledger.commit(accept("j1", counters={"jobs": 1}, caps=caps))
        await store.ledger.commit(accept("j2", counters={"jobs": 1}, caps=caps))
        with pytest.raises(LimitReached) as refusal:
            await store.ledger.commit(accept("j3", counters={"jobs": 1}, caps=caps))
        assert (refusal.value.counter, refusal.value.limit) == ("jobs", 2)
        assert await store.jobs.counters("") == {"jobs": 2}

    async def test_cap_counts_earlier_commits_of_the_same_group(self, store: Store) -> None:
        caps = (Cap("jobs", 3),)
        outcomes = await together(store, *(accept(f"j{n}", counters={"jobs": 1}, caps=caps) for n in range(5)))
        assert outcomes[:3] == [None] * 3
        assert all(isinstance(outcome, LimitReached) for outcome in outcomes[3:])
        assert await store.jobs.counters("") == {"jobs": 3}

    async def test_decrement_frees_capacity_in_the_same_group(self, store: Store) -> None:
        caps = (Cap("jobs", 1),)
        first = accept("j1", counters={"jobs": 1}, caps=caps)
        await store.ledger.commit(first)
        leave = then(first, status=JobStatus.CANCELLED, counters={"jobs": -1})
        assert await together(store, leave, accept("j2", counters={"jobs": 1}, caps=caps)) == [None, None]
        assert await store.jobs.counters("") == {"jobs": 1}

    async def test_caps_apply_to_changes_of_an_existing_job(self, store: Store) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        with pytest.raises(LimitReached):
            await store.ledger.commit(then(first, counters={"unacked/ocr": 1}, caps=(Cap("unacked/ocr", 0),)))


class TestDue:
    async def test_most_overdue_jobs_are_listed_first(self, store: Store) -> None:
        for job_id, due_at in (("b", 200), ("a", 100), ("c", 300), ("none", None)):
            await store.ledger.commit(accept(job_id, due_at=due_at))
        assert await store.ledger.due(250, 10) == ["a", "b"]
        assert await store.ledger.due(300, 2) == ["a", "b"]
        assert await store.ledger.due(99, 10) == []

    async def test_jobs_due_at_one_instant_come_in_order_of_acceptance(self, store: Store) -> None:
        for job_id in ("z", "m", "a"):
            await store.ledger.commit(accept(job_id, due_at=100))
        assert await store.ledger.due(100, 10) == ["z", "m", "a"]

    async def test_due_follows_a_changed_due_time(self, store: Store) -> None:
        first = accept("j1", due_at=100)
        await commit_all(store, first, then(first, due_at=500))
        assert await store.ledger.due(499, 10) == []
        assert await store.ledger.due(500, 10) == ["j1"]

    async def test_a_finished_job_is_never_due(self, store: Store) -> None:
        first = accept("j1", due_at=100)
        await commit_all(store, first, then(first, status=JobStatus.SUCCEEDED))
        assert await store.ledger.due(1_000, 10) == []


class TestPending:
    async def ids(self, store: Store, query: PendingQuery) -> list[str]:
        return [found.job_id for found in await store.outbox.pending(query)]

    async def test_pending_rows_of_all_services_are_listed_oldest_first(self, store: Store) -> None:
        await commit_all(
            store, dispatch("z", service="sis"), dispatch("m"), dispatch("a", service="sis"), dispatch("b")
        )
        assert await self.ids(store, PendingQuery(limit=10, now=5_000)) == ["z", "m", "a", "b"]
        assert await self.ids(store, PendingQuery(limit=3, now=5_000)) == ["z", "m", "a"]

    async def test_pending_row_is_returned_completely(self, store: Store) -> None:
        decision = dispatch("j1", lane=7)
        await store.ledger.commit(decision)
        assert await store.outbox.pending(PendingQuery(limit=10, now=5_000)) == list(decision.outbox)

    async def test_rows_are_found_by_service_and_lane(self, store: Store) -> None:
        await commit_all(store, dispatch("a", lane=1), dispatch("b", lane=2), dispatch("c", lane=1, service="sis"))
        assert await self.ids(store, PendingQuery(limit=9, now=5_000, service="ocr")) == ["a", "b"]
        assert sorted(await self.ids(store, PendingQuery(limit=9, now=5_000, lanes=frozenset({1})))) == ["a", "c"]
        others = PendingQuery(limit=1, now=5_000, except_services=frozenset({"ocr"}))
        assert await self.ids(store, others) == ["c"]
        both = PendingQuery(limit=9, now=5_000, service="ocr", lanes=frozenset({2, 9}))
        assert await self.ids(store, both) == ["b"]
        assert await self.ids(store, PendingQuery(limit=9, now=5_000, lanes=frozenset())) == []
        assert await self.ids(store, PendingQuery(limit=9, now=5_000, service="nobody")) == []

    async def test_row_is_pending_only_after_its_next_attempt_time(self, store: Store) -> None:
        await commit_all(store, dispatch("later", next_attempt_at=6_000), dispatch("now"))
        assert await self.ids(store, PendingQuery(limit=9, now=5_999)) == ["now"]
        assert await self.ids(store, PendingQuery(limit=9, now=6_000)) == ["now", "later"]
        assert await self.ids(store, PendingQuery(limit=9, now=6_000, later=False)) == ["now"]

    async def test_row_created_by_a_clock_ahead_is_pending(self, store: Store) -> None:
        await store.ledger.commit(dispatch("j1", created_at=99_000))
        assert await self.ids(store, PendingQuery(limit=9, now=5_000)) == ["j1"]

    async def test_claimed_rows_are_listed_only_on_request(self, store: Store) -> None:
        await commit_all(store, dispatch("claimed", claimed_at=4_000), dispatch("free"))
        assert await self.ids(store, PendingQuery(limit=9, now=5_000)) == ["free"]
        assert await self.ids(store, PendingQuery(limit=9, now=5_000, claimed=True)) == ["claimed"]
        other = PendingQuery(limit=9, now=5_000, claimed=True, service="sis")
        assert await self.ids(store, other) == []

    async def test_released_row_is_pending_again_at_its_old_place(self, store: Store) -> None:
        first = dispatch("first", claimed_at=4_000)
        await commit_all(store, first, dispatch("second"))
        await store.ledger.commit(then(first, outbox=(row(first.steps[0]),)))
        assert await self.ids(store, PendingQuery(limit=9, now=5_000)) == ["first", "second"]

    async def test_a_row_used_again_for_the_next_attempt_stays_one_row(self, store: Store) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        again = row(first.steps[0], attempt_no=2, lease_id="lease-2")
        await store.ledger.commit(then(first, outbox=(again,)))
        assert await store.outbox.pending(PendingQuery(limit=9, now=5_000)) == [again]

    @pytest.mark.parametrize("status", [OutboxStatus.SENT, OutboxStatus.FAILED_FINAL, OutboxStatus.WITHDRAWN])
    async def test_a_settled_row_is_not_pending(self, store: Store, status: OutboxStatus) -> None:
        first = dispatch("j1")
        await store.ledger.commit(first)
        await store.ledger.commit(then(first, outbox=(row(first.steps[0], status=status, settled_at=2_000),)))
        assert await store.outbox.pending(PendingQuery(limit=9, now=5_000)) == []
        assert await store.jobs.backlog(5_000) == {}

    async def test_backlog_names_the_oldest_due_row_per_service(self, store: Store) -> None:
        await commit_all(
            store,
            dispatch("a", created_at=300),
            dispatch("b", created_at=200, next_attempt_at=9_000),
            dispatch("c", created_at=400, service="sis"),
            dispatch("d", created_at=100, service="sis", claimed_at=500),
        )
        assert await store.jobs.backlog(8_999) == {"ocr": Oldest(300), "sis": Oldest(400)}
        assert await store.jobs.backlog(9_000) == {"ocr": Oldest(200), "sis": Oldest(400)}
        assert await store.jobs.backlog(8_999, "ocr") == {"ocr": Oldest(300)}
        assert await store.jobs.backlog(9_000, "ocr") == {"ocr": Oldest(200)}
        assert await store.jobs.backlog(9_000, "translate") == {}

    @pytest.mark.parametrize("service", ["ocr", None])
    async def test_backlog_of_very_many_tenants_marks_that_older_rows_are_possible(
        self, store: Store, service: str | None
    ) -> None:
        names = [f"tenant-{n:04}" for n in range(MAX_TENANTS + 1)]
        rows = [of_tenant(name, 1, created_at=5_000 - n)[0] for n, name in enumerate(names)]
        await together(store, *rows[:9])
        assert await store.jobs.backlog(9_000, service) == {"ocr": Oldest(5_000 - 8)}
        await together(store, *rows[9:])
        found = (await store.jobs.backlog(9_000, service))["ocr"]
        assert found.older_possible == (found.at > 5_000 - MAX_TENANTS)

    async def test_row_waiting_for_its_next_attempt_is_not_in_the_backlog(self, store: Store) -> None:
        await store.ledger.commit(dispatch("a", created_at=300, next_attempt_at=9_000))
        assert await store.jobs.backlog(8_000) == {}


def of_tenant(tenant_id: str, n: int, **fields: Any) -> list[Decision]:
    """Return `n` jobs of a tenant, each with a ready row."""
    asked = [command(f"{tenant_id}-{i}", tenant_id=tenant_id) for i in range(n)]
    return [dispatch(f"{tenant_id}-{i}", asked=asked[i], tenant_id=tenant_id, **fields) for i in range(n)]


class TestTenantFairness:
    """`Outbox.pending` lets tenants that share a service, or a lane of it, take turns."""

    async def served(self, store: Store, limit: int, **wanted: Any) -> list[str]:
        query = PendingQuery(**{"limit": limit, "now": 5_000, "service": "ocr", **wanted})
        return [found.job_id for found in await store.outbox.pending(query)]

    async def tenants(self, store: Store, limit: int, **wanted: Any) -> list[str]:
        return [job_id.split("-")[0] for job_id in await self.served(store, limit, **wanted)]

    async def test_long_backlog_of_one_tenant_does_not_hide_rows_of_others(self, store: Store) -> None:
        await together(store, *of_tenant("long", 1_000))
        await together(store, *of_tenant("b", 2), *of_tenant("c", 1))
        served = await self.served(store, 7)
        assert sorted(served[:3]) == ["b-0", "c-0", "long-0"]
        assert sorted(served[3:5]) == ["b-1", "long-1"]
        assert served[5:] == ["long-2", "long-3"]

    async def test_rows_of_each_tenant_are_served_oldest_first(self, store: Store) -> None:
        rows = [row for pair in zip(of_tenant("a", 5), of_tenant("b", 5), strict=True) for row in pair]
        await commit_all(store, *rows)
        served = await self.served(store, 10)
        assert [job_id for job_id in served if job_id[0] == "a"] == [f"a-{i}" for i in range(5)]
        assert [job_id for job_id in served if job_id[0] == "b"] == [f"b-{i}" for i in range(5)]

    async def test_tenants_are_served_in_turn_over_several_queries(self, store: Store) -> None:
        await together(store, *of_tenant("a", 50), *of_tenant("b", 50), *of_tenant("c", 50))
        one_by_one = [(await self.tenants(store, 1))[0] for _ in range(9)]
        for turn in range(0, 9, 3):
            assert sorted(one_by_one[turn : turn + 3]) == ["a", "b", "c"]
        two_by_two = [tenant for _ in range(6) for tenant in await self.tenants(store, 2)]
        assert Counter(two_by_two) == {"a": 4, "b": 4, "c": 4}

    async def test_new_tenant_is_served_within_two_turns(self, store: Store) -> None:
        await together(store, *of_tenant("a", 500))
        await self.served(store, 10)
        await together(store, *of_tenant("b", 1))
        assert "b-0" in [*await self.served(store, 1), *await self.served(store, 1)]

    async def test_tenants_take_turns_inside_a_lane(self, store: Store) -> None:
        others = (*of_tenant("far", 20, lane=9), *of_tenant("b", 2, lane=4))
        await together(store, *of_tenant("a", 20, lane=4), *others)
        in_lane = [(await self.tenants(store, 1, lanes=frozenset({4})))[0] for _ in range(4)]
        assert Counter(in_lane) == {"a": 2, "b": 2}
        assert await self.tenants(store, 2, lanes=frozenset({9})) == ["far", "far"]

    async def test_queries_for_one_lane_do_not_change_the_turns_in_another(self, store: Store) -> None:
        await together(store, *of_tenant("a", 20, lane=1), *of_tenant("b", 20, lane=1), *of_tenant("m", 20, lane=2))
        served = []
        for _ in range(8):
            served += await self.tenants(store, 1, lanes=frozenset({1}))
            await self.tenants(store, 1, lanes=frozenset({2}))
        assert Counter(served) == {"a": 4, "b": 4}

    async def test_tenant_in_backoff_is_skipped_until_its_row_is_due(self, store: Store) -> None:
        await together(store, *of_tenant("a", 3), *of_tenant("late", 3, next_attempt_at=6_000))
        assert await self.tenants(store, 9) == ["a"] * 3
        assert await self.tenants(store, 9, now=5_999) == ["a"] * 3
        assert await self.tenants(store, 5, now=6_000) == ["a"] * 3 + ["late"] * 2
        first = of_tenant("late", 1)[0]
        await store.ledger.commit(then(first, outbox=(row(first.steps[0], tenant_id="late"),)))
        assert "late-0" in await self.served(store, 2)

    async def test_row_in_backoff_is_found_after_an_earlier_empty_query(self, store: Store) -> None:
        soon, (late,) = of_tenant("a", 1, next_attempt_at=6_000)[0], of_tenant("a", 2, next_attempt_at=9_000)[1:]
        await together(store, soon, late)
        await store.ledger.commit(then(soon, outbox=(replace(soon.outbox[0], status=OutboxStatus.SENT),)))
        assert await self.served(store, 9, now=7_000) == []
        assert await self.served(store, 9, now=9_000) == ["a-1"]

    async def test_tenant_without_pending_rows_is_skipped(self, store: Store) -> None:
        gone = of_tenant("gone", 2)
        await together(store, *gone, *of_tenant("a", 4))
        sent = [then(one, outbox=(replace(one.outbox[0], status=OutboxStatus.SENT),)) for one in gone]
        await together(store, *sent)
        assert [await self.tenants(store, 1) for _ in range(3)] == [["a"]] * 3
        await store.ledger.commit(of_tenant("gone", 3)[2])
        assert Counter(await self.tenants(store, 2)) == {"a": 1, "gone": 1}

    async def test_released_row_takes_part_in_the_turns_again(self, store: Store) -> None:
        (claimed,) = of_tenant("b", 1, claimed_at=4_000)
        await together(store, claimed, *of_tenant("a", 4))
        assert await self.tenants(store, 2) == ["a", "a"]
        await store.ledger.commit(then(claimed, outbox=(replace(claimed.outbox[0], claimed_at=None),)))
        assert Counter(await self.tenants(store, 2)) == {"a": 1, "b": 1}

    async def test_excluded_rows_are_skipped_without_using_a_turn(self, store: Store) -> None:
        held = of_tenant("a", 40)
        await together(store, *held, *of_tenant("b", 40))
        excluded = frozenset(one.outbox[0].outbox_id for one in held[:30])
        assert sorted(await self.served(store, 2, except_rows=excluded)) == ["a-30", "b-0"]
        one_by_one = [(await self.tenants(store, 1, except_rows=excluded))[0] for _ in range(8)]
        assert Counter(one_by_one) == {"a": 4, "b": 4}
        everything = await self.served(store, 80, except_rows=excluded)
        assert len(everything) == 50

    async def test_tenant_with_only_excluded_rows_is_served_later(self, store: Store) -> None:
        (held,) = of_tenant("a", 1)
        await store.ledger.commit(held)
        assert await self.served(store, 9, except_rows=frozenset({held.outbox[0].outbox_id})) == []
        assert await self.served(store, 9) == ["a-0"]

    async def test_query_for_all_services_serves_services_in_turn(self, store: Store) -> None:
        await together(store, *of_tenant("a", 300), *of_tenant("b", 1))
        await store.ledger.commit(dispatch("other", service="sis"))
        served = await self.served(store, 3, service=None)
        assert sorted(served) == ["a-0", "b-0", "other"]
        one_by_one = [(await self.served(store, 1, service=None))[0] for _ in range(4)]
        assert {"other", "b-0"} <= set(one_by_one)

    async def test_query_for_some_tenants_returns_no_rows_of_others(self, store: Store) -> None:
        await together(store, *of_tenant("a", 5), *of_tenant("b", 5), *of_tenant("c", 5))
        wanted = frozenset({"b", "c", "nobody"})
        assert Counter(await self.tenants(store, 99, tenants=wanted)) == {"b": 5, "c": 5}
        assert Counter(await self.tenants(store, 4, tenants=wanted)) == {"b": 2, "c": 2}
        assert await self.tenants(store, 99, tenants=frozenset({"nobody"})) == []
        held = await self.tenants(store, 99, tenants=frozenset({"c"}), hold_ms=1_000)
        assert held == ["c"] * 5
        assert Counter(await self.tenants(store, 99)) == {"a": 5, "b": 5, "c": 5}

    async def test_a_query_for_some_tenants_finds_their_rows_that_wait_for_a_backoff(self, store: Store) -> None:
        late = of_tenant("b", 3, next_attempt_at=6_000)
        await together(store, *of_tenant("a", 3, next_attempt_at=6_000), *late, *of_tenant("c", 1))
        wanted = frozenset({"b", "c"})
        assert await self.tenants(store, 9, now=7_000, tenants=wanted, service=None) == ["c", "b", "b", "b"]
        assert await self.tenants(store, 2, now=7_000, tenants=wanted) == ["c", "b"]
        assert await self.tenants(store, 9, tenants=wanted) == ["c"]

    async def test_tenants_of_a_filtered_query_are_served_in_turn(self, store: Store) -> None:
        await together(store, *of_tenant("a", 9), *of_tenant("b", 9), *of_tenant("c", 9), *of_tenant("d", 9))
        wanted = frozenset({"b", "d"})
        served = [(await self.tenants(store, 1, tenants=wanted))[0] for _ in range(6)]
        assert Counter(served) == {"b": 3, "d": 3}
        both = frozenset({"b", "d"}), None
        mixed = [(await self.tenants(store, 1, tenants=both[i % 2]))[0] for i in range(24)]
        assert {"a", "c"} <= set(mixed[1::2])

    async def test_query_for_some_tenants_covers_more_tenants_than_one_round(self, store: Store) -> None:
        await together(store, *(one for i in range(80) for one in of_tenant(f"t{i:02}", 1)), *of_tenant("long", 50))
        wanted = frozenset({*(f"t{i:02}" for i in range(80)), "long"})
        assert len(await self.served(store, 130, tenants=wanted, later=False)) == 130


class TestDrift:
    async def without_row(self, store: Store, job_id: str) -> Decision:
        lost = dispatch(job_id)
        lost = Decision(job=lost.job, replies=(), protocol=PROTOCOL, creates=True, steps=lost.steps)
        await store.ledger.commit(lost)
        return lost

    async def test_a_job_that_waits_in_the_outbox_has_not_drifted(self, store: Store) -> None:
        await commit_all(store, dispatch("waits"), dispatch("backoff", next_attempt_at=10**12))
        assert await store.ledger.drifted(10) == []

    async def test_dispatching_step_without_a_row_has_drifted(self, store: Store) -> None:
        await self.without_row(store, "j1")
        assert await store.ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_dispatching_step_without_a_row_has_drifted_although_the_job_has_a_due_time(
        self, store: Store
    ) -> None:
        lost = await self.without_row(store, "j1")
        await store.ledger.commit(then(lost, due_at=10**12))
        assert await store.ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_dispatching_step_with_a_settled_row_has_drifted(self, store: Store) -> None:
        await store.ledger.commit(dispatch("j1", status=OutboxStatus.SENT))
        assert await store.ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_row_of_an_earlier_attempt_does_not_prevent_drift(self, store: Store) -> None:
        first = dispatch("j1")
        newer = step("j1", attempt=attempt("j1", attempt_no=2))
        await commit_all(store, first, then(first, steps=(newer,)))
        assert await store.ledger.drifted(10) == [Drift("j1", ("ocr",))]

    async def test_live_job_without_due_time_or_row_has_drifted(self, store: Store) -> None:
        await commit_all(store, accept("lost"), accept("ticks", due_at=10**12))
        assert await store.ledger.drifted(10) == [Drift("lost")]

    async def test_a_finished_job_has_not_drifted(self, store: Store) -> None:
        await finish(store, await self.without_row(store, "j1"))
        assert await store.ledger.drifted(10) == []

    async def test_drifted_jobs_are_limited_and_listed_until_repaired(self, store: Store) -> None:
        lost = [accept(f"j{n}") for n in range(3)]
        await commit_all(store, *lost)
        assert await store.ledger.drifted(2) == [Drift("j0"), Drift("j1")]
        await commit_all(store, *(then(decision, due_at=1) for decision in lost[:2]))
        assert await store.ledger.drifted(2) == [Drift("j2")]


class TestListing:
    async def ids(self, store: Store, where: JobFilter, limit: int = 50) -> list[str]:
        return [job.job_id for job in (await store.jobs.jobs(where, limit, None)).jobs]

    async def fill(self, store: Store) -> None:
        handover = Blocked(BlockedReason.HANDOVER, 1, None, "ocr", "ocr")
        result = Blocked(BlockedReason.RESULT, 1, None, "embedding", "embedding")
        globex = {"tenant_id": "globex"}
        await commit_all(
            store,
            accept("a", created_at=100, blocked=handover),
            accept("b", created_at=200, asked=command("b", **globex), blocked=result),
            accept("c", created_at=300, asked=command("c", request_type="SIS"), status=JobStatus.QUEUED),
            accept("d", created_at=400, asked=command("d", tenant_id="initech"), blocked=handover),
        )
        last = accept("e", created_at=500, asked=command("e", request_type="SIS", **globex), blocked=result)
        await store.ledger.commit(last)
        await finish(store, last, JobStatus.FAILED_FINAL)

    async def test_jobs_are_found_by_id_prefix(self, store: Store) -> None:
        foreign = accept("01a1-3", created_at=300, asked=command("01a1-3", tenant_id="globex"))
        named = [accept(name, created_at=n) for n, name in enumerate(("01a1-1", "01a1-2", "01a2-1", "01a"), start=100)]
        await commit_all(store, *named, foreign)
        await finish(store, named[0], JobStatus.SUCCEEDED)
        acme = frozenset({"acme"})
        assert await self.ids(store, JobFilter(id_prefix="01a1")) == ["01a1-3", "01a1-2", "01a1-1"]
        assert await self.ids(store, JobFilter(id_prefix="01a1", tenants=acme)) == ["01a1-2", "01a1-1"]
        assert await self.ids(store, JobFilter(id_prefix="01a1-2")) == ["01a1-2"]
        assert await self.ids(store, JobFilter(id_prefix="01a1-9")) == []
        page = await store.jobs.jobs(JobFilter(id_prefix="01a1"), 2, None)
        assert [job.job_id for job in page.jobs] == ["01a1-3", "01a1-2"]
        rest = await store.jobs.jobs(JobFilter(id_prefix="01a1"), 2, page.next_cursor)
        assert ([job.job_id for job in rest.jobs], rest.next_cursor) == (["01a1-1"], None)

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
        self, store: Store, where: JobFilter, expected: str
    ) -> None:
        await self.fill(store)
        assert await self.ids(store, where) == list(expected)

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
    async def test_pages_join_without_gap_or_overlap(self, store: Store, where: JobFilter) -> None:
        blocked = Blocked(BlockedReason.RESULT, 1, None, "ocr", "ocr")
        for n in range(10):
            asked = command(f"j{n}", tenant_id=("acme", "globex")[n % 2])
            await store.ledger.commit(accept(f"j{n}", asked=asked, blocked=blocked))
        seen: list[str] = []
        sizes: list[int] = []
        cursor: str | None = None
        while not sizes or cursor is not None:
            page = await store.jobs.jobs(where, 4, cursor)
            seen += [job.job_id for job in page.jobs]
            sizes.append(len(page.jobs))
            cursor = page.next_cursor
        assert seen == [f"j{n}" for n in reversed(range(10))]
        assert sizes == [4, 4, 2]

    async def test_a_full_last_page_has_no_cursor(self, store: Store) -> None:
        await commit_all(store, accept("a"), accept("b"))
        assert (await store.jobs.jobs(JobFilter(), 2, None)).next_cursor is None

    async def test_job_accepted_between_pages_does_not_shift_them(self, store: Store) -> None:
        await commit_all(store, accept("a"), accept("b"), accept("c"))
        first = await store.jobs.jobs(JobFilter(), 2, None)
        await store.ledger.commit(accept("new"))
        second = await store.jobs.jobs(JobFilter(), 2, first.next_cursor)
        assert [job.job_id for job in second.jobs] == ["a"]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "!!!", "é", "MTIz", "am9iczo", "am9iczp4"])
    async def test_invalid_cursor_is_refused(self, store: Store, cursor: str) -> None:
        await store.ledger.commit(accept("a"))
        with pytest.raises(ValueError, match="cursor"):
            await store.jobs.jobs(JobFilter(), 2, cursor)

    async def test_clock_set_back_hides_no_job(self, store: Store) -> None:
        await commit_all(store, accept("a", created_at=9_000), accept("b", created_at=100))
        await store.ledger.commit(accept("c", created_at=300))
        assert await self.ids(store, JobFilter()) == ["c", "b", "a"]
        assert await self.ids(store, JobFilter(created_after=200)) == ["c", "a"]
        assert await self.ids(store, JobFilter(created_after=300)) == ["a"]

    async def test_listing_shows_the_current_state_of_a_job(self, store: Store) -> None:
        first = accept("j1")
        await store.ledger.commit(first)
        done = await finish(store, first)
        assert (await store.jobs.jobs(JobFilter(), 10, None)).jobs == [done.job]


class TestHistory:
    async def test_events_are_read_in_pages_in_order(self, store: Store) -> None:
        first = dispatch("j1")
        more = tuple(Event("j1", seq, "HEARTBEAT", seq, "ocr", 1, {"progress": 0.5}) for seq in (3, 4, 5))
        await commit_all(store, first, dispatch("other"), then(first, event_seq=5, events=more))
        assert await store.history.events("j1", 0, 100) == [*first.events, *more]
        assert [event.seq for event in await store.history.events("j1", 1, 2)] == [2, 3]
        assert await store.history.events("j1", 4, 100) == [more[-1]]
        assert await store.history.events("j1", 5, 100) == []

    async def test_ended_attempts_are_kept_oldest_first(self, store: Store) -> None:
        first = dispatch("j1")
        one = ended("j1", 1, created_at=100)
        two = ended("j1", 2, created_at=200, outcome=AttemptOutcome.ACK_TIMEOUT)
        other = ended("j1", 1, "embedding", created_at=300, outcome=AttemptOutcome.SUCCEEDED)
        second = then(first, attempts=(two, other))
        await commit_all(store, first, second, then(second, attempts=(one,)))
        assert await store.history.attempts("j1") == [one, two, other]

    async def test_an_attempt_that_succeeds_after_its_timeout_has_one_entry(self, store: Store) -> None:
        first = dispatch("j1")
        timed_out = ended("j1", 1, outcome=AttemptOutcome.ACK_TIMEOUT)
        succeeded = ended("j1", 1, outcome=AttemptOutcome.SUCCEEDED)
        second = then(first, attempts=(timed_out,))
        await commit_all(store, first, second, then(second, attempts=(succeeded,)))
        assert await store.history.attempts("j1") == [succeeded]

    async def test_each_success_of_a_fenced_attempt_is_kept_once(self, store: Store) -> None:
        first = dispatch("j1")
        second = then(first, quarantined=(stale_success("j1", 2, result={"pages": 3}), stale_success("j1", 1)))
        again = then(second, quarantined=(stale_success("j1", 2, received_at=9_999),))
        await commit_all(store, first, second, again)
        assert await store.history.quarantined("j1") == list(second.quarantined)
        assert await store.history.quarantined("j2") == []
