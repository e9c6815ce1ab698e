"""Guarantees of the PostgreSQL ledger beyond those of every ledger: several processes, and a server that restarts."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, count
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from lucius.adapters.ledger.postgres import database, notify, peer_registry
from lucius.adapters.ledger.postgres.batch import IdGenerator
from lucius.adapters.ledger.postgres.cache import JobCache, RecordSizes
from lucius.adapters.ledger.postgres.clock import DatabaseClock
from lucius.adapters.ledger.postgres.notify import SWEEPER_SUFFIX
from lucius.adapters.ledger.postgres.prefetched_outbox import MAX_ROWS_PER_SERVICE, PrefetchedOutbox
from lucius.adapters.ledger.postgres.store import PostgresStore, open_postgres
from lucius.adapters.ledger.postgres.writer import MAX_GROUP_DECISIONS
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import Cap
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import JobStatus, OutboxStatus, StepStatus
from lucius.core.protocol.definition import WEBHOOK_SERVICE
from lucius.ports.errors import AlreadyAccepted, LedgerBusy, LedgerDown, LedgerError, LimitReached, VersionConflict
from lucius.ports.outbox import PendingQuery
from lucius.ports.peers import Wake
from tests.conformance.builders import accept, command, dispatch, row, step, then
from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer
from tests.support.until import until


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_postgres(url)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def local(emptied_postgres_url: str) -> AsyncIterator[PostgresStore]:
    """Yield a replica; with the fixture `peer` there are two."""
    async with opened(emptied_postgres_url) as store:
        yield store


@pytest.fixture
async def peer(emptied_postgres_url: str, local: PostgresStore) -> AsyncIterator[PostgresStore]:
    """Yield a second replica once the first knows it: a sole replica sends no notifications."""
    async with opened(emptied_postgres_url) as store:
        await until(lambda: not local.replica.notifier.peers.is_alone())
        yield store


def now(store: PostgresStore) -> int:
    assert store.clock is not None
    return store.clock.now()


async def claim_job_ids(store: PostgresStore, hold_ms: int = 10_000, limit: int = 10) -> list[str]:
    query = PendingQuery(limit=limit, now=now(store), service="ocr", hold_ms=hold_ms, later=False)
    return [found.job_id for found in await store.outbox.pending(query)]


async def until_alone(store: PostgresStore) -> None:
    async with asyncio.timeout(10):
        while True:
            await store.replica.notifier.send_heartbeat()
            if store.replica.notifier.peers.is_alone():
                return
            await asyncio.sleep(0.01)


def end(decision: Decision) -> Decision:
    return then(decision, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000)


def watch_busy_outcomes(monkeypatch: pytest.MonkeyPatch, *ledgers: PostgresStore) -> list[LedgerBusy]:
    """Return a list that collects LedgerBusy outcomes, with which groups in a lock cycle are refused."""
    seen: list[LedgerBusy] = []

    async def watched(attempt: Callable[..., Awaitable[Exception | None]], *args: Any) -> Exception | None:
        outcome = await attempt(*args)
        if isinstance(outcome, LedgerBusy):
            seen.append(outcome)
        return outcome

    for store in ledgers:
        monkeypatch.setattr(store.writer, "try_commit", partial(watched, store.writer.try_commit))
    return seen


HOLD = "SELECT FROM live WHERE id IN (SELECT id FROM jobs WHERE job_id = ANY ($1)) FOR UPDATE"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class TestCommitGuard:
    async def test_outdated_view_is_marked_uncached_and_its_decision_conflicts(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        first = dispatch("j1")
        await local.ledger.commit(first)
        peer_view = await peer.ledger.load("j1")
        assert peer_view is not None
        assert peer_view.cached is False
        second = then(first, status=JobStatus.IN_PROGRESS)
        await local.ledger.commit(second)
        with pytest.raises(VersionConflict):
            await peer.ledger.commit(then(first, status=JobStatus.CANCELLING))
        again = await peer.ledger.load("j1")
        assert again is not None
        assert (again.job, again.cached) == (second.job, False)

    async def test_own_last_commit_is_served_from_memory(self, local: PostgresStore) -> None:
        first = dispatch("j1")
        await local.ledger.commit(first)
        view = await local.ledger.load("j1")
        assert view is not None
        assert (view.job, view.cached) == (first.job, True)
        fresh = await local.ledger.load("j1", fresh=True)
        assert fresh is not None
        assert (fresh.job, fresh.steps, fresh.cached) == (first.job, view.steps, False)

    async def test_step_missing_from_the_cached_view_is_fetched(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        first = dispatch("j1")
        done = step("j1", "embedding", status=StepStatus.SUCCEEDED)
        await local.ledger.commit(first)
        await local.ledger.commit(then(first, steps=(done,)))
        assert (await peer.ledger.load("j1")) is not None
        view = await peer.ledger.load("j1", ("embedding", "never"))
        assert view is not None
        assert view.steps["embedding"] == done
        assert "never" not in view.steps

    async def test_unannounced_steps_of_a_peer_are_read_anew_after_a_later_own_commit(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process ended the job and died before it announced that; here the job is then begun again."""
        first = dispatch("j1")
        await local.ledger.commit(first)
        monkeypatch.setattr(peer.replica.notifier, "publish", lambda decisions, held: None)
        done = step("j1", status=StepStatus.SUCCEEDED, result={"text": "read"})
        ended = then(first, status=JobStatus.FAILED_FINAL, active=(), steps=(done,), completed_at=2_000)
        await peer.ledger.load("j1")
        await peer.ledger.commit(ended)
        assert (await local.ledger.load("j1", fresh=True)) is not None
        await local.ledger.commit(then(ended, status=JobStatus.IN_PROGRESS, run_no=2))
        view = await local.ledger.load("j1", ("ocr",))
        assert view is not None
        assert view.steps == {"ocr": done}

    async def test_slow_read_never_mixes_old_steps_with_a_newer_head(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        first = dispatch("j1")
        await local.ledger.commit(first)
        early = await local.ledger.load("j1", fresh=True)
        assert early is not None
        working = step("j1", status=StepStatus.PROCESSING)
        second = then(first, steps=(working,))
        await local.ledger.commit(second)
        local.cache.evict(["j1"])
        local.cache.apply_read(
            early.job, dict(early.steps), set(early.steps), RecordSizes(0, dict.fromkeys(early.steps, 0))
        )
        await local.ledger.commit(then(second, status=JobStatus.IN_PROGRESS))
        view = await local.ledger.load("j1", ("ocr",))
        assert view is not None
        assert view.steps == {"ocr": working}

    async def test_fresh_read_keeps_what_the_cache_knows_about_absent_steps(self, local: PostgresStore) -> None:
        """Otherwise each new step of a long job would cost an extra read from then on."""
        first = dispatch("j1")
        await local.ledger.commit(first)
        assert await local.ledger.load("j1", ("ocr",), fresh=True) is not None
        view = await local.ledger.load("j1", ("ocr", "never-started"))
        assert view is not None
        assert view.cached
        assert list(view.steps) == ["ocr"]

    async def test_many_commits_with_one_idempotency_key_need_few_groups_and_delay_no_other(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups: list[int] = []
        local.hooks.on_flush = lambda decisions, seconds: groups.append(decisions)
        wanted = [
            local.ledger.commit(accept(f"j{i}", asked=command(f"j{i}", idempotency_key="k"))) for i in range(1_000)
        ]
        outcomes = await asyncio.gather(*wanted, local.ledger.commit(accept("other")), return_exceptions=True)
        assert outcomes[0] is outcomes[-1] is None
        assert {getattr(outcome, "job_id", None) for outcome in outcomes[1:-1]} == {"j0"}
        assert len(groups) < 5

    async def test_concurrent_commits_of_two_processes_with_one_idempotency_key_accept_one(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        for i in range(10):
            asked = {name: command(name, idempotency_key=f"k{i}") for name in (f"a{i}", f"b{i}")}
            outcomes = await asyncio.gather(
                local.ledger.commit(accept(f"a{i}", asked=asked[f"a{i}"])),
                peer.ledger.commit(accept(f"b{i}", asked=asked[f"b{i}"])),
                return_exceptions=True,
            )
            (refused,) = [outcome for outcome in outcomes if outcome is not None]
            assert isinstance(refused, AlreadyAccepted)
            holder = await local.ledger.accepted("acme", f"key:k{i}")
            assert holder is not None
            assert refused.job_id == holder.job_id

    async def test_idempotency_key_with_a_nul_byte_is_kept(self, local: PostgresStore) -> None:
        await local.ledger.commit(accept("j1", asked=command("j1", idempotency_key="a\x00b")))
        found = await local.ledger.accepted("acme", "key:a\x00b")
        assert found is not None
        assert found.job_id == "j1"
        with pytest.raises(AlreadyAccepted):
            await local.ledger.commit(accept("j2", asked=command("j2", idempotency_key="a\x00b")))
        assert await local.ledger.load("j\x001") is None

    async def test_a_limit_holds_over_all_processes(self, local: PostgresStore, peer: PostgresStore) -> None:
        cap = (Cap("jobs", 10),)
        commits = [
            store.ledger.commit(accept(f"{name}{i}", counters={"jobs": 1}, caps=cap))
            for i in range(20)
            for name, store in (("a", local), ("b", peer))
        ]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 10
        assert {type(outcome) for outcome in outcomes if outcome is not None} == {LimitReached}
        assert await local.jobs.counters("") == {"jobs": 10}

    async def test_room_freed_by_another_process_is_used(self, local: PostgresStore, peer: PostgresStore) -> None:
        cap = (Cap("jobs", 1),)
        first = accept("a", counters={"jobs": 1}, caps=cap)
        await local.ledger.commit(first)
        with pytest.raises(LimitReached):
            await peer.ledger.commit(accept("b", counters={"jobs": 1}, caps=cap))
        await local.ledger.commit(then(first, status=JobStatus.SUCCEEDED, counters={"jobs": -1}))
        await peer.ledger.commit(accept("b", counters={"jobs": 1}, caps=cap))

    async def test_equal_job_numbers_of_two_processes_do_not_collide(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        numbers = chain([7, 7], count(8))
        monkeypatch.setattr(IdGenerator, "next", lambda self, created_at: next(numbers))
        await local.ledger.commit(accept("a"))
        await peer.ledger.commit(accept("b"))
        assert await local.ledger.load("a") is not None
        assert await local.ledger.load("b") is not None

    async def test_ids_grow_even_if_the_clock_goes_back(self) -> None:
        ids = IdGenerator()
        made = [ids.next(at) for at in (5_000, 4_000, 4_000, 6_000)]
        assert made == sorted(set(made))

    async def test_groups_that_share_jobs_do_not_deadlock(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half of the jobs end, and each of the two writers expects the other half."""
        refused = watch_busy_outcomes(monkeypatch, local, peer)
        jobs = {f"j{i}": accept(f"j{i}") for i in range(20)}
        await asyncio.gather(*(local.ledger.commit(decision) for decision in jobs.values()))
        for _ in range(10):
            names = random.sample(sorted(jobs), len(jobs))
            nexts = {name: then(jobs[name], counters={"a": 1, "b": 1}) for name in names}
            outcomes = await asyncio.gather(
                *(store.ledger.commit(nexts[name]) for name in names for store in (local, peer)), return_exceptions=True
            )
            refusals = [outcome for outcome in outcomes if outcome is not None]
            assert len(refusals) == len(jobs)
            assert {type(refusal) for refusal in refusals} == {VersionConflict}
            jobs = nexts
        assert await local.jobs.counters("") == {"a": 200, "b": 200}
        ends = [
            store.ledger.commit(end(jobs[name]) if (i + n) % 2 else then(jobs[name]))
            for n, store in enumerate((local, peer))
            for i, name in enumerate(names)
        ]
        outcomes = await asyncio.gather(*random.sample(ends, len(ends)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [VersionConflict] * len(jobs)
        assert refused == []

    async def test_groups_that_end_jobs_do_not_deadlock(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each moves a job that the other ends, and both hold locks when they reach it."""
        first = {name: accept(name) for name in ("a", "b", "x", "y")}
        for decision in first.values():  # in this order, which is also the order of their ids
            await local.ledger.commit(decision)
        refused = watch_busy_outcomes(monkeypatch, local, peer)
        third = await local.database.connect()
        async with third.transaction():
            await third.execute(HOLD, ["x", "y"])
            commits = [
                asyncio.create_task(store.ledger.commit(decision))
                for store, moved, ends in ((local, "ax", "b"), (peer, "by", "a"))
                for decision in (*(then(first[name]) for name in moved), end(first[ends]))
            ]
            async with asyncio.timeout(10):
                while True:
                    if await third.fetchval(WAITING) == 2:
                        break
                    await asyncio.sleep(0.005)
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        await third.close()
        assert refused == []
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType"] * 4 + ["VersionConflict"] * 2

    async def test_finished_job_becomes_live_and_finishes_again(self, local: PostgresStore) -> None:
        first = dispatch("j1")
        ended = then(first, status=JobStatus.FAILED_FINAL, active=(), completed_at=2_000, due_at=None)
        late = then(ended, event_seq=5)
        revived = then(late, status=JobStatus.IN_PROGRESS, run_no=2, due_at=3_000)
        for decision in (first, ended, late, revived):
            await local.ledger.commit(decision)
            view = await local.jobs.job("j1")
            assert view is not None
            assert view.job == decision.job
        assert await local.ledger.due(3_000, 10) == ["j1"]
        again = then(revived, status=JobStatus.SUCCEEDED, completed_at=4_000, due_at=None)
        await local.ledger.commit(again)
        assert await local.ledger.due(9_000, 10) == []

    async def test_job_can_be_finished_by_its_first_commit(self, local: PostgresStore) -> None:
        await local.ledger.commit(accept("j1", status=JobStatus.SUCCEEDED, completed_at=1_000))
        view = await local.jobs.job("j1")
        assert view is not None
        assert view.job.status is JobStatus.SUCCEEDED


class TestOutboxHolds:
    async def test_held_row_is_not_given_to_another_process(self, local: PostgresStore, peer: PostgresStore) -> None:
        await local.ledger.commit(dispatch("a"))
        assert await claim_job_ids(peer) == ["a"]
        assert await claim_job_ids(local) == []
        assert await claim_job_ids(peer) == ["a"]  # the holder can still take it

    async def test_hold_expires_without_a_release(self, local: PostgresStore, peer: PostgresStore) -> None:
        await local.ledger.commit(dispatch("a"))
        assert await claim_job_ids(peer, hold_ms=1) == ["a"]
        await until(lambda: now(local) > now(peer) - 10)
        await asyncio.sleep(0.01)
        await local.replica.notifier.poll()
        assert await claim_job_ids(local) == ["a"]

    async def test_released_row_can_be_claimed_by_any_process(self, local: PostgresStore, peer: PostgresStore) -> None:
        await local.ledger.commit(dispatch("a"))
        rows = await peer.outbox.pending(PendingQuery(limit=10, now=now(peer), service="ocr", hold_ms=60_000))
        await peer.outbox.put_back(rows)
        assert await claim_job_ids(local) == ["a"]

    async def test_released_row_is_announced_to_peers(self, local: PostgresStore, peer: PostgresStore) -> None:
        await local.ledger.commit(dispatch("a"))
        rows = await local.outbox.pending(PendingQuery(limit=10, now=now(local), service="ocr", hold_ms=60_000))
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        await local.outbox.put_back(rows)
        await until(lambda: any(wake.ready == (("ocr", 3),) for wake in wakes))

    async def test_undeliverable_rows_do_not_circulate_between_replicas(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await local.ledger.commit(dispatch("a"))
        told: list[object] = []
        monkeypatch.setattr(local.replica.notifier, "publish_ready", told.append)
        for _ in range(5):
            rows = await local.outbox.pending(PendingQuery(limit=10, now=now(local), service="ocr", hold_ms=60_000))
            await local.outbox.put_back(rows)
        assert len(told) == 1

    async def test_releasing_skips_locked_rows_without_waiting(self, local: PostgresStore, peer: PostgresStore) -> None:
        await local.ledger.commit(dispatch("a"))
        await local.ledger.commit(dispatch("b"))
        rows = await local.outbox.pending(PendingQuery(limit=10, now=now(local), service="ocr", hold_ms=60_000))
        async with peer.database.transaction() as changing:
            await changing.execute("SELECT FROM outbox WHERE job_id = 'a' FOR UPDATE")
            async with asyncio.timeout(5):
                await local.outbox.put_back(rows)
        assert await claim_job_ids(peer) == ["b"]

    async def test_row_held_by_another_process_cannot_be_released(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        await local.ledger.commit(dispatch("a"))
        rows = await peer.outbox.pending(PendingQuery(limit=10, now=now(peer), service="ocr", hold_ms=60_000))
        await local.outbox.put_back(rows)
        assert await claim_job_ids(local) == []

    async def test_concurrent_claims_of_two_processes_never_overlap(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        await asyncio.gather(*(local.ledger.commit(dispatch(f"j{i}")) for i in range(100)))
        seen: dict[str, set[str]] = {"local": set(), "peer": set()}

        async def take(name: str, store: PostgresStore) -> None:
            for _ in range(20):
                seen[name].update(await claim_job_ids(store))

        await asyncio.gather(take("local", local), take("peer", peer), take("local", local), take("peer", peer))
        assert not seen["local"] & seen["peer"]

    async def test_rows_beyond_a_tenants_share_are_found_by_the_next_claims(self, local: PostgresStore) -> None:
        """Two small tenants beside a large one, all in the database and none in memory."""
        for tenant, n in (("a", 40), ("b", 1), ("c", 1)):
            asked = [(f"{tenant}{i}", command(f"{tenant}{i}", tenant_id=tenant)) for i in range(n)]
            await asyncio.gather(
                *(local.ledger.commit(dispatch(name, asked=one, tenant_id=tenant)) for name, one in asked)
            )
        local.replica.forget()
        seen: set[str] = set()
        for _ in range(4):
            query = PendingQuery(
                limit=20, now=now(local), service="ocr", hold_ms=1_000, later=False, except_rows=frozenset(seen)
            )
            seen |= {found.outbox_id for found in await local.outbox.pending(query)}
        assert len(seen) == 42

    async def test_hundreds_of_tenants_are_served_within_four_claims(self, local: PostgresStore) -> None:
        asked = [(f"t{i}", command(f"t{i}", tenant_id=f"t{i}")) for i in range(200)]
        await asyncio.gather(*(local.ledger.commit(dispatch(name, asked=one, tenant_id=name)) for name, one in asked))
        local.replica.forget()
        seen: set[str] = set()
        for _ in range(4):
            query = PendingQuery(
                limit=100, now=now(local), service="ocr", hold_ms=1_000, later=False, except_rows=frozenset(seen)
            )
            seen |= {found.outbox_id for found in await local.outbox.pending(query)}
        assert len(seen) == 200

    async def test_long_queue_of_one_service_does_not_hide_the_row_of_another(self, local: PostgresStore) -> None:
        await asyncio.gather(*(local.ledger.commit(dispatch(f"a{i}")) for i in range(60)))
        await local.ledger.commit(dispatch("b", service="sis"))
        local.replica.forget()
        seen: set[str] = set()
        for _ in range(8):
            query = PendingQuery(limit=20, now=now(local), hold_ms=1_000, later=False, except_rows=frozenset(seen))
            seen |= {found.outbox_id for found in await local.outbox.pending(query)}
        assert len(seen) == 61

    async def test_row_awaited_here_is_claimed_without_a_query(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local.hooks.awaited = lambda row: True
        monkeypatch.setattr("lucius.adapters.ledger.postgres.replica.RELEASE_UNCLAIMED_SECONDS", 60)
        await until(lambda: not local.replica.notifier.peers.is_alone())
        assert await claim_job_ids(local) == []  # it has queried, and waits
        await local.ledger.commit(dispatch("a"))
        assert await claim_job_ids(peer) == []
        monkeypatch.setattr(local.database, "fetch_rows", _forbid_query)
        assert await claim_job_ids(local) == ["a"]

    async def test_sole_replica_serves_from_memory_and_a_joining_peer_sees_its_rows(
        self, local: PostgresStore, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await claim_job_ids(local) == []
        await asyncio.gather(*(local.ledger.commit(dispatch(f"j{i}")) for i in range(12)))
        with monkeypatch.context() as asking:
            asking.setattr(local.database, "fetch_rows", _forbid_query)
            assert len(await claim_job_ids(local)) == 10
        async with opened(emptied_postgres_url) as peer:
            assert {"j10", "j11"} <= set(await claim_job_ids(peer, limit=20))
            await until(lambda: not local.replica.notifier.peers.is_alone())
            assert await claim_job_ids(local) == []

    async def test_webhook_row_is_held_for_as_long_as_its_sender_asks(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        local.hooks.awaited = lambda row: True
        await local.ledger.commit(dispatch("a", service=WEBHOOK_SERVICE))

        async def told_by(store: PostgresStore, at: int) -> list[str]:
            query = PendingQuery(limit=10, now=at, service=WEBHOOK_SERVICE, hold_ms=60_000)
            return [found.job_id for found in await store.outbox.pending(query)]

        begun = now(local)
        assert await told_by(local, begun) == ["a"]
        assert await told_by(peer, begun + 50_000) == []
        peer.claims.reset()
        assert await told_by(peer, begun + 60_001) == ["a"]

    async def test_awaited_row_that_is_not_claimed_is_soon_released_to_peers(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        woken: list[Wake] = []
        peer.hooks.on_wake = woken.append
        local.hooks.awaited = lambda row: True
        await local.ledger.commit(dispatch("a"))
        await until(lambda: any(wake.ready == (("ocr", 3),) for wake in woken))
        assert await claim_job_ids(peer) == ["a"]

    async def test_empty_queue_is_not_queried_again_until_a_commit(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = PendingQuery(limit=10, now=now(local), service="ocr", hold_ms=1_000, later=False)
        assert await local.outbox.pending(query) == []
        with monkeypatch.context() as asking:
            asking.setattr(local.database, "fetch_rows", _forbid_query)
            assert await local.outbox.pending(query) == []
        await local.ledger.commit(dispatch("a"))
        assert [found.job_id for found in await local.outbox.pending(query)] == ["a"]

    async def test_rows_of_a_service_at_its_cap_are_found_once_it_is_below(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wakes: list[Wake] = []
        local.hooks.on_wake = wakes.append
        for store in (local, peer):
            monkeypatch.setattr(store.replica.notifier, "poll", _forbid_query)
        await peer.ledger.commit(dispatch("a"))
        await until(lambda: any(wake.changed == ("a",) for wake in wakes))
        everything = PendingQuery(limit=10, now=now(local), hold_ms=1_000, later=False)
        capped = replace(everything, except_services=frozenset({"ocr", "sis"}))
        assert await local.outbox.pending(capped) == []
        with monkeypatch.context() as asking:  # while the service is at its cap, nothing has changed
            asking.setattr(local.database, "fetch_rows", _forbid_query)
            assert await local.outbox.pending(capped) == []
        assert [found.job_id for found in await local.outbox.pending(everything)] == ["a"]

    async def test_services_take_turns_in_the_prefetched_rows(self, local: PostgresStore) -> None:
        await until_alone(local)
        query = PendingQuery(limit=4, now=now(local), hold_ms=1_000, later=False)
        assert await local.outbox.pending(query) == []
        for n in range(6):
            await local.ledger.commit(dispatch(f"ocr-{n}"))
        for n in range(3):
            await local.ledger.commit(dispatch(f"sis-{n}", service="sis"))
        found = [[row.job_id for row in await local.outbox.pending(query)] for _ in range(3)]
        assert found == [["ocr-0", "sis-0", "ocr-1", "sis-1"], ["ocr-2", "sis-2", "ocr-3", "ocr-4"], ["ocr-5"]]

    async def test_row_due_later_is_found_on_time_here_and_soon_after_elsewhere(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        async def at(store: PostgresStore, instant: int) -> list[str]:
            query = PendingQuery(limit=10, now=instant, service="ocr", hold_ms=1_000)
            return [found.job_id for found in await store.outbox.pending(query)]

        assert await at(local, 1_000) == await at(peer, 1_000) == []
        await local.ledger.commit(dispatch("a", next_attempt_at=3_000))
        assert await at(local, 2_999) == []
        assert await at(peer, 3_000) == []
        assert await at(local, 3_000) == ["a"]
        assert await at(peer, 16_000) == ["a"]

    async def test_due_job_is_given_to_one_process_at_a_time(self, local: PostgresStore, peer: PostgresStore) -> None:
        await local.ledger.commit(accept("a", due_at=100))
        assert await peer.ledger.due(200, 10, 5_000) == ["a"]
        assert await local.ledger.due(200, 10, 5_000) == []
        assert await local.ledger.due(6_000, 10, 5_000) == ["a"]

    async def test_due_without_a_hold_always_queries_the_database(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a hold, as for readiness, the database is queried even where the sweeper may skip the query."""
        assert local.liveness is not None
        await local.liveness.record_tick(now(local), 4_000)
        with monkeypatch.context() as away:
            away.setattr(local.database, "fetch_rows", _forbid_query)
            with pytest.raises(AssertionError):
                await local.ledger.due(0, 1)
            assert await local.ledger.due(1, 10, 1_000) == []  # the sweeper's query is still skipped

    async def test_postponed_deadline_is_not_due(self, local: PostgresStore) -> None:
        first = accept("a", due_at=100)
        await local.ledger.commit(first)
        await local.ledger.commit(then(first, due_at=500))
        assert await local.ledger.due(200, 10, 1_000) == []
        assert await local.ledger.due(200, 10) == []
        assert await local.ledger.due(500, 10, 1_000) == ["a"]


async def _forbid_query(*args: object) -> list[object]:
    raise AssertionError("the database was asked")


class TestNotifications:
    async def test_peers_are_notified_of_durable_changes(self, local: PostgresStore, peer: PostgresStore) -> None:
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        first = dispatch("j1")
        await local.ledger.commit(first)
        await until(lambda: any(wake.changed == ("j1",) for wake in wakes))
        assert wakes[-1].ready == (("ocr", 3),)
        assert wakes[-1].ended == ()
        settled = row(first.steps[0], status=OutboxStatus.SENT)
        ended = then(first, status=JobStatus.SUCCEEDED, outbox=(settled,), counters={"unacked/ocr": -1})
        await local.ledger.commit(ended)
        await until(lambda: any(wake.ended == ("j1",) for wake in wakes))
        assert wakes[-1].picked_up == ("ocr",)

    async def test_near_deadlines_are_announced_and_far_ones_are_not(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        await asyncio.gather(*(local.ledger.commit(accept(f"j{i}", due_at=2_000 + i)) for i in range(3)))
        await local.ledger.commit(accept("far", due_at=60_000))
        await until(lambda: len({job_id for wake in wakes for job_id in wake.changed}) == 4)
        assert sorted(due for wake in wakes for due in wake.due) == [2_000, 2_001, 2_002]

    async def test_two_replicas_that_start_at_once_know_of_each_other(self, emptied_postgres_url: str) -> None:
        for _ in range(5):
            both = await asyncio.gather(*(open_postgres(emptied_postgres_url) for _ in range(2)))
            try:
                await until(lambda both=both: not any(one.replica.notifier.peers.is_alone() for one in both))  # type: ignore[misc]
            finally:
                await asyncio.gather(*(one.close() for one in both))

    async def test_peer_that_joins_during_a_count_is_not_lost(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await until_alone(local)

        async def slow(*_: object) -> list[dict[str, int]]:
            local.replica.notifier.peers.record_peer(7, sweeps=False)
            return [{"n": 1, "sweepers": 0}]

        monkeypatch.setattr(local.database, "fetch_rows", slow)
        await local.replica.notifier.count_peers()
        assert not local.replica.notifier.peers.is_alone()

    async def test_listener_without_echo_is_replaced(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        notifier = local.replica.notifier
        deaf = notifier.listener
        assert deaf is not None
        await deaf.execute("UNLISTEN *")
        await notifier.send_heartbeat()
        assert not notifier.hears_itself
        notifier.drop_dead_listener()
        assert not deaf.is_closed(), "the echo may still come"
        with monkeypatch.context() as patched:
            patched.setattr(notify, "ECHO_TIMEOUT_SECONDS", 0.0)
            notifier.drop_dead_listener()
        await until(lambda: notifier.listener not in (None, deaf) and notifier.hears_itself)

    async def test_concurrent_heartbeats_share_one_connection(self, local: PostgresStore) -> None:
        """The listener and a poll may both send one: they label the one listening connection in turn."""
        notifier = local.replica.notifier
        listener = notifier.listener
        assert listener is not None
        notifier.peers.is_sweeper = True
        await asyncio.gather(*(notifier.send_heartbeat() for _ in range(3)))
        labelled = await local.database.fetch_rows(
            "SELECT pid FROM pg_stat_activity WHERE application_name = $1", notifier.channel + SWEEPER_SUFFIX
        )
        assert notifier.listener is listener
        assert [row["pid"] for row in labelled] == [listener.get_server_pid()]

    async def test_connection_lost_during_a_heartbeat_is_an_outage(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Cut:
            def terminate(self) -> None:
                pass

            async def execute(self, *_: object, timeout: float) -> None:
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

        local.replica.notifier.peers.is_sweeper = True
        monkeypatch.setattr(local.replica.notifier, "listener", Cut())
        with pytest.raises(LedgerDown):
            await local.replica.notifier.send_heartbeat()

    async def test_cache_is_dropped_when_the_last_peer_leaves(
        self, local: PostgresStore, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = dispatch("j1")
        await local.ledger.commit(first)
        async with opened(emptied_postgres_url) as peer:
            await until(lambda: not local.replica.notifier.peers.is_alone())
            await local.ledger.load("j1", fresh=True)
            monkeypatch.setattr(peer.replica.notifier, "publish", lambda decisions, held: None)
            await peer.ledger.load("j1")
            ended = then(first, status=JobStatus.SUCCEEDED, completed_at=2_000)
            await peer.ledger.commit(ended)
        await until_alone(local)
        view = await local.jobs.job("j1")
        assert view is not None
        assert view.job == ended.job

    async def test_replica_without_listener_does_not_count_as_alone(self, local: PostgresStore) -> None:
        await until_alone(local)
        assert local.replica.notifier.listener is not None
        local.replica.notifier.listener.terminate()
        await until(lambda: not local.replica.notifier.peers.is_alone())

    async def test_peers_on_another_database_are_not_counted(self, postgres: PostgresServer) -> None:
        if not postgres.query("SELECT 1 FROM pg_database WHERE datname = 'another'"):
            postgres.query("CREATE DATABASE another")
        url = postgres.url("elsewhere")
        async with opened(url) as local, opened(url.replace("/postgres?", "/another?")):
            await local.replica.notifier.send_heartbeat()
            assert local.replica.notifier.peers.is_alone()

    async def test_own_notifications_are_ignored(self, local: PostgresStore, peer: PostgresStore) -> None:
        wakes: list[Wake] = []
        other: list[Wake] = []
        local.hooks.on_wake, peer.hooks.on_wake = wakes.append, other.append
        await local.ledger.commit(dispatch("j1"))
        await until(lambda: bool(other))
        assert [wake for wake in wakes if wake.changed] == []

    async def test_sole_replica_sends_no_notification(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[object] = []

        async def say(note: object) -> None:
            said.append(note)

        monkeypatch.setattr(local.replica.notifier, "send", say)
        await local.ledger.commit(dispatch("j1"))
        await asyncio.sleep(0)
        assert [note for note in said if getattr(note, "wake", Wake()) != Wake()] == []

    async def test_announced_inbox_ids_reach_peers_only(self, local: PostgresStore, peer: PostgresStore) -> None:
        wakes: list[Wake] = []
        mine: list[Wake] = []
        local.hooks.on_wake, peer.hooks.on_wake = mine.append, wakes.append
        await until(lambda: not local.replica.notifier.peers.is_alone())
        local.inbox.announce(["j1/a", "j1/b"])
        local.inbox.announce(["j2/c"])
        await until(lambda: "j2/c" in [one for wake in wakes for one in wake.inbox_ids])
        assert [one for wake in wakes for one in wake.inbox_ids] == ["j1/a", "j1/b", "j2/c"]
        assert [wake for wake in mine if wake.inbox_ids] == []

    async def test_sole_replica_announces_no_inbox_ids(self, local: PostgresStore) -> None:
        await until_alone(local)
        local.inbox.announce(["j1/a"])
        assert not local.replica.notifier.has_unsent

    async def test_many_changes_need_few_notifications(self, local: PostgresStore, peer: PostgresStore) -> None:
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        await asyncio.gather(*(local.ledger.commit(dispatch(f"job-{i:040}")) for i in range(400)))
        await until(lambda: len({job_id for wake in wakes for job_id in wake.changed}) == 400)
        assert len(wakes) < 40

    async def test_notifications_with_long_names_arrive_completely(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        new = [
            dispatch(f"job-{i:040}", service=f"a-service-with-a-long-name-{i % 60}", lane=i % 16) for i in range(400)
        ]
        await asyncio.gather(*(local.ledger.commit(decision) for decision in new))
        await until(lambda: len({job_id for wake in wakes for job_id in wake.changed}) == 400)
        ended = [then(decision, status=JobStatus.CANCELLED, completed_at=1) for decision in new]
        await asyncio.gather(*(local.ledger.commit(decision) for decision in ended))
        await until(lambda: len({job_id for wake in wakes for job_id in wake.ended}) == 400)
        assert {service for wake in wakes for service, _ in wake.ready} == {row.outbox[0].service for row in new}

    async def test_new_protocol_revision_is_announced(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        before = await peer.protocols.protocol_revision()
        await local.protocols.put_protocols([], await local.protocols.protocol_revision())
        assert await local.protocols.protocol_revision() == before + 1
        monkeypatch.setattr(peer.replica.notifier, "poll", _forbid_query)
        await until(lambda: peer.replica.revision == before + 1)
        assert Wake(protocols=True) in wakes

    async def test_polling_finds_changes_without_notification(
        self, local: PostgresStore, peer: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wakes: list[Wake] = []
        peer.hooks.on_wake = wakes.append
        monkeypatch.setattr(local.replica.notifier, "publish", lambda decisions, held: None)
        await local.ledger.commit(dispatch("j1"))
        await peer.replica.notifier.poll()
        assert wakes == [Wake(ready=(("ocr", -1),))]


class TestClock:
    def clock(self) -> tuple[DatabaseClock, list[float]]:
        steady = [100.0]
        return DatabaseClock(lambda: steady[0]), steady

    def test_clock_continues_from_the_last_sample(self) -> None:
        clock, steady = self.clock()
        clock.add_sample(5_000_000, 99.9, 100.1)
        assert clock.now() == 5_000_000
        steady[0] += 2.5
        assert clock.now() == 5_002_500

    def test_small_step_back_never_turns_the_clock_back(self) -> None:
        clock, steady = self.clock()
        clock.add_sample(5_000_000, 100.0, 100.0)
        assert clock.now() == 5_000_000
        clock.add_sample(4_996_000, 100.0, 100.0)
        assert clock.now() == 5_000_000
        steady[0] += 5
        assert clock.now() == 5_001_000

    def test_large_step_back_is_followed(self) -> None:
        clock, _ = self.clock()
        clock.add_sample(5_000_000, 100.0, 100.0)
        assert clock.now() == 5_000_000
        clock.add_sample(4_000_000, 100.0, 100.0)
        assert clock.now() == 4_000_000

    def test_sample_with_a_slow_answer_is_ignored(self) -> None:
        clock, _ = self.clock()
        clock.add_sample(5_000_000, 100.0, 100.0)
        clock.add_sample(9_000_000, 99.0, 100.0)
        assert clock.now() == 5_000_000

    async def test_clocks_of_two_processes_agree(self, local: PostgresStore, peer: PostgresStore) -> None:
        assert abs(now(local) - now(peer)) < 250


class TestOrder:
    async def test_commit_order_is_queue_order_even_if_the_protocol_is_written_slowly(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both groups pin a protocol that is not stored yet; the first to write it would be the last to finish."""
        database, waits = local.database, [0.2]
        connection = database.connection

        @asynccontextmanager
        async def slow_at_first() -> AsyncIterator[Any]:
            async with connection() as opened:
                if waits:
                    await asyncio.sleep(waits.pop())
                yield opened

        monkeypatch.setattr(database, "connection", slow_at_first)
        jobs = [dispatch(f"j{n}", asked=command(f"j{n}")) for n in range(MAX_GROUP_DECISIONS + 1)]
        await asyncio.gather(*(local.ledger.commit(job) for job in jobs))
        found = await local.outbox.pending(PendingQuery(limit=1, now=5_000, service="ocr"))
        assert [row.job_id for row in found] == ["j0"]


class TestPresence:
    async def test_short_intervals_between_ticks_are_no_absence(self, local: PostgresStore) -> None:
        assert local.liveness is not None
        at = 2 * 10**12 + random.randrange(10**6) * 10_000
        resumed = {await local.liveness.record_tick(at + tick * 300, 1_000) for tick in range(20)}
        assert resumed == {at}

    async def test_only_sweepers_share_the_polling_of_deadlines(self, local: PostgresStore) -> None:
        assert local.liveness is not None
        local.replica.notifier.peers.record_count(0, 0, queried_at=math.inf)
        for sender in range(20):
            local.replica.notifier.peers.record_peer(sender, sweeps=False)
        assert (local.liveness.poll_backoff(), local.replica.notifier.peers.poll_backoff()) == (1.0, 21 / 4)
        for sender in range(200):
            local.replica.notifier.peers.record_peer(sender, sweeps=True)
        assert (local.liveness.poll_backoff(), local.replica.notifier.peers.poll_backoff()) == (4.0, 8.0)

    async def test_joining_replica_counts_peers_and_sweepers(
        self, local: PostgresStore, emptied_postgres_url: str
    ) -> None:
        assert local.liveness is not None
        await local.liveness.record_tick(now(local), 4_000)
        await local.replica.notifier.send_heartbeat()
        async with opened(emptied_postgres_url) as peer:
            assert peer.replica.notifier.peers.counted == (1, 1)

    async def test_silent_peers_no_longer_share_polling(
        self, local: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert local.liveness is not None
        for sender in range(20):
            local.replica.notifier.peers.record_peer(sender, sweeps=True)
        monkeypatch.setattr(peer_registry, "PEER_TTL_SECONDS", -1.0)  # whatever was heard is too old
        assert local.liveness.poll_backoff() == 1.0

    async def test_tick_of_another_replica_prevents_an_absence(self, local: PostgresStore, peer: PostgresStore) -> None:
        assert local.liveness is not None
        assert peer.liveness is not None
        at = 10**12 + random.randrange(10**9) * 1_000
        resumed = await local.liveness.record_tick(at, 4_000)
        assert resumed == at
        assert await peer.liveness.record_tick(at + 2_000, 4_000) == at
        assert await local.liveness.record_tick(at + 5_000, 4_000) == at
        assert await peer.liveness.record_tick(at + 9_001, 4_000) == at + 9_001
        assert await local.liveness.record_tick(at + 9_500, 4_000) == at + 9_001

    async def test_replica_of_another_engine_does_not_cover_an_absence(
        self, local: PostgresStore, peer: PostgresStore
    ) -> None:
        """It takes no callbacks, so its activity does not cover an absence of the others."""
        assert local.liveness is not None
        assert peer.liveness is not None
        at = 10**12 + random.randrange(10**9) * 1_000
        await local.liveness.record_tick(at, 4_000)
        assert await peer.liveness.working_since(at + 3_000, 4_000) == at
        assert not peer.replica.notifier.peers.is_sweeper
        assert await local.liveness.record_tick(at + 6_000, 4_000) == at + 6_000

    async def test_absence_of_all_engines_counts_within_bounds(self, local: PostgresStore) -> None:
        assert local.liveness is not None
        at = 10**12 + random.randrange(10**9) * 1_000
        await local.liveness.record_tick(at, 4_000)
        found = [
            await local.liveness.working_since(at + after, 4_000) - at for after in (20_000, 20_001, 599_999, 600_000)
        ]
        assert found == [0, 20_001, 599_999, 0]


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Yield a server that the test may stop."""
    need_postgres()
    own = PostgresServer(fsync=True)
    yield own
    own.remove()


@pytest.fixture
def server(own_server: PostgresServer) -> PostgresServer:
    own_server.restart()
    own_server.execute("DROP SCHEMA IF EXISTS lucius CASCADE")
    return own_server


class TestServerOutages:
    async def test_commit_is_refused_during_an_outage_and_accepted_after_it(self, server: PostgresServer) -> None:
        async with opened(server.url()) as store:
            await store.ledger.commit(dispatch("a"))
            await asyncio.to_thread(server.stop, crash=True)
            with pytest.raises(LedgerDown):
                await store.ledger.commit(dispatch("b"))
            await asyncio.to_thread(server.start)
            await self.commit_patiently(store, dispatch("c"))
            assert [view is not None for view in [await store.jobs.job(job) for job in "abc"]] == [True, False, True]

    async def test_read_waits_for_a_restart(self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "READ_RETRY_SECONDS", 60.0)  # however long a restart takes on this machine
        async with opened(server.url()) as store:
            await store.ledger.commit(dispatch("a"))
            await asyncio.to_thread(server.stop, crash=True)
            reading = asyncio.create_task(store.jobs.job("a"))
            await asyncio.to_thread(server.start)
            assert await reading is not None

    async def test_acknowledged_jobs_survive_restarts_and_every_job_is_complete(self, server: PostgresServer) -> None:
        async with opened(server.url()) as store:
            answered: set[str] = set()
            stop = asyncio.Event()

            async def go_on(name: str) -> None:
                for i in range(100_000):
                    if stop.is_set():
                        return
                    try:
                        await store.ledger.commit(dispatch(f"{name}-{i}", asked=command(f"{name}-{i}")))
                    except LedgerError:
                        await asyncio.sleep(0.01)
                    else:
                        answered.add(f"{name}-{i}")

            workers = [asyncio.create_task(go_on(str(n))) for n in range(8)]
            for crash in (True, False, True):
                before = len(answered)
                await until(lambda before=before: len(answered) > before + 20)  # type: ignore[misc]
                await asyncio.to_thread(server.restart, crash=crash)
            before = len(answered)
            await until(lambda: len(answered) > before + 20)
            stop.set()
            await asyncio.gather(*workers)
            found = {job["job_id"]: job for job in server.query(_WHOLE)}
            assert answered <= found.keys()
            assert {(job["live"], job["steps"], job["outbox"], job["events"]) for job in found.values()} == {
                (1, 1, 1, 1)
            }

    async def test_listener_reconnects_after_a_restart(self, server: PostgresServer) -> None:
        async with opened(server.url()) as local, opened(server.url()) as peer:
            await asyncio.to_thread(server.restart, crash=True)
            wakes: list[Wake] = []
            peer.hooks.on_wake = wakes.append
            n = 0
            async with asyncio.timeout(20):
                while not any(wake.changed for wake in wakes):
                    n += 1
                    await self.commit_patiently(local, dispatch(f"j{n}"))
                    await asyncio.sleep(0.05)

    async def test_store_can_be_closed_during_an_outage(self, server: PostgresServer) -> None:
        async with opened(server.url()) as peer:
            store = await open_postgres(server.url())
            await until(lambda: not peer.replica.notifier.peers.is_alone())
            await asyncio.to_thread(server.stop, crash=True)
            store.replica.notifier.publish_revision(7)
            async with asyncio.timeout(15):
                await store.close()
            await asyncio.to_thread(server.start)

    async def test_opening_during_an_outage_raises_ledger_down(self, server: PostgresServer) -> None:
        await asyncio.to_thread(server.stop)
        with pytest.raises(LedgerDown, match="can't be reached"):
            await open_postgres(server.url())

    async def commit_patiently(self, store: PostgresStore, decision: Decision) -> None:
        async with asyncio.timeout(10):
            while True:
                try:
                    return await store.ledger.commit(decision)
                except LedgerDown:
                    await asyncio.sleep(0.02)


_WHOLE = """
    SELECT job_id, (SELECT count(*) FROM lucius.live WHERE id = jobs.id) AS live,
           (SELECT count(*) FROM lucius.steps WHERE job = jobs.id) AS steps,
           (SELECT count(*) FROM lucius.outbox WHERE job = jobs.id) AS outbox,
           (SELECT count(*) FROM lucius.events WHERE job = jobs.id) AS events
    FROM lucius.jobs
"""


async def test_schema_owner_needs_no_right_to_create_schemas(postgres: PostgresServer) -> None:
    postgres.execute(
        """
        DROP SCHEMA IF EXISTS owned CASCADE; DROP ROLE IF EXISTS owner_only;
        CREATE ROLE owner_only LOGIN; REVOKE CREATE ON DATABASE postgres FROM PUBLIC;
        CREATE SCHEMA owned AUTHORIZATION owner_only
        """
    )
    async with opened(postgres.url("owned").replace("lucius@", "owner_only@")) as store:
        await store.ledger.commit(dispatch("a"))


async def test_invalid_url_is_refused_naming_its_setting() -> None:
    with pytest.raises(LedgerError, match="LUCIUS_LEDGER_URL"):
        await open_postgres("postgresql://host:port/db")


class TestPrefetchedOutbox:
    def rows(self, tenant_id: str, n: int) -> list[OutboxRow]:
        steps = [step(f"{tenant_id}-{i}") for i in range(n)]
        return [row(one, tenant_id=tenant_id) for one in steps]

    def test_tenants_take_turns(self) -> None:
        reserve = PrefetchedOutbox()
        for one in (*self.rows("a", 50), *self.rows("b", 2)):
            assert reserve.add(one, held=False)
        served = [one.tenant_id for one in reserve.take("ocr", 3, lambda _: True)]
        served += [one.tenant_id for one in reserve.take("ocr", 3, lambda _: True)]
        assert served == ["a", "b", "a", "b", "a", "a"]

    def test_unwanted_rows_stay(self) -> None:
        reserve = PrefetchedOutbox()
        for one in (*self.rows("a", 3), *self.rows("b", 1)):
            reserve.add(one, held=False)
        assert [one.job_id for one in reserve.take("ocr", 9, lambda one: one.job_id == "a-1")] == ["a-1"]
        assert len(reserve.take("ocr", 9, lambda _: True)) == 3
        assert reserve.services() == []

    def test_capacity_is_bounded_and_a_row_counts_once(self) -> None:
        reserve = PrefetchedOutbox()
        many = self.rows("a", MAX_ROWS_PER_SERVICE)
        assert all(reserve.add(one, held=False) for one in (*many, *many[:5]))
        (over,) = self.rows("b", 1)
        assert not reserve.add(over, held=False)
        reserve.discard(many[0])
        assert reserve.add(over, held=False)

    def test_only_held_rows_must_be_released(self) -> None:
        reserve = PrefetchedOutbox()
        ours, free = self.rows("a", 2)
        reserve.add(ours, held=True)
        reserve.add(free, held=False)
        assert reserve.take_held() == [ours]
        assert reserve.take("ocr", 9, lambda _: True) == [free]


def test_job_cache_is_bounded_and_evicts_the_oldest() -> None:
    cache = JobCache(max_jobs=2)
    for name in "abc":
        decision = dispatch(name)
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.apply_commit(decision.job, decision.steps, creates=True, size=10)
    assert [cache.view(name, ()) is not None for name in "abc"] == [False, True, True]


def test_job_cache_is_bounded_in_bytes() -> None:
    cache = JobCache(max_bytes=100)
    decisions = {name: dispatch(name) for name in "abc"}
    for decision in decisions.values():
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.apply_commit(decision.job, decision.steps, creates=True, size=40)
    assert [cache.view(name, ()) is not None for name in "abc"] == [False, True, True]
    more = then(decisions["c"])
    cache.apply_commit(more.job, (), creates=False, size=70)
    assert [cache.view(name, ()) is not None for name in "abc"] == [False, False, False]
    assert cache.size_bytes == 0


class TestJobCacheReads:
    """Reads of a job of which a part is already known."""

    SIZES = RecordSizes(10, {"ocr": 5, "late": 7})

    def cache_with_steps(self, *step_ids: str) -> tuple[JobCache, Decision]:
        """Return a cache that has read only these steps of a job, and the job's decision."""
        cache, decision = JobCache(), dispatch("a")
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.apply_read(decision.job, {"ocr": decision.steps[0]}, {"ocr", *step_ids}, self.SIZES)
        return cache, decision

    def test_read_is_merged_into_the_same_version(self) -> None:
        cache, decision = self.cache_with_steps()
        assert cache.view("a", ("ocr", "late")) is None
        late = step("a", "late")
        cache.apply_read(decision.job, {"late": late}, {"late"}, self.SIZES)
        view = cache.view("a", ("ocr", "late"))
        assert view is not None
        assert view.steps == {"ocr": decision.steps[0], "late": late}

    def test_repeated_read_is_counted_once(self) -> None:
        cache, decision = self.cache_with_steps()
        for _ in range(3):
            cache.apply_read(decision.job, {"late": step("a", "late")}, {"ocr", "late"}, self.SIZES)
        assert cache.size_bytes == 10 + 5 + 7 + len("late")

    def test_read_of_an_older_version_changes_nothing(self) -> None:
        cache, decision = self.cache_with_steps()
        working = step("a", status=StepStatus.PROCESSING)
        newer = then(decision, steps=(working,))
        cache.apply_commit(newer.job, newer.steps, creates=False, size=1)
        cache.apply_read(decision.job, {"ocr": decision.steps[0]}, {"ocr", "late"}, self.SIZES)
        view = cache.view("a", ("ocr",))
        assert view is not None
        assert (view.job.version, view.steps) == (2, {"ocr": working})
        assert cache.view("a", ("late",)) is None

    @pytest.mark.parametrize("changes", [{"version": 2}, {"event_hash": "of a standby that lost a commit"}])
    def test_read_of_a_diverged_job_replaces_everything(self, changes: dict[str, Any]) -> None:
        cache, decision = JobCache(), dispatch("a")
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.apply_commit(decision.job, decision.steps, creates=True, size=10)
        assert cache.view("a", ("late",)) is not None, "all of it is known"
        cache.apply_read(replace(decision.job, **changes), {"ocr": decision.steps[0]}, {"ocr"}, self.SIZES)
        assert cache.view("a", ("ocr",)) is not None
        assert cache.view("a", ("late",)) is None


class TestEndOfJob:
    """A job that ends here is passed to waiting requests as a whole, without a read."""

    @staticmethod
    def collect_ends(store: PostgresStore) -> list[JobSnapshot]:
        ends: list[JobSnapshot] = []
        store.hooks.on_end = ends.append
        return ends

    async def test_snapshot_passed_on_equals_a_read(self, local: PostgresStore) -> None:
        ends, first = self.collect_ends(local), dispatch("a")
        await local.ledger.commit(first)
        later = then(first, steps=(step("a", "embedding", index=1), step("a", status=StepStatus.SUCCEEDED)))
        await local.ledger.commit(later)
        assert ends == []
        await local.ledger.commit(end(later))
        assert ends == [await local.jobs.job("a")]
        assert list(ends[0].steps) == ["ocr", "embedding"]

    async def test_snapshot_is_passed_before_the_commit_hook_runs(self, local: PostgresStore) -> None:
        ends, known = self.collect_ends(local), list[int]()
        local.hooks.on_commit = lambda decision: known.append(len(ends))
        first = dispatch("a")
        await local.ledger.commit(first)
        await local.ledger.commit(end(first))
        assert known == [0, 1]

    async def test_partly_cached_job_is_not_passed(self, local: PostgresStore, peer: PostgresStore) -> None:
        ends, first = self.collect_ends(local), dispatch("a")
        await peer.ledger.commit(first)
        assert await local.ledger.load("a") is not None
        await local.ledger.commit(end(first))
        assert ends == []

    async def test_refused_end_is_not_passed(self, local: PostgresStore, peer: PostgresStore) -> None:
        ends, first = self.collect_ends(local), dispatch("a")
        await local.ledger.commit(first)
        await peer.ledger.commit(then(first, status=JobStatus.CANCELLING))
        with pytest.raises(VersionConflict):
            await local.ledger.commit(end(first))
        assert ends == []

    async def test_later_run_is_not_passed_without_its_history(self, local: PostgresStore) -> None:
        ends, first = self.collect_ends(local), dispatch("a")
        ended = end(first)
        again = then(ended, status=JobStatus.DISPATCHING, completed_at=None)
        for decision in (first, ended, again, end(again)):
            await local.ledger.commit(decision)
        assert [view.job.version for view in ends] == [2], "what was before the second run is not known any more"


async def test_first_secret_wins_for_all_processes(local: PostgresStore, peer: PostgresStore) -> None:
    assert local.secrets is not None
    assert peer.secrets is not None
    made = await asyncio.gather(local.secrets.secret("token", "a" * 32), peer.secrets.secret("token", "b" * 32))
    assert made[0] == made[1]
    assert await local.secrets.secret("token", "c" * 32) == made[0]
