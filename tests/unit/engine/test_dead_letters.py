"""Dead letters that can't be told just now."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import pytest

from lucius.core.decision import Decision
from lucius.engine import dead_letters
from lucius.engine.dead_letters import DeadLetterRunner
from lucius.ports.bus import DeadLetter
from lucius.ports.errors import BusDown, ForeignEngine, LedgerBusy, LedgerCorrupt, LedgerDown, LedgerFull
from lucius.service import backoff
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Jobs
from tests.support.clock import ManualClock

Run = Callable[..., DeadLetterRunner]
Trouble = Callable[[str], Exception]


def contended(job_id: str) -> Exception:
    return Rejected(RejectCode.LEDGER_CONTENDED, f"{job_id} is changing too fast")


def only(job_ids: Collection[str], trouble: Trouble) -> Callable[[str], Exception | None]:
    return lambda job_id: trouble(job_id) if job_id in job_ids else None


class Letters:
    """Gives each out once, as a bus does to one who lives."""

    def __init__(self, count: int) -> None:
        self.waiting = [DeadLetter(letter_id=str(n), reason="X", job_id=f"job-{n}") for n in range(count)]
        self.settled: list[str] = []
        self.away = False
        self.waits: list[float] = []
        self.let_gone: list[str] = []

    async def take(self, max_letters: int, wait_seconds: float) -> list[DeadLetter]:
        self.waits.append(wait_seconds)
        taken, self.waiting = self.waiting[:max_letters], self.waiting[max_letters:]
        return taken

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        if self.away:
            raise BusDown("away")
        self.settled += [letter.job_id for letter in letters]

    def let_go(self, letters: Sequence[DeadLetter]) -> None:
        self.let_gone += [letter.job_id for letter in letters]

    async def close(self) -> None: ...


class Ledger:
    """Can be away, or never take what is about one job."""

    def __init__(self) -> None:
        self.away = False
        self.never: Callable[[str], Exception | None] = lambda job_id: None
        self.told: list[str] = []
        self.tries = 0

    async def apply(self, job_id: str, inputs: Sequence[Any], step_id: str) -> Decision:
        self.tries += 1
        if self.away:
            raise LedgerDown("away")
        if (trouble := self.never(job_id)) is not None:
            raise trouble
        self.told.append(job_id)
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
    def run(letters: Letters, retry_interval: float = 0.0, **options: Any) -> DeadLetterRunner:
        return DeadLetterRunner(letters, cast("Jobs", ledger), clock, retry_interval, jitter=lambda: 1.0, **options)

    return run


async def test_what_could_not_be_told_is_told_when_the_ledger_is_back(ledger: Ledger, run: Run) -> None:
    letters = Letters(3)
    running = run(letters)
    ledger.away = True
    for _ in range(5):
        with pytest.raises(LedgerDown):
            await running.turn()
    ledger.away = False
    await running.turn()
    assert sorted(letters.settled) == sorted(ledger.told) == ["job-0", "job-1", "job-2"]
    assert letters.waits[1:] == [0.0] * 5, "who has something to tell does not wait for more"


class TestOneThatCanNeverBeTold:
    @pytest.fixture(params=[LedgerCorrupt, TypeError, contended])
    def trouble(self, request: pytest.FixtureRequest) -> Trouble:
        return cast("Trouble", request.param)

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letters, "BATCH", 3)

    async def test_it_holds_up_nobody_and_fails_no_turn(self, ledger: Ledger, run: Run, trouble: Trouble) -> None:
        letters, failures = Letters(dead_letters.BATCH + 5), list[str]()
        running = run(letters, on_failure=failures.append)
        ledger.never = only({"job-0"}, trouble)
        for _ in range(3):
            await running.turn()
        assert len(letters.settled) == dead_letters.BATCH + 4
        assert failures == ["dead-letters"]

    async def test_neither_do_many(self, ledger: Ledger, run: Run, trouble: Trouble) -> None:
        letters = Letters(3 * dead_letters.BATCH + 1)
        running = run(letters)
        ledger.never = only({f"job-{n}" for n in range(3 * dead_letters.BATCH)}, trouble)
        for _ in range(4):
            await running.turn()
        assert letters.settled == [f"job-{3 * dead_letters.BATCH}"]

    async def test_it_is_tried_more_and_more_seldom_until_it_can(
        self, ledger: Ledger, run: Run, clock: ManualClock, trouble: Trouble
    ) -> None:
        letters = Letters(1)
        running = run(letters)
        ledger.never = only({"job-0"}, trouble)
        for _ in range(100):
            await running.turn()
            clock.advance(10)
        assert 4 <= ledger.tries <= 8
        ledger.never = only(set(), LedgerDown)
        clock.advance(backoff.MOST_SECONDS)
        await running.turn()
        assert letters.settled == ["job-0"]

    async def test_more_than_can_be_kept_go_back(
        self, ledger: Ledger, run: Run, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "MOST_ASIDE", 3)
        letters = Letters(5)
        ledger.never = only({f"job-{n}" for n in range(5)}, trouble)
        running = run(letters)
        for _ in range(2):
            await running.turn()
        assert letters.let_gone == ["job-3", "job-4"]


async def test_one_for_an_engine_that_is_not_here_is_left_to_others(ledger: Ledger, run: Run) -> None:
    letters = Letters(2)
    ledger.never = only({"job-0"}, ForeignEngine)
    running = run(letters)
    await running.turn()
    await running.turn()
    assert (letters.let_gone, letters.settled, ledger.tries) == (["job-0"], ["job-1"], 2)


@pytest.mark.parametrize("trouble", [LedgerFull, LedgerBusy, LedgerDown])
async def test_trouble_of_the_whole_ledger_fails_the_turn(ledger: Ledger, run: Run, trouble: Trouble) -> None:
    letters = Letters(1)
    ledger.never = only({"job-0"}, trouble)
    running = run(letters)
    with pytest.raises((LedgerFull, LedgerBusy, LedgerDown)):
        await running.turn()
    ledger.never = only(set(), LedgerDown)
    await running.turn()
    assert letters.settled == ["job-0"]


async def test_one_that_was_told_and_not_settled_is_told_again(ledger: Ledger, run: Run) -> None:
    letters = Letters(1)
    running = run(letters)
    letters.away = True
    await running.turn()
    letters.away = False
    await running.turn()
    assert (ledger.told, letters.settled) == (["job-0", "job-0"], ["job-0"])


async def test_a_bus_that_stays_down_is_asked_more_and_more_seldom(
    ledger: Ledger, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, pauses = Letters(1), list[float]()

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    running = run(letters, retry_interval=5.0)
    letters.away = True
    for _ in range(5):
        await running.turn()
    letters.away = False
    await running.turn()
    letters.away, letters.waiting = True, [DeadLetter(letter_id="2", reason="X")]
    await running.turn()
    assert pauses == [7.5, 15, 30, 30, 30, 7.5]
