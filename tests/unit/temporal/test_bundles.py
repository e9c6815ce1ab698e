"""What is said of one job at the same time goes out together, and a crowd is slowed down."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import Raw

from lucius.engine.temporal import bundles
from lucius.engine.temporal.bundles import Bundles
from lucius.engine.temporal.wire import Happened
from lucius.engine.temporal.workflows import NoAnswer
from lucius.ports.errors import EngineDown
from tests.support.until import until


def said(letter: str, size: int = 2) -> list[Happened]:
    return [Happened("Succeeded", Raw(b"x" * size), letter)]


class Temporal:
    """What is sent, which takes until it is let through."""

    def __init__(self, *, held: bool = False) -> None:
        self.sent: list[tuple[str, list[str]]] = []
        self.refuses: set[str] = set()
        self.cut_off: set[str] = set()
        self.away: set[str] = set()
        self.let_through = asyncio.Event()
        if not held:
            self.let_through.set()

    async def reach(self, job_id: str, happened: Sequence[Happened]) -> bool:
        letters = [one.letter for one in happened]
        self.sent.append((job_id, letters))
        await asyncio.sleep(0)
        await self.let_through.wait()
        if self.refuses.intersection(letters):
            raise EngineDown("not now")
        if self.away.intersection(letters):
            raise NoAnswer("away")
        if self.cut_off.intersection(letters):
            raise asyncio.CancelledError
        return "ended" not in letters

    @property
    def letters(self) -> list[list[str]]:
        return [letters for _, letters in self.sent]


async def until_sent(temporal: Temporal, signals: int) -> None:
    await until(lambda: len(temporal.sent) >= signals)


async def test_who_comes_while_one_is_under_way_goes_with_the_next() -> None:
    temporal = Temporal(held=True)
    tell = Bundles(temporal.reach).reach
    first = asyncio.create_task(tell("job", said("a")))
    await until_sent(temporal, 1)
    others = [asyncio.create_task(tell("job", said(letter))) for letter in "bcd"]
    elsewhere = asyncio.create_task(tell("another", said("e")))
    await until_sent(temporal, 2)
    assert temporal.sent == [("job", ["a"]), ("another", ["e"])]
    temporal.let_through.set()
    assert await asyncio.gather(first, *others, elsewhere) == [True] * 5
    assert temporal.letters == [["a"], ["e"], ["b", "c", "d"]]


async def test_who_comes_in_the_same_turn_goes_together() -> None:
    temporal = Temporal()
    tell = Bundles(temporal.reach).reach
    await asyncio.gather(*(tell("job", said(letter)) for letter in "abc"))
    assert temporal.letters == [["a", "b", "c"]]


async def test_one_that_is_large_goes_by_itself() -> None:
    temporal = Temporal()
    tell = Bundles(temporal.reach).reach
    large = bundles.MOST_BYTES + 1
    await asyncio.gather(*(tell("job", said(letter, size)) for letter, size in (("a", 2), ("b", large), ("c", 2))))
    assert temporal.letters == [["a"], ["b"], ["c"]]


async def test_no_more_than_so_many_go_together() -> None:
    temporal = Temporal()
    tell = Bundles(temporal.reach).reach
    letters = [str(n) for n in range(bundles.MOST_TOGETHER + 1)]
    await asyncio.gather(*(tell("job", said(letter)) for letter in letters))
    assert temporal.letters == [letters[:-1], letters[-1:]]


async def test_what_became_of_a_bundle_is_told_to_all_who_are_in_it_and_to_nobody_else() -> None:
    temporal = Temporal(held=True)
    tell = Bundles(temporal.reach).reach
    first = asyncio.create_task(tell("job", said("a")))
    await until_sent(temporal, 1)
    temporal.refuses.add("b")
    others = [asyncio.create_task(tell("job", said(letter))) for letter in "bc"]
    await asyncio.sleep(0)
    temporal.let_through.set()
    assert await first
    assert [type(error) for error in await asyncio.gather(*others, return_exceptions=True)] == [EngineDown] * 2
    assert await tell("job", said("d"))
    assert not await tell("job", said("ended"))


async def test_who_is_cut_off_takes_nobody_with_him() -> None:
    temporal = Temporal(held=True)
    tell = Bundles(temporal.reach).reach
    first, second = (asyncio.create_task(tell("job", said(letter))) for letter in "ab")
    await until_sent(temporal, 1)
    first.cancel()
    third = asyncio.create_task(tell("job", said("c")))
    await asyncio.sleep(0)
    third.cancel()
    temporal.let_through.set()
    assert await second
    assert first.cancelled()
    await until_sent(temporal, 2)
    assert temporal.letters == [["a", "b"], ["c"]]


async def test_whoever_still_waits_at_the_end_is_cut_off() -> None:
    temporal = Temporal(held=True)
    all_jobs = Bundles(temporal.reach)
    first = asyncio.create_task(all_jobs.reach("job", said("a")))
    await until_sent(temporal, 1)
    second = asyncio.create_task(all_jobs.reach("job", said("b")))
    await asyncio.sleep(0)
    all_jobs.close()
    found = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in found] == [EngineDown] * 2


async def test_what_was_never_begun_is_cut_off_too_and_nobody_comes_after_the_end() -> None:
    jobs = Bundles(Temporal().reach)
    only = asyncio.create_task(jobs.reach("job", said("a")))
    asyncio.get_running_loop().call_soon(jobs.close)  # after it came, before its round has begun
    found = await asyncio.gather(only, jobs.reach("job", said("b")), return_exceptions=True)
    assert [type(error) for error in found] == [EngineDown] * 2
    with pytest.raises(EngineDown):
        await jobs.reach("job", said("c", bundles.MOST_BYTES))


async def test_if_temporal_does_not_answer_one_nobody_waits_for_it_any_longer() -> None:
    temporal = Temporal(held=True)
    tell = Bundles(temporal.reach).reach
    first = asyncio.create_task(tell("job", said("a")))
    await until_sent(temporal, 1)
    temporal.away.add("a")
    others = [asyncio.create_task(tell("job", said(letter, bundles.MOST_BYTES))) for letter in "bcd"]
    await asyncio.sleep(0)
    temporal.let_through.set()
    found = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(error) for error in found] == [NoAnswer] * 4
    assert temporal.letters == [["a"]]
    assert await tell("job", said("e"))


@pytest.mark.parametrize(("limit", "size"), [("MOST_WAITING", 2), ("MOST_BYTES_WAITING", 1_000)])
async def test_no_more_wait_than_can_be_told_soon(limit: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MOST_TOGETHER", 1)
    monkeypatch.setattr(bundles, limit, 3 * (size if "BYTES" in limit else 1))
    temporal = Temporal(held=True)
    jobs = Bundles(temporal.reach)
    first = asyncio.create_task(jobs.reach("job", said("a", size)))
    await until_sent(temporal, 1)
    others = [asyncio.create_task(jobs.reach("job", said(letter, size))) for letter in "bcd"]
    await asyncio.sleep(0)
    with pytest.raises(EngineDown, match="more is said"):
        await jobs.reach("job", said("e", size))
    temporal.let_through.set()
    assert await asyncio.gather(first, *others) == [True] * 4


async def test_after_much_is_a_pause_if_more_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "BYTES_PER_SECOND", 2 * bundles.MOST_BYTES)
    tell, loop = Bundles(Temporal().reach).reach, asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(tell("job", said(str(n), bundles.MOST_BYTES)) for n in range(3)))
    assert loop.time() - began >= 1.0
    began = loop.time()
    for n in range(3):
        await tell("another", said(str(n), bundles.MOST_BYTES))
    assert loop.time() - began < 1.0


async def test_a_signal_that_is_cut_off_by_itself_is_in_nobodys_way() -> None:
    """A connection may be cut that many wait for together."""
    temporal = Temporal(held=True)
    tell = Bundles(temporal.reach).reach
    temporal.cut_off.add("a")
    first = asyncio.create_task(tell("job", said("a")))
    await until_sent(temporal, 1)
    second = asyncio.create_task(tell("job", said("b")))
    await asyncio.sleep(0)
    temporal.let_through.set()
    found = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(error) for error in found] == [EngineDown] * 2
    assert await tell("job", said("c"))


async def test_a_crowd_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick Temporal is: another comes with each turn of the loop."""
    monkeypatch.setattr(bundles, "PAUSE", 0.01)
    temporal, loop = Temporal(), asyncio.get_running_loop()
    tell = Bundles(temporal.reach).reach
    began, told = loop.time(), list[asyncio.Task[bool]]()
    while loop.time() < began + 0.2 and len(told) < bundles.MOST_WAITING:
        told.append(asyncio.create_task(tell("job", said(str(len(told))))))
        await asyncio.sleep(0)
    await asyncio.gather(*told)
    assert len(told) > 500
    full = len(told) / bundles.MOST_TOGETHER
    assert len(temporal.sent) <= bundles.FEW + 2 + full + (loop.time() - began) / 0.01
    assert [letter for letters in temporal.letters for letter in letters] == [str(n) for n in range(len(told))]


async def test_one_after_the_other_is_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "PAUSE", 60)
    tell = Bundles(Temporal().reach).reach
    async with asyncio.timeout(10):
        for n in range(10 * bundles.FEW):
            await tell("job", said(str(n)))


async def test_a_crowd_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "PAUSE", 0)
    monkeypatch.setattr(bundles, "LONGEST_GAP", 0.01)
    monkeypatch.setattr(bundles, "MOST_TOGETHER", 1)
    temporal = Temporal()
    jobs = Bundles(temporal.reach)
    for _ in range(5):
        await asyncio.gather(*(jobs.reach("job", said(str(n))) for n in range(bundles.FEW + 3)))
    await until(lambda: not jobs._rounds)
