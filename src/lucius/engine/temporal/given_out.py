"""What services pull, where workflows drive jobs: it is given to whoever puts the letter about it into the inbox.

The workflow hears of it with the callback that mostly follows soon, or else after a moment: one signal instead of two.
Until then the ledger does not count it, so it is counted here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from lucius.core.decision import Applied, Decision, Ignored, JobView, unchanged
from lucius.core.inputs import Cap, HandedOver
from lucius.core.model import Instant
from lucius.engine.temporal.claims import claim
from lucius.engine.temporal.wire import Happened, letter_of, pack
from lucius.ports.clock import Clock
from lucius.ports.errors import EngineDown, LedgerError, LimitReached
from lucius.ports.inbox import Inbox, Letter
from lucius.ports.ledger import Reader

log = structlog.get_logger(__name__)

COALESCE_SECONDS = 0.4
RETRY_SECONDS = 5.0
CLOSE_SECONDS = 5.0
COUNTERS_MS = 50

Weigh = Callable[[str, Sequence[HandedOver], str | None], Awaitable[Decision]]
Reach = Callable[[str, Sequence[Happened]], Awaitable[bool]]


class Store(Reader, Inbox, Protocol):
    """Counters, and the inbox."""


class _Untold(Struct):
    """Of one job, what its workflow has not heard of; and what counts it."""

    said: list[Happened] = field(default_factory=list)
    counters: list[str] = field(default_factory=list)


class GivenOut:
    """`weigh` tells what a job makes of it, as the ledger has it now; `reach` tells its workflow; `freed` hears of what
    no longer counts here."""

    def __init__(self, store: Store, clock: Clock, *, weigh: Weigh, reach: Reach, freed: Callable[[str], None]) -> None:
        self._store = store
        self._clock = clock
        self._weigh = weigh
        self._reach = reach
        self._freed = freed
        self._counters: dict[str, tuple[Instant, int]] = {}
        self._untold: dict[str, _Untold] = {}
        self._on_their_way: Counter[str] = Counter()
        """By what counts them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def give(self, view: JobView, handed_over: Sequence[HandedOver], step_id: str | None) -> Decision:
        """Whether it may be. Raises LimitReached."""
        caps = [cap for one in handed_over for cap in one.caps]
        for cap in caps:
            await self._require_room(cap)
        said = [replace(one, caps=()) for one in handed_over]
        letter = letter_of(view.job.job_id, said, self._clock.now())
        counters = [cap.counter for cap in caps]
        self._on_their_way.update(counters)
        try:
            given = await self._claim(view, letter, said, step_id)
        except BaseException:
            self._are_told(counters)
            raise
        if not isinstance(given.reply, Applied):
            self._are_told(counters)
            return given
        self._keep(view.job.job_id, _Untold([pack(one, letter.letter_id) for one in said], counters), COALESCE_SECONDS)
        return given

    @contextmanager
    def telling(self, job_id: str) -> Iterator[list[Happened]]:
        """What its workflow is told of it, together with what else there is to tell. When it has been, the ledger soon
        counts it, if there is anything to count."""
        untold = self._untold.pop(job_id, None) or _Untold()
        try:
            yield untold.said
        except EngineDown:
            self._keep(job_id, untold, RETRY_SECONDS)
            raise
        except BaseException:
            self._are_told(untold.counters)
            raise
        self._are_told(untold.counters)

    async def close(self) -> None:
        """What waits for company is told now, or by whoever finds its letter."""
        self._closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*(self._tell(job_id) for job_id in list(self._untold)))
        for task in self._tasks:
            task.cancel()

    async def _claim(self, view: JobView, letter: Letter, said: Sequence[HandedOver], step_id: str | None) -> Decision:
        """A letter is thrown away once the ledger shows what it says. So who puts it in looks again: meanwhile another
        may have given it out and been through with it."""
        if not await claim(self._store, letter, lambda: self._take_back(letter)):
            return unchanged(view, Ignored("this attempt does not wait to be handed over"))
        try:
            weighed = await self._weigh(letter.job_id, said, step_id)
        except BaseException:  # cut off, too: it surely was not given out
            with suppress(LedgerError):
                await self._take_back(letter)
            raise
        if not isinstance(weighed.reply, Applied):
            await self._store.throw_away([letter.letter_id])
        return weighed

    async def _take_back(self, letter: Letter) -> None:
        await asyncio.shield(self._store.throw_away([letter.letter_id]))

    def _are_told(self, counters: Sequence[str]) -> None:
        self._on_their_way.subtract(counters)
        for counter in counters:
            self._freed(counter)

    async def _require_room(self, cap: Cap) -> None:
        """As of a moment ago: no commit guards it, so what is on its way to the ledger goes over the cap."""
        now = self._clock.now()
        asked_at, n = self._counters.get(cap.counter, (0, 0))
        if now - asked_at > COUNTERS_MS or n + self._on_their_way[cap.counter] >= cap.limit:
            n = (await self._store.counters(cap.counter)).get(cap.counter, 0)
            self._counters[cap.counter] = now, n
        if n + self._on_their_way[cap.counter] >= cap.limit:
            raise LimitReached(cap.counter, cap.limit)

    def _keep(self, job_id: str, untold: _Untold, seconds: float) -> None:
        """To be told after so many, unless somebody has more to tell before."""
        known = self._untold.get(job_id)
        if known is not None:
            known.said += untold.said
            known.counters += untold.counters
        elif untold.said and not self._closed:
            self._untold[job_id] = untold
            self._in_background(self._tell_later(job_id, untold, seconds))

    async def _tell_later(self, job_id: str, untold: _Untold, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._untold.get(job_id) is untold:
            await self._tell(job_id)

    async def _tell(self, job_id: str) -> None:
        try:
            with self.telling(job_id) as said:
                if said:
                    await self._reach(job_id, said)
        except LedgerError as error:
            log.info("a hand-over is told later", job_id=job_id, reason=str(error))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
