"""Messages that other processes signal are received by the tasks open here, and cost nothing if there are none."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger.memory.inbox import MemoryInbox
from lucius.core.model.inputs import Ack, HandedOver, Input, Succeeded
from lucius.engine.temporal.fastpath.open_tasks import OpenTasks
from lucius.engine.temporal.fastpath.peer_signals import MAX_PENDING_READS, PeerSignals
from lucius.engine.temporal.messages import JobMessage, decode_inbox_message, make_inbox_message
from lucius.ports.errors import LedgerDown
from lucius.ports.inbox import InboxMessage
from lucius.ports.peers import Wake
from lucius.usecases.notifier import Notifier

LONG = 10.0
HANDED_OVER = HandedOver("ocr", 1, "lease")
ACK = Ack(step_id="ocr", attempt_no=1, lease_id="lease")
RESULT = Succeeded(step_id="ocr", attempt_no=1, lease_id="lease", result={"text": "read"})


class SlowInbox(MemoryInbox):
    """Answers when released, and records the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failure: Exception | None = None

    async def get_many(self, message_ids: Collection[str]) -> list[InboxMessage]:
        self.asked.append(list(message_ids))
        found = await super().get_many(message_ids)
        await self.may_answer.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return found


class Worker:
    """The listening part of a worker."""

    def __init__(self) -> None:
        self.inbox, self.open_tasks, self.notifier = SlowInbox(), OpenTasks(LONG), Notifier()
        self.peer_signals = PeerSignals(self.inbox, self.open_tasks)
        self.notifier.on_inbox_ids.append(self.peer_signals.on_announcement)

    async def put(self, job_id: str, *said: Input) -> InboxMessage:
        message = make_inbox_message(job_id, said, 1_000)
        await self.inbox.put([message])
        return message

    def wake(self, *messages: InboxMessage) -> None:
        self.notifier.apply_wake(Wake(inbox_ids=tuple(message.message_id for message in messages)))

    async def receive(self, job_id: str) -> list[JobMessage]:
        async with asyncio.timeout(2):
            return await self.open_tasks.wait_for_messages(job_id, ["ocr"])

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def kept(self, job_id: str) -> list[JobMessage]:
        task = self.open_tasks.get(job_id)
        return [] if task is None else task.messages


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    yield worker
    await worker.peer_signals.close()


def happened(messages: Sequence[InboxMessage]) -> list[JobMessage]:
    return [one for message in messages for one in decode_inbox_message(message)]


async def test_open_task_receives_messages_signalled_by_another_process(worker: Worker) -> None:
    message = await worker.put("j1", ACK, RESULT)
    worker.open_tasks.open("j1")
    worker.wake(message)
    messages = await worker.receive("j1")
    assert messages == decode_inbox_message(message)
    assert [one.message_id for one in messages] == [message.message_id] * 2


async def test_announcements_of_other_jobs_are_not_read(worker: Worker) -> None:
    message = await worker.put("j1", ACK)
    worker.open_tasks.open("j2")
    worker.wake(message)
    await worker.settled()
    assert worker.inbox.asked == []


async def test_messages_of_one_announcement_are_read_together_in_order(worker: Worker) -> None:
    handed_over, result = await worker.put("j1", HANDED_OVER), await worker.put("j1", RESULT)
    other, closed = await worker.put("j2", ACK), await worker.put("j3", ACK)
    worker.open_tasks.open("j1")
    worker.open_tasks.open("j2")
    worker.wake(other, closed, handed_over, result)
    assert await worker.receive("j1") == happened([handed_over, result])
    assert await worker.receive("j2") == happened([other])
    assert worker.inbox.asked == [[other.message_id, handed_over.message_id, result.message_id]]


async def test_announcements_during_a_read_are_read_together_after_it(worker: Worker) -> None:
    messages = [await worker.put(f"j{n}", ACK) for n in range(4)]
    for message in messages:
        worker.open_tasks.open(message.job_id)
    worker.inbox.may_answer.clear()
    for message in messages:
        worker.wake(message)
        await worker.settled()
    worker.inbox.may_answer.set()
    assert await worker.receive("j3") == happened(messages[3:])
    names = [message.message_id for message in messages]
    assert worker.inbox.asked == [names[:1], names[1:]]


async def test_deleted_and_known_messages_are_not_passed_on(worker: Worker) -> None:
    gone, read = await worker.put("j1", HANDED_OVER), await worker.put("j1", RESULT)
    await worker.inbox.delete([gone.message_id])
    worker.open_tasks.open("j1", message_ids=[read.message_id])
    listening = asyncio.create_task(worker.receive("j1"))
    await worker.settled()
    worker.wake(gone, read)
    await worker.settled()
    assert not listening.done()
    listening.cancel()


@pytest.mark.parametrize("run_id", ["the same", "the next"])
async def test_task_opened_after_the_announcement_receives_nothing(worker: Worker, run_id: str) -> None:
    """An earlier task got it by its signal. A new run knows no old messages and would wait for that signal forever."""
    message = await worker.put("j1", RESULT)
    worker.open_tasks.open("j1", "the same")
    worker.inbox.may_answer.clear()
    worker.wake(message)
    await worker.settled()
    if run_id == "the same":
        worker.open_tasks.close("j1")
    worker.open_tasks.open("j1", run_id)
    worker.inbox.may_answer.set()
    await worker.settled()
    assert worker.open_tasks.get("j1") is not None
    assert worker.kept("j1") == []


async def test_unreachable_ledger_costs_only_the_shortcut(worker: Worker) -> None:
    lost, message = await worker.put("j1", ACK), await worker.put("j1", RESULT)
    worker.open_tasks.open("j1")
    for failure in (LedgerDown("away"), ValueError("who knows")):
        worker.inbox.failure = failure
        with capture_logs() as logs:
            worker.wake(lost)
            await worker.settled()
        assert [one["log_level"] for one in logs] == ["info" if isinstance(failure, LedgerDown) else "error"]
    worker.wake(message)
    assert await worker.receive("j1") == decode_inbox_message(message)


async def test_pending_reads_are_limited(worker: Worker) -> None:
    worker.open_tasks.open("j1")
    worker.inbox.may_answer.clear()
    worker.notifier.apply_wake(Wake(inbox_ids=("j1/first",)))
    await worker.settled()
    for n in range(MAX_PENDING_READS + 10):
        worker.notifier.apply_wake(Wake(inbox_ids=(f"j1/{n}",)))
    worker.inbox.may_answer.set()
    await worker.settled()
    assert [len(asked) for asked in worker.inbox.asked] == [1, MAX_PENDING_READS]


async def test_closed_reader_reads_no_more(worker: Worker) -> None:
    message = await worker.put("j1", RESULT)
    worker.open_tasks.open("j1")
    worker.inbox.may_answer.clear()
    worker.wake(message)
    await worker.settled()
    async with asyncio.timeout(2):
        await worker.peer_signals.close()
    worker.inbox.may_answer.set()
    worker.wake(message)
    await worker.settled()
    assert len(worker.inbox.asked) == 1
    assert worker.kept("j1") == []
