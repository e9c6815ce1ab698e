"""What other processes tell workflows is heard by the tasks that are open here, and costs nothing if none is."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import pytest
from structlog.testing import capture_logs

from lucius.adapters.inbox_memory import MemoryInbox
from lucius.core.inputs import Ack, HandedOver, Input, Succeeded
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.overheard import MOST_WANTED, Overheard
from lucius.engine.temporal.wire import Happened, letter_of, packed_letter
from lucius.ports.errors import LedgerDown
from lucius.ports.inbox import Letter
from lucius.ports.peers import Wake
from lucius.service.hub import Hub

LONG = 10.0
HANDED_OVER = HandedOver("ocr", 1, "lease")
ACK = Ack(step_id="ocr", attempt_no=1, lease_id="lease")
RESULT = Succeeded(step_id="ocr", attempt_no=1, lease_id="lease", result={"text": "read"})


class SlowInbox(MemoryInbox):
    """Answers when it is let, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure: Exception | None = None

    async def letters(self, letter_ids: Collection[str]) -> list[Letter]:
        self.asked.append(list(letter_ids))
        found = await super().letters(letter_ids)
        await self.may_answer.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return found


class Worker:
    """The part of one that listens."""

    def __init__(self) -> None:
        self.inbox, self.ahead, self.hub = SlowInbox(), Ahead(LONG), Hub()
        self.overheard = Overheard(self.inbox, self.ahead)
        self.hub.on_told.append(self.overheard.hear)

    async def put(self, job_id: str, *said: Input) -> Letter:
        letter = letter_of(job_id, said, 1_000)
        await self.inbox.put([letter])
        return letter

    def wake(self, *letters: Letter) -> None:
        self.hub.heard(Wake(told=tuple(letter.letter_id for letter in letters)))

    async def heard(self, job_id: str) -> list[Happened]:
        async with asyncio.timeout(2):
            return await self.ahead.listen(job_id, ["ocr"])

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def kept(self, job_id: str) -> list[Happened]:
        task = self.ahead.task(job_id)
        return [] if task is None else task.said


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    yield worker
    await worker.overheard.close()


def happened(letters: Sequence[Letter]) -> list[Happened]:
    return [one for letter in letters for one in packed_letter(letter)]


async def test_a_task_that_is_open_hears_what_was_told_elsewhere(worker: Worker) -> None:
    letter = await worker.put("j1", ACK, RESULT)
    worker.ahead.open("j1")
    worker.wake(letter)
    heard = await worker.heard("j1")
    assert heard == packed_letter(letter)
    assert [one.letter for one in heard] == [letter.letter_id] * 2


async def test_of_jobs_that_are_not_open_nothing_is_read(worker: Worker) -> None:
    letter = await worker.put("j1", ACK)
    worker.ahead.open("j2")
    worker.wake(letter)
    await worker.settled()
    assert worker.inbox.asked == []


async def test_letters_of_one_wake_are_read_at_once_and_told_in_order(worker: Worker) -> None:
    handed_over, result = await worker.put("j1", HANDED_OVER), await worker.put("j1", RESULT)
    other, closed = await worker.put("j2", ACK), await worker.put("j3", ACK)
    worker.ahead.open("j1")
    worker.ahead.open("j2")
    worker.wake(other, closed, handed_over, result)
    assert await worker.heard("j1") == happened([handed_over, result])
    assert await worker.heard("j2") == happened([other])
    assert worker.inbox.asked == [[other.letter_id, handed_over.letter_id, result.letter_id]]


async def test_what_comes_up_meanwhile_is_read_afterwards_together(worker: Worker) -> None:
    letters = [await worker.put(f"j{n}", ACK) for n in range(4)]
    for letter in letters:
        worker.ahead.open(letter.job_id)
    worker.inbox.may_answer.clear()
    for letter in letters:
        worker.wake(letter)
        await worker.settled()
    worker.inbox.may_answer.set()
    assert await worker.heard("j3") == happened(letters[3:])
    names = [letter.letter_id for letter in letters]
    assert worker.inbox.asked == [names[:1], names[1:]]


async def test_a_letter_that_is_read_already_is_told_to_nobody(worker: Worker) -> None:
    gone, read = await worker.put("j1", HANDED_OVER), await worker.put("j1", RESULT)
    await worker.inbox.throw_away([gone.letter_id])
    worker.ahead.open("j1", letters=[read.letter_id])
    listening = asyncio.create_task(worker.heard("j1"))
    await worker.settled()
    worker.wake(gone, read)
    await worker.settled()
    assert not listening.done()
    listening.cancel()


@pytest.mark.parametrize("run_id", ["the same", "the next"])
async def test_a_task_that_was_opened_meanwhile_is_told_nothing(worker: Worker, run_id: str) -> None:
    """What another heard by its signal: a new run knows no old letters, and would wait for the signal in vain."""
    letter = await worker.put("j1", RESULT)
    worker.ahead.open("j1", "the same")
    worker.inbox.may_answer.clear()
    worker.wake(letter)
    await worker.settled()
    if run_id == "the same":
        worker.ahead.close("j1")
    worker.ahead.open("j1", run_id)
    worker.inbox.may_answer.set()
    await worker.settled()
    assert worker.ahead.task("j1") is not None
    assert worker.kept("j1") == []


async def test_a_ledger_that_is_away_costs_the_shortcut_and_no_more(worker: Worker) -> None:
    lost, letter = await worker.put("j1", ACK), await worker.put("j1", RESULT)
    worker.ahead.open("j1")
    for failure in (LedgerDown("away"), ValueError("who knows")):
        worker.inbox.failure = failure
        with capture_logs() as logs:
            worker.wake(lost)
            await worker.settled()
        assert [one["log_level"] for one in logs] == ["info" if isinstance(failure, LedgerDown) else "error"]
    worker.wake(letter)
    assert await worker.heard("j1") == packed_letter(letter)


async def test_no_more_waits_to_be_read_than_a_memory_can_bear(worker: Worker) -> None:
    worker.ahead.open("j1")
    worker.inbox.may_answer.clear()
    worker.hub.heard(Wake(told=("j1/first",)))
    await worker.settled()
    for n in range(MOST_WANTED + 10):
        worker.hub.heard(Wake(told=(f"j1/{n}",)))
    worker.inbox.may_answer.set()
    await worker.settled()
    assert [len(asked) for asked in worker.inbox.asked] == [1, MOST_WANTED]


async def test_who_stops_reads_no_more(worker: Worker) -> None:
    letter = await worker.put("j1", RESULT)
    worker.ahead.open("j1")
    worker.inbox.may_answer.clear()
    worker.wake(letter)
    await worker.settled()
    async with asyncio.timeout(2):
        await worker.overheard.close()
    worker.inbox.may_answer.set()
    worker.wake(letter)
    await worker.settled()
    assert len(worker.inbox.asked) == 1
    assert worker.kept("j1") == []
