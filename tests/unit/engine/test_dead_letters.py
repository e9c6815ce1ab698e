"""Dead letters that can't be processed at the moment."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import pytest

from lucius import backoff
from lucius.core.model.decision import Decision
from lucius.engine import dead_letters
from lucius.engine.dead_letters import DeadLetterRunner
from lucius.ports.bus import DeadLetter
from lucius.ports.engine import Engine
from lucius.ports.errors import BusDown, ForeignEngine, LedgerBusy, LedgerCorrupt, LedgerDown, LedgerFull
from lucius.usecases.errors import RejectCode, Rejected
from tests.support.clock import ManualClock

Run = Callable[..., DeadLetterRunner]
Trouble = Callable[[str], Exception]


def contended(job_id: str) -> Exception:
    return Rejected(RejectCode.LEDGER_CONTENDED, f"{job_id} is changing too fast")


def only(job_ids: Collection[str], trouble: Trouble) -> Callable[[str], Exception | None]:
    return lambda job_id: trouble(job_id) if job_id in job_ids else None


class FakeDeadLetters:
    """Gives each dead letter out once, as a bus does to a live consumer."""

    def __init__(self, count: int) -> None:
        self.waiting = [DeadLetter(entry_id=str(n), reason="X", job_id=f"job-{n}") for n in range(count)]
        self.settled: list[str] = []
        self.away = False
        self.waits: list[float] = []
        self.returned: list[str] = []

    async def take(self, limit: int, wait_seconds: float) -> list[DeadLetter]:
        self.waits.append(wait_seconds)
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        if self.away:
            raise BusDown("away")
        self.settled += [letter.job_id for letter in letters]

    def let_go(self, letters: Sequence[DeadLetter]) -> None:
        self.returned += [letter.job_id for letter in letters]

    async def close(self) -> None: ...


class Ledger:
    """A ledger that can be down, or always fail for certain jobs."""

    def __init__(self) -> None:
        self.away = False
        self.never: Callable[[str], Exception | None] = lambda job_id: None
        self.applied: list[str] = []
        self.tries = 0

    async def apply(self, job_id: str, inputs: Sequence[Any], step_id: str) -> Decision:
        self.tries += 1
        if self.away:
            raise LedgerDown("away")
        if (trouble := self.never(job_id)) is not None:
            raise trouble
        self.applied.append(job_id)
        return cast("Decision", Nothing())


class Nothing:
    reply = None


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def run(ledger: Ledger, clock: ManualClock) -> Run:
    def run(letters: FakeDeadLetters, retry_interval: float = 0.0, **options: Any) -> DeadLetterRunner:
        engine = cast(Engine, ledger)
        return DeadLetterRunner(letters, engine, clock, retry_interval, jitter=lambda: 1.0, **options)

    return run


async def test_dead_letters_are_processed_when_the_ledger_is_back(ledger: Ledger, run: Run) -> None:
    letters = FakeDeadLetters(3)
    running = run(letters)
    ledger.away = True
    for _ in range(5):
        with pytest.raises(LedgerDown):
            await running.run_once()
    ledger.away = False
    await running.run_once()
    assert sorted(letters.settled) == sorted(ledger.applied) == ["job-0", "job-1", "job-2"]
    assert letters.waits[1:] == [0.0] * 5, "a runner with unprocessed dead letters does not wait for more"


class TestUnprocessableDeadLetter:
    @pytest.fixture(params=[LedgerCorrupt, TypeError, contended])
    def trouble(self, request: pytest.FixtureRequest) -> Trouble:
        return cast("Trouble", request.param)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letters, "BATCH_MESSAGES", 3)

    async def test_unprocessable_dead_letter_blocks_no_other_and_fails_no_turn(
        self, ledger: Ledger, run: Run, trouble: Trouble
    ) -> None:
        letters, failures = FakeDeadLetters(dead_letters.BATCH_MESSAGES + 5), list[str]()
        running = run(letters, on_failure=failures.append)
        ledger.never = only({"job-0"}, trouble)
        for _ in range(3):
            await running.run_once()
        assert len(letters.settled) == dead_letters.BATCH_MESSAGES + 4
        assert failures == ["dead-letters"]

    async def test_many_unprocessable_dead_letters_block_no_other(
        self, ledger: Ledger, run: Run, trouble: Trouble
    ) -> None:
        letters = FakeDeadLetters(3 * dead_letters.BATCH_MESSAGES + 1)
        running = run(letters)
        ledger.never = only({f"job-{n}" for n in range(3 * dead_letters.BATCH_MESSAGES)}, trouble)
        for _ in range(4):
            await running.run_once()
        assert letters.settled == [f"job-{3 * dead_letters.BATCH_MESSAGES}"]

    async def test_unprocessable_dead_letter_is_retried_with_backoff_until_it_succeeds(
        self, ledger: Ledger, run: Run, clock: ManualClock, trouble: Trouble
    ) -> None:
        letters = FakeDeadLetters(1)
        running = run(letters)
        ledger.never = only({"job-0"}, trouble)
        for _ in range(100):
            await running.run_once()
            clock.advance(10)
        assert 4 <= ledger.tries <= 8
        ledger.never = only(set(), LedgerDown)
        clock.advance(backoff.MAX_SECONDS)
        await running.run_once()
        assert letters.settled == ["job-0"]

    async def test_unprocessable_dead_letters_above_the_limit_are_returned_to_the_bus(
        self, ledger: Ledger, run: Run, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "MAX_ASIDE_MESSAGES", 3)
        letters = FakeDeadLetters(5)
        ledger.never = only({f"job-{n}" for n in range(5)}, trouble)
        running = run(letters)
        for _ in range(2):
            await running.run_once()
        assert letters.returned == ["job-3", "job-4"]


async def test_dead_letter_for_another_engine_is_returned_to_the_bus(ledger: Ledger, run: Run) -> None:
    letters = FakeDeadLetters(2)
    ledger.never = only({"job-0"}, ForeignEngine)
    running = run(letters)
    await running.run_once()
    await running.run_once()
    assert (letters.returned, letters.settled, ledger.tries) == (["job-0"], ["job-1"], 2)


@pytest.mark.parametrize("trouble", [LedgerFull, LedgerBusy, LedgerDown])
async def test_ledger_outage_fails_the_turn_and_the_dead_letter_is_retried(
    ledger: Ledger, run: Run, trouble: Trouble
) -> None:
    letters = FakeDeadLetters(1)
    ledger.never = only({"job-0"}, trouble)
    running = run(letters)
    with pytest.raises((LedgerFull, LedgerBusy, LedgerDown)):
        await running.run_once()
    ledger.never = only(set(), LedgerDown)
    await running.run_once()
    assert letters.settled == ["job-0"]


async def test_dead_letter_that_was_not_settled_is_processed_again(ledger: Ledger, run: Run) -> None:
    letters = FakeDeadLetters(1)
    running = run(letters)
    letters.away = True
    await running.run_once()
    letters.away = False
    await running.run_once()
    assert (ledger.applied, letters.settled) == (["job-0", "job-0"], ["job-0"])


async def test_retries_against_a_bus_that_stays_down_back_off(
    ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, pauses = FakeDeadLetters(1), list[float]()

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    running = run(letters, retry_interval=5.0)
    letters.away = True
    for _ in range(5):
        await running.run_once()
    letters.away = False
    await running.run_once()
    letters.away, letters.waiting = True, [DeadLetter(entry_id="2", reason="X")]
    await running.run_once()
    assert pauses == [7.5, 15, 30, 30, 30, 7.5]
