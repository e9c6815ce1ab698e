"""Messages about one job at the same time are sent in one signal, and many senders are slowed down."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import Raw

from lucius.engine.temporal import signal_batcher
from lucius.engine.temporal.messages import JobMessage
from lucius.engine.temporal.signal_batcher import SignalBatcher
from lucius.engine.temporal.workflow_client import NoAnswer
from lucius.ports.errors import EngineDown
from tests.support.until import until


def messages(message_id: str, size: int = 2) -> list[JobMessage]:
    return [JobMessage("Succeeded", Raw(b"x" * size), message_id)]


class Temporal:
    """Records signals, each of which completes when the test releases it."""

    def __init__(self, *, held: bool = False) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        self.refuses: set[str] = set()
        self.cut_off: set[str] = set()
        self.away: set[str] = set()
        self.let_through = asyncio.Event()
        if not held:
            self.let_through.set()

    async def reach(self, job_id: str, happened: Sequence[JobMessage]) -> bool:
        message_ids = [one.message_id for one in happened]
        self.sent.append((job_id, message_ids))
        await asyncio.sleep(0)
        await self.let_through.wait()
        if self.refuses.intersection(message_ids):
            raise EngineDown("not now")
        if self.away.intersection(message_ids):
            raise NoAnswer("away")
        if self.cut_off.intersection(message_ids):
            raise asyncio.CancelledError
        return "ended" not in message_ids

    @property
    def message_ids(self) -> list[list[str]]:
        return [message_ids for _, message_ids in self.sent]


async def until_sent(temporal: Temporal, signals: int) -> None:
    await until(lambda: len(temporal.sent) >= signals)


async def test_messages_during_a_signal_go_with_the_next() -> None:
    temporal = Temporal(held=True)
    tell = SignalBatcher(temporal.reach).send
    first = asyncio.create_task(tell("job", messages("a")))
    await until_sent(temporal, 1)
    others = [asyncio.create_task(tell("job", messages(message_id))) for message_id in "bcd"]
    elsewhere = asyncio.create_task(tell("another", messages("e")))
    await until_sent(temporal, 2)
    assert temporal.sent == [("job", ["a"]), ("another", ["e"])]
    temporal.let_through.set()
    assert await asyncio.gather(first, *others, elsewhere) == [True] * 5
    assert temporal.message_ids == [["a"], ["e"], ["b", "c", "d"]]


async def test_messages_sent_together_share_a_signal() -> None:
    temporal = Temporal()
    tell = SignalBatcher(temporal.reach).send
    await asyncio.gather(*(tell("job", messages(message_id)) for message_id in "abc"))
    assert temporal.message_ids == [["a", "b", "c"]]


async def test_large_message_is_sent_alone() -> None:
    temporal = Temporal()
    tell = SignalBatcher(temporal.reach).send
    large = signal_batcher.MAX_BATCH_BYTES + 1
    await asyncio.gather(
        *(tell("job", messages(message_id, size)) for message_id, size in (("a", 2), ("b", large), ("c", 2)))
    )
    assert temporal.message_ids == [["a"], ["b"], ["c"]]


async def test_batch_size_is_limited() -> None:
    temporal = Temporal()
    tell = SignalBatcher(temporal.reach).send
    message_ids = [str(n) for n in range(signal_batcher.MAX_BATCH_MESSAGES + 1)]
    await asyncio.gather(*(tell("job", messages(message_id)) for message_id in message_ids))
    assert temporal.message_ids == [message_ids[:-1], message_ids[-1:]]


async def test_result_of_a_batch_goes_to_its_callers_only() -> None:
    temporal = Temporal(held=True)
    tell = SignalBatcher(temporal.reach).send
    first = asyncio.create_task(tell("job", messages("a")))
    await until_sent(temporal, 1)
    temporal.refuses.add("b")
    others = [asyncio.create_task(tell("job", messages(message_id))) for message_id in "bc"]
    await asyncio.sleep(0)
    temporal.let_through.set()
    assert await first
    assert [type(error) for error in await asyncio.gather(*others, return_exceptions=True)] == [EngineDown] * 2
    assert await tell("job", messages("d"))
    assert not await tell("job", messages("ended"))


async def test_cancelled_caller_does_not_affect_others() -> None:
    temporal = Temporal(held=True)
    tell = SignalBatcher(temporal.reach).send
    first, second = (asyncio.create_task(tell("job", messages(message_id))) for message_id in "ab")
    await until_sent(temporal, 1)
    first.cancel()
    third = asyncio.create_task(tell("job", messages("c")))
    await asyncio.sleep(0)
    third.cancel()
    temporal.let_through.set()
    assert await second
    assert first.cancelled()
    await until_sent(temporal, 2)
    assert temporal.message_ids == [["a", "b"], ["c"]]


async def test_close_fails_waiting_callers() -> None:
    temporal = Temporal(held=True)
    all_jobs = SignalBatcher(temporal.reach)
    first = asyncio.create_task(all_jobs.send("job", messages("a")))
    await until_sent(temporal, 1)
    second = asyncio.create_task(all_jobs.send("job", messages("b")))
    await asyncio.sleep(0)
    all_jobs.close()
    found = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in found] == [EngineDown] * 2


async def test_close_fails_unsent_batches_and_later_callers() -> None:
    jobs = SignalBatcher(Temporal().reach)
    only = asyncio.create_task(jobs.send("job", messages("a")))
    asyncio.get_running_loop().call_soon(jobs.close)  # after it was queued, before its batch has begun
    found = await asyncio.gather(only, jobs.send("job", messages("b")), return_exceptions=True)
    assert [type(error) for error in found] == [EngineDown] * 2
    with pytest.raises(EngineDown):
        await jobs.send("job", messages("c", signal_batcher.MAX_BATCH_BYTES))


async def test_unanswered_signal_fails_the_whole_queue() -> None:
    temporal = Temporal(held=True)
    tell = SignalBatcher(temporal.reach).send
    first = asyncio.create_task(tell("job", messages("a")))
    await until_sent(temporal, 1)
    temporal.away.add("a")
    others = [
        asyncio.create_task(tell("job", messages(message_id, signal_batcher.MAX_BATCH_BYTES))) for message_id in "bcd"
    ]
    await asyncio.sleep(0)
    temporal.let_through.set()
    found = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(error) for error in found] == [NoAnswer] * 4
    assert temporal.message_ids == [["a"]]
    assert await tell("job", messages("e"))


@pytest.mark.parametrize(("limit", "size"), [("MAX_QUEUED_MESSAGES", 2), ("MAX_QUEUED_BYTES", 1_000)])
async def test_queue_is_limited(limit: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_batcher, "MAX_BATCH_MESSAGES", 1)
    monkeypatch.setattr(signal_batcher, limit, 3 * (size if "BYTES" in limit else 1))
    temporal = Temporal(held=True)
    jobs = SignalBatcher(temporal.reach)
    first = asyncio.create_task(jobs.send("job", messages("a", size)))
    await until_sent(temporal, 1)
    others = [asyncio.create_task(jobs.send("job", messages(message_id, size))) for message_id in "bcd"]
    await asyncio.sleep(0)
    with pytest.raises(EngineDown, match="too many pending messages"):
        await jobs.send("job", messages("e", size))
    temporal.let_through.set()
    assert await asyncio.gather(first, *others) == [True] * 4


async def test_large_batch_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_batcher, "MAX_BYTES_PER_SECOND", 2 * signal_batcher.MAX_BATCH_BYTES)
    tell, loop = SignalBatcher(Temporal().reach).send, asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(tell("job", messages(str(n), signal_batcher.MAX_BATCH_BYTES)) for n in range(3)))
    assert loop.time() - began >= 1.0
    began = loop.time()
    for n in range(3):
        await tell("another", messages(str(n), signal_batcher.MAX_BATCH_BYTES))
    assert loop.time() - began < 1.0


async def test_cancelled_signal_does_not_block_the_queue() -> None:
    """Several callers may share a connection that breaks."""
    temporal = Temporal(held=True)
    tell = SignalBatcher(temporal.reach).send
    temporal.cut_off.add("a")
    first = asyncio.create_task(tell("job", messages("a")))
    await until_sent(temporal, 1)
    second = asyncio.create_task(tell("job", messages("b")))
    await asyncio.sleep(0)
    temporal.let_through.set()
    found = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in found] == [EngineDown] * 2
    assert await tell("job", messages("c"))


async def test_busy_job_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are slowed down however fast Temporal answers: here a message arrives in each turn of the loop."""
    monkeypatch.setattr(signal_batcher, "PAUSE_SECONDS", 0.01)
    temporal, loop = Temporal(), asyncio.get_running_loop()
    tell = SignalBatcher(temporal.reach).send
    began, told = loop.time(), list[asyncio.Task[bool]]()
    while loop.time() < began + 0.2 and len(told) < signal_batcher.MAX_QUEUED_MESSAGES:
        told.append(asyncio.create_task(tell("job", messages(str(len(told))))))
        await asyncio.sleep(0)
    await asyncio.gather(*told)
    assert len(told) > 500
    full = len(told) / signal_batcher.MAX_BATCH_MESSAGES
    assert len(temporal.sent) <= signal_batcher.BUSY_THRESHOLD + 2 + full + (loop.time() - began) / 0.01
    assert [message_id for message_ids in temporal.message_ids for message_id in message_ids] == [
        str(n) for n in range(len(told))
    ]


async def test_sequential_messages_are_not_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_batcher, "PAUSE_SECONDS", 60)
    tell = SignalBatcher(Temporal().reach).send
    async with asyncio.timeout(10):
        for n in range(10 * signal_batcher.BUSY_THRESHOLD):
            await tell("job", messages(str(n)))


async def test_idle_queue_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_batcher, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(signal_batcher, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(signal_batcher, "MAX_BATCH_MESSAGES", 1)
    temporal = Temporal()
    jobs = SignalBatcher(temporal.reach)
    for _ in range(5):
        await asyncio.gather(*(jobs.send("job", messages(str(n))) for n in range(signal_batcher.BUSY_THRESHOLD + 3)))
    await until(lambda: not jobs.queue_count)
