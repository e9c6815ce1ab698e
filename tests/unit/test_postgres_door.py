"""Services speak to API processes, others mind the deadlines: what nobody was there to hear is held against nobody."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.core.model import AttemptOutcome, Step, StepStatus
from lucius.engine import sweeper
from lucius.observability.readiness import Role
from lucius.ports.peers import Door, Presence
from lucius.settings import load_settings
from lucius.wiring import Runtime, open_runtime
from tests.unit.test_postgres_deadlines import submit

WITHIN = 12.0
HOUR = 3_600_000
ACK_MS = 3_000
SAID = "no process takes callbacks; overdue attempts are given more time"


@pytest.fixture
async def ledger(emptied_postgres_url: str) -> AsyncIterator[PostgresLedger]:
    opened = await PostgresLedger.open(emptied_postgres_url)
    yield opened
    await opened.close()


def presence_of(ledger: PostgresLedger) -> Presence:
    assert ledger.presence is not None
    return ledger.presence


async def now(ledger: PostgresLedger) -> int:
    row = await ledger._database.row("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now")
    assert row is not None
    return int(row["now"])


async def door(ledger: PostgresLedger) -> tuple[int, int]:
    row = await ledger._database.row("SELECT open_at, reopened_at FROM door")
    assert row is not None
    return row["open_at"], row["reopened_at"]


async def set_door(ledger: PostgresLedger, open_at: int, reopened_at: int) -> None:
    async with ledger._database.connection() as connection:
        await connection.execute("UPDATE door SET open_at = $1, reopened_at = $2", open_at, reopened_at)


class TestMarks:
    async def test_who_can_be_spoken_to_says_so_at_once(self, ledger: PostgresLedger) -> None:
        before = await now(ledger)
        await presence_of(ledger).serve(lambda: True)
        open_at, reopened_at = await door(ledger)
        assert before <= open_at == reopened_at <= await now(ledger)

    async def test_who_can_not_says_nothing(self, ledger: PostgresLedger) -> None:
        await ledger._wakes.look()
        assert await door(ledger) == (0, 0)

    @pytest.mark.parametrize(("silence", "is_reopened"), [(10_000, False), (26_000, True)])
    async def test_after_a_long_silence_the_door_is_reopened(
        self, ledger: PostgresLedger, silence: int, is_reopened: bool
    ) -> None:
        await presence_of(ledger).serve(lambda: True)
        await set_door(ledger, await now(ledger) - silence, 5)
        await ledger._wakes.look()
        open_at, reopened_at = await door(ledger)
        assert 5 < reopened_at <= open_at if is_reopened else reopened_at == 5

    async def test_marks_in_a_row_are_written_once(self, ledger: PostgresLedger) -> None:
        await presence_of(ledger).serve(lambda: True)
        await set_door(ledger, await now(ledger) + 60_000, 5)  # whatever the clock does
        written = await ledger._database.rows("SELECT xmin FROM door")
        await ledger._wakes.look()
        assert await ledger._database.rows("SELECT xmin FROM door") == written

    async def test_who_is_about_to_stop_says_nothing_more(self, ledger: PostgresLedger) -> None:
        await presence_of(ledger).serve(lambda: False)
        await set_door(ledger, 3, 5)
        await ledger._wakes.look()
        assert await door(ledger) == (3, 5)


class TestSince:
    @pytest.mark.parametrize(
        ("silence", "expected"),
        [
            (0, Door(-70_000)),
            (25_000, Door(-70_000)),
            (25_001, Door(25_001, is_closed=True)),
            (HOUR - 1, Door(HOUR - 1, is_closed=True)),
            (HOUR, Door(-70_000)),
        ],
    )
    async def test_while_it_is_closed_nobody_is_late_up_to_a_point(
        self, ledger: PostgresLedger, silence: int, expected: Door
    ) -> None:
        at = await now(ledger)
        await ticks_since(ledger, at - 2 * HOUR, at)
        await set_door(ledger, at - silence, at - 70_000)
        await presence_of(ledger).ticked(at, 4_000)
        found = presence_of(ledger).door(at)
        assert Door(found.since - at, found.is_closed) == expected

    async def test_silence_counts_only_while_an_engine_listened(self, ledger: PostgresLedger) -> None:
        """Of an absence of all, or of the database, nobody can say that the door was closed."""
        at = await now(ledger)
        await ticks_since(ledger, at - 40_000, at - 40_000)
        await set_door(ledger, at - 40_000, 5)
        assert await presence_of(ledger).ticked(at, 4_000) == at
        assert presence_of(ledger).door(at) == Door(5)
        await presence_of(ledger).ticked(at + 26_000, 60_000)
        assert presence_of(ledger).door(at + 26_000) == Door(at + 52_000, is_closed=True)

    async def test_one_that_is_spoken_to_never_finds_it_closed(self, ledger: PostgresLedger) -> None:
        at = await now(ledger)
        await presence_of(ledger).serve(lambda: True)
        await ticks_since(ledger, at - HOUR, at)
        await set_door(ledger, at - 60_000, 5)
        await presence_of(ledger).ticked(at, 4_000)
        assert presence_of(ledger).door(at) == Door(5)

    async def test_without_anybody_who_ever_said_so_nothing_is_excused(self, ledger: PostgresLedger) -> None:
        at = await now(ledger)
        await ticks_since(ledger, at - HOUR, at)
        await presence_of(ledger).ticked(at, 4_000)
        assert presence_of(ledger).door(at) == Door()

    async def test_it_counts_for_those_whose_deadlines_no_engine_looks_at(self, ledger: PostgresLedger) -> None:
        at = await now(ledger)
        await ticks_since(ledger, at - 60_000, at)
        found = []
        for open_at in (at - 1_000, at - 26_000):
            await set_door(ledger, open_at, at - 40_000)
            found.append(await presence_of(ledger).at_work(at, 4_000) - at)
        assert found == [-40_000, 0]


async def ticks_since(ledger: PostgresLedger, resumed_at: int, last_tick: int) -> None:
    async with ledger._database.connection() as connection:
        await connection.execute("UPDATE engine SET resumed_at = $1, last_tick = $2", resumed_at, last_tick)


@pytest.mark.parametrize(("role", "serves"), [(Role.WHOLE, True), (Role.API, True), (Role.ENGINE, False)])
async def test_processes_with_an_api_are_those_that_services_speak_to(
    emptied_postgres_url: str, tmp_path: Path, role: Role, serves: bool
) -> None:
    settings = load_settings({"LUCIUS_LEDGER_URL": emptied_postgres_url}, data_dir=tmp_path)
    async with open_runtime(settings, role=role) as runtime:
        assert isinstance(runtime.store, PostgresLedger)
        assert runtime.store._wakes.company.serves() is serves
        assert (await door(runtime.store) != (0, 0)) is serves


class TestDeadlines:
    @pytest.fixture
    async def runtime(
        self, emptied_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Runtime]:
        """An engine without an API, which is never away itself, however slow the machine is."""
        monkeypatch.setattr(sweeper, "GAP_MS", 10 * HOUR)
        env = {
            "LUCIUS_LEDGER_URL": emptied_postgres_url,
            "LUCIUS_ACK_TIMEOUT": str(ACK_MS // 1000),
            "LUCIUS_SWEEP_INTERVAL": "0.05",
        }
        async with open_runtime(load_settings(env, data_dir=tmp_path), role=Role.ENGINE) as runtime:
            yield runtime

    async def until(self, runtime: Runtime, *events: str) -> Step:
        """The step, once these events have come after it was handed over, and no others."""
        async with asyncio.timeout(WITHIN):
            while True:
                told = [event.type for event in await runtime.store.events("job", 0, 100)]
                since = told[told.index("STEP_HANDED_OVER") + 1 :] if "STEP_HANDED_OVER" in told else []
                assert since == list(events)[: len(since)]
                if len(since) == len(events):
                    view = await runtime.store.load("job", fresh=True)
                    assert view is not None
                    return view.steps["ocr"]
                await asyncio.sleep(0.02)

    async def test_a_service_that_speaks_to_a_closed_door_is_given_time(self, runtime: Runtime) -> None:
        assert isinstance(runtime.store, PostgresLedger)
        await submit(runtime)
        at = await now(runtime.store)
        await ticks_since(runtime.store, at - HOUR, at)
        await set_door(runtime.store, at - 60_000, 5)
        with capture_logs() as logs:
            assert len(await runtime.dispatcher.pull("ocr", 1, 0)) == 1
            step = await self.until(runtime, "DEADLINE_EXTENDED")
        assert step.status is StepStatus.INITIATED
        assert step.attempt.ack_deadline is not None
        assert step.attempt.ack_deadline >= at + 60_000
        assert [entry["event"] for entry in logs].count(SAID) == 1

    async def test_once_it_is_open_again_there_is_one_more_period(self, runtime: Runtime) -> None:
        assert isinstance(runtime.store, PostgresLedger)
        await submit(runtime)
        assert len(await runtime.dispatcher.pull("ocr", 1, 0)) == 1
        at = await now(runtime.store) + 500
        await set_door(runtime.store, at + 60_000, at)
        step = await self.until(runtime, "DEADLINE_EXTENDED", "STEP_RETRY_SCHEDULED")
        assert step.attempt.outcome is AttemptOutcome.ACK_TIMEOUT
        assert step.attempt.ended_at is not None
        assert step.attempt.ended_at >= at + ACK_MS
