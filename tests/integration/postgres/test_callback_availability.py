"""API processes take callbacks, others watch deadlines: no attempt times out because no API process listened."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger.postgres.store import PostgresStore, open_postgres
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.core.model.records import Step
from lucius.core.model.statuses import AttemptOutcome, StepStatus
from lucius.engine.embedded import sweeper
from lucius.observability.readiness import Role
from lucius.ports.peers import CallbackAvailability, EngineLiveness
from tests.integration.postgres.test_deadlines import submit

WITHIN = 12.0
HOUR = 3_600_000
ACK_MS = 3_000
SAID = "no process takes callbacks; overdue attempts are given more time"


@pytest.fixture
async def store(emptied_postgres_url: str) -> AsyncIterator[PostgresStore]:
    opened = await open_postgres(emptied_postgres_url)
    yield opened
    await opened.close()


def presence_of(store: PostgresStore) -> EngineLiveness:
    assert store.liveness is not None
    return store.liveness


async def now(store: PostgresStore) -> int:
    row = await store.database.fetch_row("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now")
    assert row is not None
    return int(row["now"])


async def availability_row(store: PostgresStore) -> tuple[int, int]:
    row = await store.database.fetch_row("SELECT available_at, available_since FROM callback_availability")
    assert row is not None
    return row["available_at"], row["available_since"]


async def set_availability_row(store: PostgresStore, available_at: int, available_since: int) -> None:
    async with store.database.connection() as connection:
        update = "UPDATE callback_availability SET available_at = $1, available_since = $2"
        await connection.execute(update, available_at, available_since)


class TestAvailabilityMarks:
    async def test_advertising_marks_the_process_available_at_once(self, store: PostgresStore) -> None:
        before = await now(store)
        await presence_of(store).advertise(lambda: True)
        available_at, available_since = await availability_row(store)
        assert before <= available_at == available_since <= await now(store)

    async def test_process_that_does_not_advertise_leaves_no_mark(self, store: PostgresStore) -> None:
        await store.replica.notifier.poll()
        assert await availability_row(store) == (0, 0)

    @pytest.mark.parametrize(("silence", "is_reopened"), [(10_000, False), (26_000, True)])
    async def test_availability_after_a_long_silence_counts_as_reopened(
        self, store: PostgresStore, silence: int, is_reopened: bool
    ) -> None:
        await presence_of(store).advertise(lambda: True)
        await set_availability_row(store, await now(store) - silence, 5)
        await store.replica.notifier.poll()
        available_at, available_since = await availability_row(store)
        assert 5 < available_since <= available_at if is_reopened else available_since == 5

    async def test_repeated_marks_are_written_once(self, store: PostgresStore) -> None:
        await presence_of(store).advertise(lambda: True)
        await set_availability_row(
            store, await now(store) + 60_000, 5
        )  # in the future, so that the clock has no effect
        written = await store.database.fetch_rows("SELECT xmin FROM callback_availability")
        await store.replica.notifier.poll()
        assert await store.database.fetch_rows("SELECT xmin FROM callback_availability") == written

    async def test_stopping_process_leaves_no_mark(self, store: PostgresStore) -> None:
        await presence_of(store).advertise(lambda: False)
        await set_availability_row(store, 3, 5)
        await store.replica.notifier.poll()
        assert await availability_row(store) == (3, 5)


class TestCallbackAvailability:
    @pytest.mark.parametrize(
        ("silence", "expected"),
        [
            (0, CallbackAvailability(-70_000)),
            (25_000, CallbackAvailability(-70_000)),
            (25_001, CallbackAvailability(25_001, is_unavailable=True)),
            (HOUR - 1, CallbackAvailability(HOUR - 1, is_unavailable=True)),
            (HOUR, CallbackAvailability(-70_000)),
        ],
    )
    async def test_unavailability_is_reported_between_its_bounds(
        self, store: PostgresStore, silence: int, expected: CallbackAvailability
    ) -> None:
        at = await now(store)
        await set_ticks(store, at - 2 * HOUR, at)
        await set_availability_row(store, at - silence, at - 70_000)
        await presence_of(store).record_tick(at, 4_000)
        found = presence_of(store).callback_availability(at)
        assert CallbackAvailability(found.since - at, found.is_unavailable) == expected

    async def test_silence_counts_only_while_an_engine_was_polling(self, store: PostgresStore) -> None:
        """If all engines, or the database, were down, no process can tell whether callbacks could be taken."""
        at = await now(store)
        await set_ticks(store, at - 40_000, at - 40_000)
        await set_availability_row(store, at - 40_000, 5)
        assert await presence_of(store).record_tick(at, 4_000) == at
        assert presence_of(store).callback_availability(at) == CallbackAvailability(5)
        await presence_of(store).record_tick(at + 26_000, 60_000)
        assert presence_of(store).callback_availability(at + 26_000) == CallbackAvailability(
            at + 52_000, is_unavailable=True
        )

    async def test_process_that_accepts_callbacks_is_never_unavailable(self, store: PostgresStore) -> None:
        at = await now(store)
        await presence_of(store).advertise(lambda: True)
        await set_ticks(store, at - HOUR, at)
        await set_availability_row(store, at - 60_000, 5)
        await presence_of(store).record_tick(at, 4_000)
        assert presence_of(store).callback_availability(at) == CallbackAvailability(5)

    async def test_no_attempt_is_excused_if_no_process_ever_advertised(self, store: PostgresStore) -> None:
        at = await now(store)
        await set_ticks(store, at - HOUR, at)
        await presence_of(store).record_tick(at, 4_000)
        assert presence_of(store).callback_availability(at) == CallbackAvailability()

    async def test_unavailability_counts_as_absence_for_other_engines(self, store: PostgresStore) -> None:
        at = await now(store)
        await set_ticks(store, at - 60_000, at)
        found = []
        for available_at in (at - 1_000, at - 26_000):
            await set_availability_row(store, available_at, at - 40_000)
            found.append(await presence_of(store).working_since(at, 4_000) - at)
        assert found == [-40_000, 0]


async def set_ticks(store: PostgresStore, resumed_at: int, last_tick: int) -> None:
    async with store.database.connection() as connection:
        await connection.execute("UPDATE engine SET resumed_at = $1, last_tick = $2", resumed_at, last_tick)


@pytest.mark.parametrize(("role", "serves"), [(Role.WHOLE, True), (Role.API, True), (Role.ENGINE, False)])
async def test_processes_with_an_api_accept_callbacks(
    emptied_postgres_url: str, tmp_path: Path, role: Role, serves: bool
) -> None:
    settings = load_settings({"LUCIUS_LEDGER_URL": emptied_postgres_url}, data_dir=tmp_path)
    async with open_runtime(settings, role=role) as runtime:
        assert isinstance(runtime.store, PostgresStore)
        assert runtime.store.replica.notifier.peers.accepts_callbacks() is serves
        assert (await availability_row(runtime.store) != (0, 0)) is serves


class TestDeadlines:
    @pytest.fixture
    async def runtime(
        self, emptied_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[ControlPlane]:
        """Yield an engine without an API, whose gaps never count as an absence, however slow the machine is."""
        monkeypatch.setattr(sweeper, "GAP_MS", 10 * HOUR)
        env = {
            "LUCIUS_LEDGER_URL": emptied_postgres_url,
            "LUCIUS_ACK_TIMEOUT": str(ACK_MS // 1000),
            "LUCIUS_SWEEP_INTERVAL": "0.05",
        }
        async with open_runtime(load_settings(env, data_dir=tmp_path), role=Role.ENGINE) as runtime:
            yield runtime

    async def until_events(self, runtime: ControlPlane, *events: str) -> Step:
        """Return the step once these events, and no others, have followed its hand-over."""
        async with asyncio.timeout(WITHIN):
            while True:
                told = [event.type for event in await runtime.store.history.events("job", 0, 100)]
                since = told[told.index("STEP_HANDED_OVER") + 1 :] if "STEP_HANDED_OVER" in told else []
                assert since == list(events)[: len(since)]
                if len(since) == len(events):
                    view = await runtime.store.ledger.load("job", fresh=True)
                    assert view is not None
                    return view.steps["ocr"]
                await asyncio.sleep(0.02)

    async def test_attempt_gets_more_time_while_no_process_takes_callbacks(self, runtime: ControlPlane) -> None:
        assert isinstance(runtime.store, PostgresStore)
        await submit(runtime)
        at = await now(runtime.store)
        await set_ticks(runtime.store, at - HOUR, at)
        await set_availability_row(runtime.store, at - 60_000, 5)
        with capture_logs() as logs:
            assert len(await runtime.directive_pulls.pull("ocr", 1, 0)) == 1
            step = await self.until_events(runtime, "DEADLINE_EXTENDED")
        assert step.status is StepStatus.INITIATED
        assert step.attempt.ack_deadline is not None
        assert step.attempt.ack_deadline >= at + 60_000
        assert [entry["event"] for entry in logs].count(SAID) == 1

    async def test_attempt_gets_one_more_period_after_callbacks_are_taken_again(self, runtime: ControlPlane) -> None:
        assert isinstance(runtime.store, PostgresStore)
        await submit(runtime)
        assert len(await runtime.directive_pulls.pull("ocr", 1, 0)) == 1
        at = await now(runtime.store) + 500
        await set_availability_row(runtime.store, at + 60_000, at)
        step = await self.until_events(runtime, "DEADLINE_EXTENDED", "STEP_RETRY_SCHEDULED")
        assert step.attempt.outcome is AttemptOutcome.ACK_TIMEOUT
        assert step.attempt.ended_at is not None
        assert step.attempt.ended_at >= at + ACK_MS
