"""Dead letters that can't be told just now."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from lucius.core.decision import Decision
from lucius.engine import dead_letters
from lucius.engine.dead_letters import DeadLetterRunner
from lucius.ports.bus import DeadLetter
from lucius.ports.errors import BusDown, LedgerDown
from lucius.service.jobs import Jobs


class Letters:
    """Gives each out once, as a bus does to one who lives."""

    def __init__(self, count: int) -> None:
        self.waiting = [DeadLetter(letter_id=str(n), reason="X", job_id=f"job-{n}") for n in range(count)]
        self.settled: list[str] = []
        self.away = False
        self.waits: list[float] = []

    async def take(self, max_letters: int, wait_seconds: float) -> list[DeadLetter]:
        self.waits.append(wait_seconds)
        taken, self.waiting = self.waiting[:max_letters], self.waiting[max_letters:]
        return taken

    async def settle(self, letters: Sequence[DeadLetter]) -> None:
        if self.away:
            raise BusDown("away")
        self.settled += [letter.job_id for letter in letters]

    async def close(self) -> None: ...


class Ledger:
    """Can be away, or never take what is about one job."""

    def __init__(self) -> None:
        self.away = False
        self.never = ""
        self.told: list[str] = []

    async def apply(self, job_id: str, inputs: Sequence[Any], step_id: str) -> Decision:
        if self.away or job_id == self.never:
            raise LedgerDown("away")
        self.told.append(job_id)
        return cast("Decision", Nothing())


class Nothing:
    reply = None


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def runner(letters: Letters, ledger: Ledger) -> DeadLetterRunner:
    return DeadLetterRunner(letters, cast("Jobs", ledger), retry_interval=0.0)


async def test_what_could_not_be_told_is_told_when_the_ledger_is_back(ledger: Ledger) -> None:
    letters = Letters(3)
    running = runner(letters, ledger)
    ledger.away = True
    for _ in range(5):
        with pytest.raises(LedgerDown):
            await running.turn()
    ledger.away = False
    await running.turn()
    assert sorted(letters.settled) == sorted(ledger.told) == ["job-0", "job-1", "job-2"]
    assert letters.waits[1:] == [0.0] * 5, "who has something to tell does not wait for more"


async def test_one_that_can_never_be_told_holds_up_nobody(ledger: Ledger) -> None:
    letters = Letters(dead_letters.BATCH + 5)
    running = runner(letters, ledger)
    ledger.never = "job-0"
    for _ in range(4):
        with pytest.raises(LedgerDown):
            await running.turn()
    assert len(letters.settled) == dead_letters.BATCH + 4


async def test_one_that_was_told_and_not_settled_is_told_again(ledger: Ledger) -> None:
    letters = Letters(1)
    running = runner(letters, ledger)
    letters.away = True
    await running.turn()
    letters.away = False
    await running.turn()
    assert (ledger.told, letters.settled) == (["job-0", "job-0"], ["job-0"])
