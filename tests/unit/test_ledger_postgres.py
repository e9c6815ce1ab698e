"""What the PostgreSQL ledger promises beyond every ledger: several processes, and a server that comes and goes."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, count
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.adapters.postgres import database
from lucius.adapters.postgres.batch import Ids
from lucius.adapters.postgres.cache import Cache, Sizes
from lucius.adapters.postgres.clock import DatabaseClock
from lucius.adapters.postgres.reserve import MOST, Reserve
from lucius.adapters.postgres.writer import MAX_GROUP
from lucius.core.decision import Decision, JobView
from lucius.core.inputs import Cap
from lucius.core.model import JobStatus, OutboxRow, OutboxStatus, StepStatus
from lucius.core.protocol import WEBHOOK_SERVICE
from lucius.ports.errors import AlreadyAccepted, LedgerBusy, LedgerDown, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import PendingQuery
from lucius.ports.peers import Wake
from tests.conformance.builders import accept, command, dispatch, row, step, then
from tests.conftest import need_postgres
from tests.support.postgres import PostgresServer
from tests.support.until import until


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresLedger]:
    ledger = await PostgresLedger.open(url)
    try:
        yield ledger
    finally:
        await ledger.close()


@pytest.fixture
async def here(emptied_postgres_url: str) -> AsyncIterator[PostgresLedger]:
    async with opened(emptied_postgres_url) as ledger:
        yield ledger


@pytest.fixture
async def there(emptied_postgres_url: str, here: PostgresLedger) -> AsyncIterator[PostgresLedger]:
    """Another process on the same ledger, of which the first has heard: who is alone tells nobody anything."""
    async with opened(emptied_postgres_url) as ledger:
        await until(lambda: not here._wakes.company.alone())
        yield ledger


def now(ledger: PostgresLedger) -> int:
    assert ledger.clock is not None
    return ledger.clock.now()


async def taken(ledger: PostgresLedger, hold_ms: int = 10_000, limit: int = 10) -> list[str]:
    query = PendingQuery(limit=limit, now=now(ledger), service="ocr", hold_ms=hold_ms, later=False)
    return [found.job_id for found in await ledger.pending(query)]


async def until_alone(ledger: PostgresLedger) -> None:
    async with asyncio.timeout(10):
        while True:
            await ledger._wakes._greet()
            if ledger._wakes.company.alone():
                return
            await asyncio.sleep(0.01)


def end(decision: Decision) -> Decision:
    return then(decision, status=JobStatus.SUCCEEDED, active=(), completed_at=9_000)


def busy(monkeypatch: pytest.MonkeyPatch, *ledgers: PostgresLedger) -> list[LedgerBusy]:
    """Why groups will have been refused that stood in a circle."""
    seen: list[LedgerBusy] = []

    async def watched(attempt: Callable[..., Awaitable[Exception | None]], *args: Any) -> Exception | None:
        outcome = await attempt(*args)
        if isinstance(outcome, LedgerBusy):
            seen.append(outcome)
        return outcome

    for ledger in ledgers:
        monkeypatch.setattr(ledger._writer, "_try", partial(watched, ledger._writer._try))
    return seen


HOLD = "SELECT FROM live WHERE id IN (SELECT id FROM jobs WHERE job_id = ANY ($1)) FOR UPDATE"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class TestGuard:
    async def test_a_view_that_another_process_outdated_says_so_and_its_decision_is_refused(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        first = dispatch("j1")
        await here.commit(first)
        there_view = await there.load("j1")
        assert there_view is not None
        assert there_view.cached is False
        second = then(first, status=JobStatus.IN_PROGRESS)
        await here.commit(second)
        with pytest.raises(VersionConflict):
            await there.commit(then(first, status=JobStatus.CANCELLING))
        again = await there.load("j1")
        assert again is not None
        assert (again.job, again.cached) == (second.job, False)

    async def test_what_this_process_committed_last_is_known_without_asking(self, here: PostgresLedger) -> None:
        first = dispatch("j1")
        await here.commit(first)
        view = await here.load("j1")
        assert view is not None
        assert (view.job, view.cached) == (first.job, True)
        fresh = await here.load("j1", fresh=True)
        assert fresh is not None
        assert (fresh.job, fresh.steps, fresh.cached) == (first.job, view.steps, False)

    async def test_a_step_that_was_never_asked_for_is_fetched(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        first = dispatch("j1")
        done = step("j1", "embedding", status=StepStatus.SUCCEEDED)
        await here.commit(first)
        await here.commit(then(first, steps=(done,)))
        assert (await there.load("j1")) is not None
        view = await there.load("j1", ("embedding", "never"))
        assert view is not None
        assert view.steps["embedding"] == done
        assert "never" not in view.steps

    async def test_steps_of_another_time_are_never_under_a_newer_head(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody ended the job and died before he could say so; here it is then begun anew."""
        first = dispatch("j1")
        await here.commit(first)
        monkeypatch.setattr(there._wakes, "tell", lambda decisions, held: None)
        done = step("j1", status=StepStatus.SUCCEEDED, result={"text": "read"})
        ended = then(first, status=JobStatus.FAILED_FINAL, active=(), steps=(done,), completed_at=2_000)
        await there.load("j1")
        await there.commit(ended)
        assert (await here.load("j1", fresh=True)) is not None
        await here.commit(then(ended, status=JobStatus.IN_PROGRESS, run_no=2))
        view = await here.load("j1", ("ocr",))
        assert view is not None
        assert view.steps == {"ocr": done}

    async def test_nor_after_a_slow_look(self, here: PostgresLedger, there: PostgresLedger) -> None:
        first = dispatch("j1")
        await here.commit(first)
        early = await here.load("j1", fresh=True)
        assert early is not None
        working = step("j1", status=StepStatus.PROCESSING)
        second = then(first, steps=(working,))
        await here.commit(second)
        here._cache.forget(["j1"])
        here._cache.read(early.job, dict(early.steps), set(early.steps), Sizes(0, dict.fromkeys(early.steps, 0)))
        await here.commit(then(second, status=JobStatus.IN_PROGRESS))
        view = await here.load("j1", ("ocr",))
        assert view is not None
        assert view.steps == {"ocr": working}

    async def test_a_look_at_the_database_forgets_nothing_that_is_still_true(self, here: PostgresLedger) -> None:
        """Else each new step of a long job would cost a look of its own from then on."""
        first = dispatch("j1")
        await here.commit(first)
        assert await here.load("j1", ("ocr",), fresh=True) is not None
        view = await here.load("j1", ("ocr", "never-started"))
        assert view is not None
        assert view.cached
        assert list(view.steps) == ["ocr"]

    async def test_many_who_want_one_key_keep_nobody_else_waiting(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups: list[int] = []
        here.on_flush = lambda decisions, seconds: groups.append(decisions)
        wanted = [here.commit(accept(f"j{i}", asked=command(f"j{i}", idempotency_key="k"))) for i in range(1_000)]
        outcomes = await asyncio.gather(*wanted, here.commit(accept("other")), return_exceptions=True)
        assert outcomes[0] is outcomes[-1] is None
        assert {getattr(outcome, "job_id", None) for outcome in outcomes[1:-1]} == {"j0"}
        assert len(groups) < 5

    async def test_of_two_processes_one_gets_the_key(self, here: PostgresLedger, there: PostgresLedger) -> None:
        for i in range(10):
            asked = {name: command(name, idempotency_key=f"k{i}") for name in (f"a{i}", f"b{i}")}
            outcomes = await asyncio.gather(
                here.commit(accept(f"a{i}", asked=asked[f"a{i}"])),
                there.commit(accept(f"b{i}", asked=asked[f"b{i}"])),
                return_exceptions=True,
            )
            (refused,) = [outcome for outcome in outcomes if outcome is not None]
            assert isinstance(refused, AlreadyAccepted)
            holder = await here.accepted("acme", f"key:k{i}")
            assert holder is not None
            assert refused.job_id == holder.job_id

    async def test_a_key_may_hold_what_text_can_not(self, here: PostgresLedger) -> None:
        await here.commit(accept("j1", asked=command("j1", idempotency_key="a\x00b")))
        found = await here.accepted("acme", "key:a\x00b")
        assert found is not None
        assert found.job_id == "j1"
        with pytest.raises(AlreadyAccepted):
            await here.commit(accept("j2", asked=command("j2", idempotency_key="a\x00b")))
        assert await here.load("j\x001") is None

    async def test_a_limit_holds_over_all_processes(self, here: PostgresLedger, there: PostgresLedger) -> None:
        cap = (Cap("jobs", 10),)
        commits = [
            ledger.commit(accept(f"{name}{i}", counters={"jobs": 1}, caps=cap))
            for i in range(20)
            for name, ledger in (("a", here), ("b", there))
        ]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 10
        assert {type(outcome) for outcome in outcomes if outcome is not None} == {LimitReached}
        assert await here.counters("") == {"jobs": 10}

    async def test_room_that_another_process_made_is_used(self, here: PostgresLedger, there: PostgresLedger) -> None:
        cap = (Cap("jobs", 1),)
        first = accept("a", counters={"jobs": 1}, caps=cap)
        await here.commit(first)
        with pytest.raises(LimitReached):
            await there.commit(accept("b", counters={"jobs": 1}, caps=cap))
        await here.commit(then(first, status=JobStatus.SUCCEEDED, counters={"jobs": -1}))
        await there.commit(accept("b", counters={"jobs": 1}, caps=cap))

    async def test_two_processes_that_hit_on_the_same_number_both_commit(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        numbers = chain([7, 7], count(8))
        monkeypatch.setattr(Ids, "next", lambda self, created_at: next(numbers))
        await here.commit(accept("a"))
        await there.commit(accept("b"))
        assert await here.load("a") is not None
        assert await here.load("b") is not None

    async def test_ids_grow_whatever_the_clock_does(self) -> None:
        ids = Ids()
        made = [ids.next(at) for at in (5_000, 4_000, 4_000, 6_000)]
        assert made == sorted(set(made))

    async def test_groups_that_share_jobs_never_end_in_a_deadlock(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half of them end, and which half each of the two thinks otherwise."""
        refused = busy(monkeypatch, here, there)
        jobs = {f"j{i}": accept(f"j{i}") for i in range(20)}
        await asyncio.gather(*(here.commit(decision) for decision in jobs.values()))
        for _ in range(10):
            names = random.sample(sorted(jobs), len(jobs))
            nexts = {name: then(jobs[name], counters={"a": 1, "b": 1}) for name in names}
            outcomes = await asyncio.gather(
                *(ledger.commit(nexts[name]) for name in names for ledger in (here, there)), return_exceptions=True
            )
            refusals = [outcome for outcome in outcomes if outcome is not None]
            assert len(refusals) == len(jobs)
            assert {type(refusal) for refusal in refusals} == {VersionConflict}
            jobs = nexts
        assert await here.counters("") == {"a": 200, "b": 200}
        ends = [
            ledger.commit(end(jobs[name]) if (i + n) % 2 else then(jobs[name]))
            for n, ledger in enumerate((here, there))
            for i, name in enumerate(names)
        ]
        outcomes = await asyncio.gather(*random.sample(ends, len(ends)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [VersionConflict] * len(jobs)
        assert refused == []

    async def test_nor_do_groups_in_which_jobs_end(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the one moves on the other ends, and both have locked something when they come to that."""
        first = {name: accept(name) for name in ("a", "b", "x", "y")}
        for decision in first.values():  # in this order, and so are their ids
            await here.commit(decision)
        refused = busy(monkeypatch, here, there)
        third = await here._database.connect()
        async with third.transaction():
            await third.execute(HOLD, ["x", "y"])
            commits = [
                asyncio.create_task(ledger.commit(decision))
                for ledger, moved, ends in ((here, "ax", "b"), (there, "by", "a"))
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

    async def test_a_job_goes_back_among_the_live_and_out_again(self, here: PostgresLedger) -> None:
        first = dispatch("j1")
        ended = then(first, status=JobStatus.FAILED_FINAL, active=(), completed_at=2_000, due_at=None)
        late = then(ended, event_seq=5)
        revived = then(late, status=JobStatus.IN_PROGRESS, run_no=2, due_at=3_000)
        for decision in (first, ended, late, revived):
            await here.commit(decision)
            view = await here.job("j1")
            assert view is not None
            assert view.job == decision.job
        assert await here.due(3_000, 10) == ["j1"]
        again = then(revived, status=JobStatus.SUCCEEDED, completed_at=4_000, due_at=None)
        await here.commit(again)
        assert await here.due(9_000, 10) == []

    async def test_a_job_that_is_over_at_once(self, here: PostgresLedger) -> None:
        await here.commit(accept("j1", status=JobStatus.SUCCEEDED, completed_at=1_000))
        view = await here.job("j1")
        assert view is not None
        assert view.job.status is JobStatus.SUCCEEDED


class TestHolds:
    async def test_what_one_process_took_no_other_is_given(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await here.commit(dispatch("a"))
        assert await taken(there) == ["a"]
        assert await taken(here) == []
        assert await taken(there) == ["a"]  # it is still the taker's own

    async def test_a_hold_ends_by_itself(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await here.commit(dispatch("a"))
        assert await taken(there, hold_ms=1) == ["a"]
        await until(lambda: now(here) > now(there) - 10)
        await asyncio.sleep(0.01)
        await here._wakes.look()
        assert await taken(here) == ["a"]

    async def test_what_is_put_back_is_anybodys(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await here.commit(dispatch("a"))
        rows = await there.pending(PendingQuery(limit=10, now=now(there), service="ocr", hold_ms=60_000))
        await there.put_back(rows)
        assert await taken(here) == ["a"]

    async def test_the_others_are_told_of_what_is_put_back(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await here.commit(dispatch("a"))
        rows = await here.pending(PendingQuery(limit=10, now=now(here), service="ocr", hold_ms=60_000))
        heard: list[Wake] = []
        there.on_wake = heard.append
        await here.put_back(rows)
        await until(lambda: any(wake.ready == (("ocr", 3),) for wake in heard))

    async def test_what_nobody_can_hand_over_is_not_sent_round_in_a_circle(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await here.commit(dispatch("a"))
        told: list[object] = []
        monkeypatch.setattr(here._wakes, "tell_ready", told.append)
        for _ in range(5):
            rows = await here.pending(PendingQuery(limit=10, now=now(here), service="ocr", hold_ms=60_000))
            await here.put_back(rows)
        assert len(told) == 1

    async def test_nobody_waits_for_what_is_being_changed_to_put_it_back(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        await here.commit(dispatch("a"))
        await here.commit(dispatch("b"))
        rows = await here.pending(PendingQuery(limit=10, now=now(here), service="ocr", hold_ms=60_000))
        async with there._database.transaction() as changing:
            await changing.execute("SELECT FROM outbox WHERE job_id = 'a' FOR UPDATE")
            async with asyncio.timeout(5):
                await here.put_back(rows)
        assert await taken(there) == ["b"]

    async def test_nobody_puts_back_what_another_holds(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await here.commit(dispatch("a"))
        rows = await there.pending(PendingQuery(limit=10, now=now(there), service="ocr", hold_ms=60_000))
        await here.put_back(rows)
        assert await taken(here) == []

    async def test_many_takers_get_each_row_once(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await asyncio.gather(*(here.commit(dispatch(f"j{i}")) for i in range(100)))
        seen: dict[str, set[str]] = {"here": set(), "there": set()}

        async def take(name: str, ledger: PostgresLedger) -> None:
            for _ in range(20):
                seen[name].update(await taken(ledger))

        await asyncio.gather(take("here", here), take("there", there), take("here", here), take("there", there))
        assert not seen["here"] & seen["there"]

    async def test_what_a_tenants_share_left_behind_is_had_at_once(self, here: PostgresLedger) -> None:
        """Two small tenants beside a large one, all in the database and none in memory."""
        for tenant, n in (("a", 40), ("b", 1), ("c", 1)):
            asked = [(f"{tenant}{i}", command(f"{tenant}{i}", tenant_id=tenant)) for i in range(n)]
            await asyncio.gather(*(here.commit(dispatch(name, asked=one, tenant_id=tenant)) for name, one in asked))
        here._missed_some()
        seen: set[str] = set()
        for _ in range(4):
            query = PendingQuery(
                limit=20, now=now(here), service="ocr", hold_ms=1_000, later=False, except_rows=frozenset(seen)
            )
            seen |= {found.outbox_id for found in await here.pending(query)}
        assert len(seen) == 42

    async def test_hundreds_of_tenants_are_served_without_a_pause(self, here: PostgresLedger) -> None:
        asked = [(f"t{i}", command(f"t{i}", tenant_id=f"t{i}")) for i in range(200)]
        await asyncio.gather(*(here.commit(dispatch(name, asked=one, tenant_id=name)) for name, one in asked))
        here._missed_some()
        seen: set[str] = set()
        for _ in range(4):
            query = PendingQuery(
                limit=100, now=now(here), service="ocr", hold_ms=1_000, later=False, except_rows=frozenset(seen)
            )
            seen |= {found.outbox_id for found in await here.pending(query)}
        assert len(seen) == 200

    async def test_two_services_do_not_slow_each_other(self, here: PostgresLedger) -> None:
        await asyncio.gather(*(here.commit(dispatch(f"a{i}")) for i in range(60)))
        await here.commit(dispatch("b", service="sis"))
        here._missed_some()
        seen: set[str] = set()
        for _ in range(8):
            query = PendingQuery(limit=20, now=now(here), hold_ms=1_000, later=False, except_rows=frozenset(seen))
            seen |= {found.outbox_id for found in await here.pending(query)}
        assert len(seen) == 61

    async def test_a_row_for_somebody_who_waits_here_is_his_without_a_look(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here.awaited = lambda service, lane: True
        monkeypatch.setattr("lucius.adapters.ledger_postgres.TAKEN_WITHIN_SECONDS", 60)
        await until(lambda: not here._wakes.company.alone())
        assert await taken(here) == []  # he looked, and waits
        await here.commit(dispatch("a"))
        assert await taken(there) == []
        monkeypatch.setattr(here._database, "rows", _must_not_be_asked)
        assert await taken(here) == ["a"]

    async def test_whoever_is_alone_knows_his_rows_and_keeps_them_from_nobody_who_comes(
        self, here: PostgresLedger, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await taken(here) == []
        await asyncio.gather(*(here.commit(dispatch(f"j{i}")) for i in range(12)))
        with monkeypatch.context() as asking:
            asking.setattr(here._database, "rows", _must_not_be_asked)
            assert len(await taken(here)) == 10
        async with opened(emptied_postgres_url) as there:
            assert {"j10", "j11"} <= set(await taken(there, limit=20))
            await until(lambda: not here._wakes.company.alone())
            assert await taken(here) == []

    async def test_a_notice_is_held_for_as_long_as_whoever_tells_it_asks(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        here.awaited = lambda service, lane: True
        await here.commit(dispatch("a", service=WEBHOOK_SERVICE))

        async def told_by(ledger: PostgresLedger, at: int) -> list[str]:
            query = PendingQuery(limit=10, now=at, service=WEBHOOK_SERVICE, hold_ms=60_000)
            return [found.job_id for found in await ledger.pending(query)]

        begun = now(here)
        assert await told_by(here, begun) == ["a"]
        assert await told_by(there, begun + 50_000) == []
        there._outbox.heard_nothing()
        assert await told_by(there, begun + 60_001) == ["a"]

    async def test_one_that_he_does_not_fetch_is_soon_anybodys(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        woken: list[Wake] = []
        there.on_wake = woken.append
        here.awaited = lambda service, lane: True
        await here.commit(dispatch("a"))
        await until(lambda: any(wake.ready == (("ocr", 3),) for wake in woken))
        assert await taken(there) == ["a"]

    async def test_a_row_is_not_looked_for_where_none_can_be(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = PendingQuery(limit=10, now=now(here), service="ocr", hold_ms=1_000, later=False)
        assert await here.pending(query) == []
        with monkeypatch.context() as asking:
            asking.setattr(here._database, "rows", _must_not_be_asked)
            assert await here.pending(query) == []
        await here.commit(dispatch("a"))
        assert [found.job_id for found in await here.pending(query)] == ["a"]

    async def test_rows_of_a_service_that_was_at_its_cap_are_found_once_it_is_not(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard: list[Wake] = []
        here.on_wake = heard.append
        for ledger in (here, there):
            monkeypatch.setattr(ledger._wakes, "look", _must_not_be_asked)
        await there.commit(dispatch("a"))
        await until(lambda: any(wake.changed == ("a",) for wake in heard))
        everything = PendingQuery(limit=10, now=now(here), hold_ms=1_000, later=False)
        capped = replace(everything, except_services=frozenset({"ocr", "sis"}))
        assert await here.pending(capped) == []
        with monkeypatch.context() as asking:  # as long as it is at its cap, nothing has changed
            asking.setattr(here._database, "rows", _must_not_be_asked)
            assert await here.pending(capped) == []
        assert [found.job_id for found in await here.pending(everything)] == ["a"]

    async def test_services_take_turns_at_what_is_in_memory_too(self, here: PostgresLedger) -> None:
        await until_alone(here)
        query = PendingQuery(limit=4, now=now(here), hold_ms=1_000, later=False)
        assert await here.pending(query) == []
        for n in range(6):
            await here.commit(dispatch(f"ocr-{n}"))
        for n in range(3):
            await here.commit(dispatch(f"sis-{n}", service="sis"))
        found = [[row.job_id for row in await here.pending(query)] for _ in range(3)]
        assert found == [["ocr-0", "sis-0", "ocr-1", "sis-1"], ["ocr-2", "sis-2", "ocr-3", "ocr-4"], ["ocr-5"]]

    async def test_a_row_that_is_due_later_is_found_at_its_time_here_and_soon_elsewhere(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        async def at(ledger: PostgresLedger, instant: int) -> list[str]:
            query = PendingQuery(limit=10, now=instant, service="ocr", hold_ms=1_000)
            return [found.job_id for found in await ledger.pending(query)]

        assert await at(here, 1_000) == await at(there, 1_000) == []
        await here.commit(dispatch("a", next_attempt_at=3_000))
        assert await at(here, 2_999) == []
        assert await at(there, 3_000) == []
        assert await at(here, 3_000) == ["a"]
        assert await at(there, 16_000) == ["a"]

    async def test_a_due_job_is_one_processs_business(self, here: PostgresLedger, there: PostgresLedger) -> None:
        await here.commit(accept("a", due_at=100))
        assert await there.due(200, 10, 5_000) == ["a"]
        assert await here.due(200, 10, 5_000) == []
        assert await here.due(6_000, 10, 5_000) == ["a"]

    async def test_whether_it_answers_is_asked_of_the_database_itself(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As readiness does, whatever the sweeper has been told to spare itself."""
        assert here.presence is not None
        await here.presence.ticked(now(here), 4_000)
        with monkeypatch.context() as away:
            away.setattr(here._database, "rows", _must_not_be_asked)
            with pytest.raises(AssertionError):
                await here.due(0, 1)
            assert await here.due(1, 10, 1_000) == []  # which is still spared

    async def test_a_deadline_that_moved_on_is_not_due(self, here: PostgresLedger) -> None:
        first = accept("a", due_at=100)
        await here.commit(first)
        await here.commit(then(first, due_at=500))
        assert await here.due(200, 10, 1_000) == []
        assert await here.due(200, 10) == []
        assert await here.due(500, 10, 1_000) == ["a"]


async def _must_not_be_asked(*args: object) -> list[object]:
    raise AssertionError("the database was asked")


class TestWakes:
    async def test_the_others_hear_what_became_durable(self, here: PostgresLedger, there: PostgresLedger) -> None:
        heard: list[Wake] = []
        there.on_wake = heard.append
        first = dispatch("j1")
        await here.commit(first)
        await until(lambda: any(wake.changed == ("j1",) for wake in heard))
        assert heard[-1].ready == (("ocr", 3),)
        assert heard[-1].ended == ()
        settled = row(first.steps[0], status=OutboxStatus.SENT)
        ended = then(first, status=JobStatus.SUCCEEDED, outbox=(settled,), counters={"unacked/ocr": -1})
        await here.commit(ended)
        await until(lambda: any(wake.ended == ("j1",) for wake in heard))
        assert heard[-1].picked_up == ("ocr",)

    async def test_every_deadline_that_is_near_is_told(self, here: PostgresLedger, there: PostgresLedger) -> None:
        heard: list[Wake] = []
        there.on_wake = heard.append
        await asyncio.gather(*(here.commit(accept(f"j{i}", due_at=2_000 + i)) for i in range(3)))
        await here.commit(accept("far", due_at=60_000))
        await until(lambda: len({job_id for wake in heard for job_id in wake.changed}) == 4)
        assert sorted(due for wake in heard for due in wake.due) == [2_000, 2_001, 2_002]

    async def test_of_two_that_come_at_once_each_knows_of_the_other(self, emptied_postgres_url: str) -> None:
        for _ in range(5):
            both = await asyncio.gather(*(PostgresLedger.open(emptied_postgres_url) for _ in range(2)))
            try:
                await until(lambda both=both: not any(one._wakes.company.alone() for one in both))  # type: ignore[misc]
            finally:
                await asyncio.gather(*(one.close() for one in both))

    async def test_whoever_comes_while_we_count_is_there_though_he_was_not_counted(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await until_alone(here)

        async def slow(*_: object) -> list[dict[str, int]]:
            here._wakes.company.meet(7, sweeps=False)
            return [{"n": 1, "sweepers": 0}]

        monkeypatch.setattr(here._database, "rows", slow)
        await here._wakes._count()
        assert not here._wakes.company.alone()

    async def test_a_line_that_says_nothing_any_more_is_left_for_another(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        deaf = here._wakes._listener
        assert deaf is not None
        await deaf.remove_listener(here._wakes._channel, here._wakes._heard)
        here._wakes._heard_hello, here._wakes._said_hello = -2.0, -1.0
        here._wakes._leave_a_dead_line()
        await until(lambda: here._wakes._listener not in (None, deaf) and here._wakes._heard_hello > 0)

    async def test_two_may_greet_at_once(self, here: PostgresLedger) -> None:
        """Whoever begins to listen, and whoever looks by himself: they have one connection for it."""
        here._wakes.company.sweeps = True
        await asyncio.gather(*(here._wakes._greet() for _ in range(3)))

    async def test_a_line_that_is_cut_while_we_greet_is_an_outage(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Cut:
            def terminate(self) -> None:
                pass

            async def execute(self, *_: object, timeout: float) -> None:
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

        here._wakes.company.sweeps = True
        monkeypatch.setattr(here._wakes, "_listener", Cut())
        with pytest.raises(LedgerDown):
            await here._wakes._greet()

    async def test_whoever_is_left_alone_forgets_what_he_could_have_missed(
        self, here: PostgresLedger, emptied_postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = dispatch("j1")
        await here.commit(first)
        async with opened(emptied_postgres_url) as there:
            await until(lambda: not here._wakes.company.alone())
            await here.load("j1", fresh=True)
            monkeypatch.setattr(there._wakes, "tell", lambda decisions, held: None)
            await there.load("j1")
            ended = then(first, status=JobStatus.SUCCEEDED, completed_at=2_000)
            await there.commit(ended)
        await until_alone(here)
        view = await here.job("j1")
        assert view is not None
        assert view.job == ended.job

    async def test_whoever_has_lost_his_line_is_not_alone(self, here: PostgresLedger) -> None:
        await until_alone(here)
        assert here._wakes._listener is not None
        here._wakes._listener.terminate()
        await until(lambda: not here._wakes.company.alone())

    async def test_those_of_another_database_are_no_company(self, postgres: PostgresServer) -> None:
        if not postgres.query("SELECT 1 FROM pg_database WHERE datname = 'another'"):
            postgres.query("CREATE DATABASE another")
        url = postgres.url("elsewhere")
        async with opened(url) as here, opened(url.replace("/postgres?", "/another?")):
            await here._wakes._greet()
            assert here._wakes.company.alone()

    async def test_nobody_hears_himself(self, here: PostgresLedger, there: PostgresLedger) -> None:
        heard: list[Wake] = []
        other: list[Wake] = []
        here.on_wake, there.on_wake = heard.append, other.append
        await here.commit(dispatch("j1"))
        await until(lambda: bool(other))
        assert [wake for wake in heard if wake.changed] == []

    async def test_whoever_is_alone_tells_nobody(self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[object] = []

        async def say(note: object) -> None:
            said.append(note)

        monkeypatch.setattr(here._wakes, "_say", say)
        await here.commit(dispatch("j1"))
        await asyncio.sleep(0)
        assert [note for note in said if getattr(note, "wake", Wake()) != Wake()] == []

    async def test_letters_that_are_announced_are_heard_of_by_the_others(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        heard: list[Wake] = []
        mine: list[Wake] = []
        here.on_wake, there.on_wake = mine.append, heard.append
        await until(lambda: not here._wakes.company.alone())
        here.announce(["j1/a", "j1/b"])
        here.announce(["j2/c"])
        await until(lambda: "j2/c" in [one for wake in heard for one in wake.told])
        assert [one for wake in heard for one in wake.told] == ["j1/a", "j1/b", "j2/c"]
        assert [wake for wake in mine if wake.told] == []

    async def test_whoever_is_alone_announces_nothing(self, here: PostgresLedger) -> None:
        await until_alone(here)
        here.announce(["j1/a"])
        assert not here._wakes._news

    async def test_many_changes_need_few_notifications(self, here: PostgresLedger, there: PostgresLedger) -> None:
        heard: list[Wake] = []
        there.on_wake = heard.append
        await asyncio.gather(*(here.commit(dispatch(f"job-{i:040}")) for i in range(400)))
        await until(lambda: len({job_id for wake in heard for job_id in wake.changed}) == 400)
        assert len(heard) < 40

    async def test_no_notification_is_too_long(self, here: PostgresLedger, there: PostgresLedger) -> None:
        heard: list[Wake] = []
        there.on_wake = heard.append
        new = [
            dispatch(f"job-{i:040}", service=f"a-service-with-a-long-name-{i % 60}", lane=i % 16) for i in range(400)
        ]
        await asyncio.gather(*(here.commit(decision) for decision in new))
        await until(lambda: len({job_id for wake in heard for job_id in wake.changed}) == 400)
        ended = [then(decision, status=JobStatus.CANCELLED, completed_at=1) for decision in new]
        await asyncio.gather(*(here.commit(decision) for decision in ended))
        await until(lambda: len({job_id for wake in heard for job_id in wake.ended}) == 400)
        assert {service for wake in heard for service, _ in wake.ready} == {row.outbox[0].service for row in new}

    async def test_a_new_revision_of_the_protocols_is_told(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard: list[Wake] = []
        there.on_wake = heard.append
        before = await there.protocol_revision()
        await here.put_protocols([], await here.protocol_revision())
        assert await here.protocol_revision() == before + 1
        monkeypatch.setattr(there._wakes, "look", _must_not_be_asked)
        await until(lambda: there._revision == before + 1)
        assert Wake(protocols=True) in heard

    async def test_what_nobody_told_is_found_by_looking(
        self, here: PostgresLedger, there: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard: list[Wake] = []
        there.on_wake = heard.append
        monkeypatch.setattr(here._wakes, "tell", lambda decisions, held: None)
        await here.commit(dispatch("j1"))
        await there._wakes.look()
        assert heard == [Wake(ready=(("ocr", -1),))]


class TestClock:
    def clock(self) -> tuple[DatabaseClock, list[float]]:
        steady = [100.0]
        return DatabaseClock(lambda: steady[0]), steady

    def test_it_goes_on_from_what_the_database_said(self) -> None:
        clock, steady = self.clock()
        clock.heard(5_000_000, 99.9, 100.1)
        assert clock.now() == 5_000_000
        steady[0] += 2.5
        assert clock.now() == 5_002_500

    def test_it_never_runs_back(self) -> None:
        clock, steady = self.clock()
        clock.heard(5_000_000, 100.0, 100.0)
        assert clock.now() == 5_000_000
        clock.heard(4_996_000, 100.0, 100.0)
        assert clock.now() == 5_000_000
        steady[0] += 5
        assert clock.now() == 5_001_000

    def test_but_follows_one_that_was_set_back_for_long(self) -> None:
        clock, _ = self.clock()
        clock.heard(5_000_000, 100.0, 100.0)
        assert clock.now() == 5_000_000
        clock.heard(4_000_000, 100.0, 100.0)
        assert clock.now() == 4_000_000

    def test_a_slow_answer_says_nothing(self) -> None:
        clock, _ = self.clock()
        clock.heard(5_000_000, 100.0, 100.0)
        clock.heard(9_000_000, 99.0, 100.0)
        assert clock.now() == 5_000_000

    async def test_two_processes_agree(self, here: PostgresLedger, there: PostgresLedger) -> None:
        assert abs(now(here) - now(there)) < 250


class TestOrder:
    async def test_what_was_committed_first_is_first_in_line_however_long_its_protocol_takes(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both groups pin one that nobody has stored yet, and the first to write it would be the last to be through."""
        database, waits = here._writer._database, [0.2]
        connection = database.connection

        @asynccontextmanager
        async def slow_at_first() -> AsyncIterator[Any]:
            async with connection() as opened:
                if waits:
                    await asyncio.sleep(waits.pop())
                yield opened

        monkeypatch.setattr(database, "connection", slow_at_first)
        jobs = [dispatch(f"j{n}", asked=command(f"j{n}")) for n in range(MAX_GROUP + 1)]
        await asyncio.gather(*(here.commit(job) for job in jobs))
        found = await here.pending(PendingQuery(limit=1, now=5_000, service="ocr"))
        assert [row.job_id for row in found] == ["j0"]


class TestPresence:
    async def test_short_ticks_are_no_absences(self, here: PostgresLedger) -> None:
        assert here.presence is not None
        at = 2 * 10**12 + random.randrange(10**6) * 10_000
        resumed = {await here.presence.ticked(at + tick * 300, 1_000) for tick in range(20)}
        assert resumed == {at}

    async def test_only_those_who_mind_the_deadlines_share_them(self, here: PostgresLedger) -> None:
        assert here.presence is not None
        here._wakes.company.counted(0, 0, here._wakes._clock.steady())
        for sender in range(20):
            here._wakes.company.meet(sender, sweeps=False)
        assert (here.presence.stretch(), here._wakes.company.stretch()) == (1.0, 21 / 4)
        for sender in range(200):
            here._wakes.company.meet(sender, sweeps=True)
        assert (here.presence.stretch(), here._wakes.company.stretch()) == (4.0, 8.0)

    async def test_whoever_comes_knows_how_many_are_there(
        self, here: PostgresLedger, emptied_postgres_url: str
    ) -> None:
        assert here.presence is not None
        await here.presence.ticked(now(here), 4_000)
        await here._wakes._greet()
        async with opened(emptied_postgres_url) as there:
            assert (there._wakes.company._counted, there._wakes.company._counted_sweepers) == (1, 1)

    async def test_those_who_are_gone_share_nothing(
        self, here: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert here.presence is not None
        for sender in range(20):
            here._wakes.company.meet(sender, sweeps=True)
        later = here._wakes.company._steady() + 1_000
        monkeypatch.setattr(here._wakes.company, "_steady", lambda: later)
        assert here.presence.stretch() == 1.0

    async def test_another_replica_at_work_means_no_absence(self, here: PostgresLedger, there: PostgresLedger) -> None:
        assert here.presence is not None
        assert there.presence is not None
        at = 10**12 + random.randrange(10**9) * 1_000
        resumed = await here.presence.ticked(at, 4_000)
        assert resumed == at
        assert await there.presence.ticked(at + 2_000, 4_000) == at
        assert await here.presence.ticked(at + 5_000, 4_000) == at
        assert await there.presence.ticked(at + 9_001, 4_000) == at + 9_001
        assert await here.presence.ticked(at + 9_500, 4_000) == at + 9_001

    async def test_one_who_works_for_another_engine_is_not_taken_for_one(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        """It takes no callbacks: what nobody else was there for was nobody's to answer."""
        assert here.presence is not None
        assert there.presence is not None
        at = 10**12 + random.randrange(10**9) * 1_000
        await here.presence.ticked(at, 4_000)
        assert await there.presence.at_work(at + 3_000, 4_000) == at
        assert not there._wakes.company.sweeps
        assert await here.presence.ticked(at + 6_000, 4_000) == at + 6_000

    async def test_while_all_are_away_that_counts_up_to_a_point(self, here: PostgresLedger) -> None:
        assert here.presence is not None
        at = 10**12 + random.randrange(10**9) * 1_000
        await here.presence.ticked(at, 4_000)
        found = [await here.presence.at_work(at + after, 4_000) - at for after in (20_000, 20_001, 599_999, 600_000)]
        assert found == [0, 20_001, 599_999, 0]


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """One that may be stopped."""
    need_postgres()
    own = PostgresServer(fsync=True)
    yield own
    own.remove()


@pytest.fixture
def server(own_server: PostgresServer) -> PostgresServer:
    own_server.restart()
    own_server.execute("DROP SCHEMA IF EXISTS lucius CASCADE")
    return own_server


class TestServerThatComesAndGoes:
    async def test_a_commit_while_it_is_away_is_refused_and_one_afterwards_is_not(self, server: PostgresServer) -> None:
        async with opened(server.url()) as ledger:
            await ledger.commit(dispatch("a"))
            await asyncio.to_thread(server.stop, crash=True)
            with pytest.raises(LedgerDown):
                await ledger.commit(dispatch("b"))
            await asyncio.to_thread(server.start)
            await self.commit_patiently(ledger, dispatch("c"))
            assert [view is not None for view in [await ledger.job(job) for job in "abc"]] == [True, False, True]

    async def test_who_reads_waits_for_a_restart(self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database, "PATIENCE_SECONDS", 60.0)  # however long this machine takes for one
        async with opened(server.url()) as ledger:
            await ledger.commit(dispatch("a"))
            await asyncio.to_thread(server.stop, crash=True)
            reading = asyncio.create_task(ledger.job("a"))
            await asyncio.to_thread(server.start)
            assert await reading is not None

    async def test_what_was_answered_survives_and_what_was_not_is_whole_or_not_there(
        self, server: PostgresServer
    ) -> None:
        async with opened(server.url()) as ledger:
            answered: set[str] = set()
            stop = asyncio.Event()

            async def go_on(name: str) -> None:
                for i in range(100_000):
                    if stop.is_set():
                        return
                    try:
                        await ledger.commit(dispatch(f"{name}-{i}", asked=command(f"{name}-{i}")))
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

    async def test_it_listens_again_afterwards(self, server: PostgresServer) -> None:
        async with opened(server.url()) as here, opened(server.url()) as there:
            await asyncio.to_thread(server.restart, crash=True)
            heard: list[Wake] = []
            there.on_wake = heard.append
            n = 0
            async with asyncio.timeout(20):
                while not any(wake.changed for wake in heard):
                    n += 1
                    await self.commit_patiently(here, dispatch(f"j{n}"))
                    await asyncio.sleep(0.05)

    async def test_it_can_be_left_while_it_is_away(self, server: PostgresServer) -> None:
        async with opened(server.url()) as there:
            ledger = await PostgresLedger.open(server.url())
            await until(lambda: not there._wakes.company.alone())
            await asyncio.to_thread(server.stop, crash=True)
            ledger._wakes.tell_revision(7)
            async with asyncio.timeout(15):
                await ledger.close()
            await asyncio.to_thread(server.start)

    async def test_opening_one_that_is_away_says_so(self, server: PostgresServer) -> None:
        await asyncio.to_thread(server.stop)
        with pytest.raises(LedgerDown, match="can't be reached"):
            await PostgresLedger.open(server.url())

    async def commit_patiently(self, ledger: PostgresLedger, decision: Decision) -> None:
        async with asyncio.timeout(10):
            while True:
                try:
                    return await ledger.commit(decision)
                except LedgerDown:
                    await asyncio.sleep(0.02)


_WHOLE = """
    SELECT job_id, (SELECT count(*) FROM lucius.live WHERE id = jobs.id) AS live,
           (SELECT count(*) FROM lucius.steps WHERE job = jobs.id) AS steps,
           (SELECT count(*) FROM lucius.outbox WHERE job = jobs.id) AS outbox,
           (SELECT count(*) FROM lucius.events WHERE job = jobs.id) AS events
    FROM lucius.jobs
"""


async def test_who_owns_the_schema_need_not_be_allowed_to_make_one(postgres: PostgresServer) -> None:
    postgres.execute(
        """
        DROP SCHEMA IF EXISTS owned CASCADE; DROP ROLE IF EXISTS owner_only;
        CREATE ROLE owner_only LOGIN; REVOKE CREATE ON DATABASE postgres FROM PUBLIC;
        CREATE SCHEMA owned AUTHORIZATION owner_only
        """
    )
    async with opened(postgres.url("owned").replace("lucius@", "owner_only@")) as ledger:
        await ledger.commit(dispatch("a"))


async def test_a_url_that_makes_no_sense_is_refused_with_its_name() -> None:
    with pytest.raises(LedgerError, match="LUCIUS_LEDGER_URL"):
        await PostgresLedger.open("postgresql://host:port/db")


class TestReserve:
    def rows(self, tenant_id: str, n: int) -> list[OutboxRow]:
        steps = [step(f"{tenant_id}-{i}") for i in range(n)]
        return [row(one, tenant_id=tenant_id) for one in steps]

    def test_tenants_take_turns(self) -> None:
        reserve = Reserve()
        for one in (*self.rows("a", 50), *self.rows("b", 2)):
            assert reserve.put(one, held=False)
        served = [one.tenant_id for one in reserve.take("ocr", 3, lambda _: True)]
        served += [one.tenant_id for one in reserve.take("ocr", 3, lambda _: True)]
        assert served == ["a", "b", "a", "b", "a", "a"]

    def test_what_nobody_wants_stays(self) -> None:
        reserve = Reserve()
        for one in (*self.rows("a", 3), *self.rows("b", 1)):
            reserve.put(one, held=False)
        assert [one.job_id for one in reserve.take("ocr", 9, lambda one: one.job_id == "a-1")] == ["a-1"]
        assert len(reserve.take("ocr", 9, lambda _: True)) == 3
        assert reserve.services() == []

    def test_it_is_bounded_and_a_row_counts_once(self) -> None:
        reserve = Reserve()
        many = self.rows("a", MOST)
        assert all(reserve.put(one, held=False) for one in (*many, *many[:5]))
        (over,) = self.rows("b", 1)
        assert not reserve.put(over, held=False)
        reserve.drop(many[0])
        assert reserve.put(over, held=False)

    def test_only_what_is_held_must_be_given_back(self) -> None:
        reserve = Reserve()
        ours, free = self.rows("a", 2)
        reserve.put(ours, held=True)
        reserve.put(free, held=False)
        assert reserve.take_held() == [ours]
        assert reserve.take("ocr", 9, lambda _: True) == [free]


def test_the_cache_is_bounded_and_forgets_the_oldest() -> None:
    cache = Cache(max_jobs=2)
    for name in "abc":
        decision = dispatch(name)
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.moved(decision.job, decision.steps, creates=True, size=10)
    assert [cache.view(name, ()) is not None for name in "abc"] == [False, True, True]


def test_the_cache_is_bounded_in_bytes_too() -> None:
    cache = Cache(max_bytes=100)
    decisions = {name: dispatch(name) for name in "abc"}
    for decision in decisions.values():
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.moved(decision.job, decision.steps, creates=True, size=40)
    assert [cache.view(name, ()) is not None for name in "abc"] == [False, True, True]
    more = then(decisions["c"])
    cache.moved(more.job, (), creates=False, size=70)
    assert [cache.view(name, ()) is not None for name in "abc"] == [False, False, False]
    assert cache._bytes == 0


class TestWhatIsRead:
    """The database's own word about a job of which some is known already."""

    SIZES = Sizes(10, {"ocr": 5, "late": 7})

    def known(self, *step_ids: str) -> tuple[Cache, Decision]:
        """A cache that has read these steps of a job, and none of the others."""
        cache, decision = Cache(), dispatch("a")
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.read(decision.job, {"ocr": decision.steps[0]}, {"ocr", *step_ids}, self.SIZES)
        return cache, decision

    def test_is_put_beside_what_was_known_of_the_same_version(self) -> None:
        cache, decision = self.known()
        assert cache.view("a", ("ocr", "late")) is None
        late = step("a", "late")
        cache.read(decision.job, {"late": late}, {"late"}, self.SIZES)
        view = cache.view("a", ("ocr", "late"))
        assert view is not None
        assert view.steps == {"ocr": decision.steps[0], "late": late}

    def test_is_counted_once(self) -> None:
        cache, decision = self.known()
        for _ in range(3):
            cache.read(decision.job, {"late": step("a", "late")}, {"ocr", "late"}, self.SIZES)
        assert cache._bytes == 10 + 5 + 7 + len("late")

    def test_changes_nothing_if_it_is_of_an_older_version(self) -> None:
        cache, decision = self.known()
        working = step("a", status=StepStatus.PROCESSING)
        newer = then(decision, steps=(working,))
        cache.moved(newer.job, newer.steps, creates=False, size=1)
        cache.read(decision.job, {"ocr": decision.steps[0]}, {"ocr", "late"}, self.SIZES)
        view = cache.view("a", ("ocr",))
        assert view is not None
        assert (view.job.version, view.steps) == (2, {"ocr": working})
        assert cache.view("a", ("late",)) is None

    @pytest.mark.parametrize("changes", [{"version": 2}, {"event_hash": "of a standby that lost a commit"}])
    def test_replaces_everything_if_the_job_is_another_one(self, changes: dict[str, Any]) -> None:
        cache, decision = Cache(), dispatch("a")
        cache.protocols[decision.job.protocol_digest] = decision.protocol
        cache.moved(decision.job, decision.steps, creates=True, size=10)
        assert cache.view("a", ("late",)) is not None, "all of it is known"
        cache.read(replace(decision.job, **changes), {"ocr": decision.steps[0]}, {"ocr"}, self.SIZES)
        assert cache.view("a", ("ocr",)) is not None
        assert cache.view("a", ("late",)) is None


class TestEnd:
    """All of a job that ends here is told to whoever waits for it: it need not be read."""

    @staticmethod
    def told(ledger: PostgresLedger) -> list[JobView]:
        ends: list[JobView] = []
        ledger.on_end = ends.append
        return ends

    async def test_is_told_as_it_would_be_read(self, here: PostgresLedger) -> None:
        ends, first = self.told(here), dispatch("a")
        await here.commit(first)
        later = then(first, steps=(step("a", "embedding", index=1), step("a", status=StepStatus.SUCCEEDED)))
        await here.commit(later)
        assert ends == []
        await here.commit(end(later))
        assert ends == [await here.job("a")]
        assert list(ends[0].steps) == ["ocr", "embedding"]

    async def test_is_told_before_anybody_hears_that_it_came(self, here: PostgresLedger) -> None:
        ends, known = self.told(here), list[int]()
        here.on_commit = lambda decision: known.append(len(ends))
        first = dispatch("a")
        await here.commit(first)
        await here.commit(end(first))
        assert known == [0, 1]

    async def test_is_not_told_of_a_job_that_is_known_in_part(
        self, here: PostgresLedger, there: PostgresLedger
    ) -> None:
        ends, first = self.told(here), dispatch("a")
        await there.commit(first)
        assert await here.load("a") is not None
        await here.commit(end(first))
        assert ends == []

    async def test_is_not_told_if_it_did_not_come(self, here: PostgresLedger, there: PostgresLedger) -> None:
        ends, first = self.told(here), dispatch("a")
        await here.commit(first)
        await there.commit(then(first, status=JobStatus.CANCELLING))
        with pytest.raises(VersionConflict):
            await here.commit(end(first))
        assert ends == []

    async def test_of_a_later_run_is_told_only_as_it_would_be_read(self, here: PostgresLedger) -> None:
        ends, first = self.told(here), dispatch("a")
        ended = end(first)
        again = then(ended, status=JobStatus.DISPATCHING, completed_at=None)
        for decision in (first, ended, again, end(again)):
            await here.commit(decision)
        assert [view.job.version for view in ends] == [2], "what was before the second run is not known any more"


async def test_all_processes_have_the_secret_of_whoever_came_first(here: PostgresLedger, there: PostgresLedger) -> None:
    assert here.secrets is not None
    assert there.secrets is not None
    made = await asyncio.gather(here.secrets.secret("token", "a" * 32), there.secrets.secret("token", "b" * 32))
    assert made[0] == made[1]
    assert await here.secrets.secret("token", "c" * 32) == made[0]
