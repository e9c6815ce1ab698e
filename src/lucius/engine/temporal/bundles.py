"""What is said of one job while a signal to it is under way goes out together, in the next.

Temporal fails a task for which a hundred signals wait, or 2 MB. Where hundreds of services work for one job, as many
may answer within the time that a task takes: then the signals of this process go out with pauses between them. Who
comes while nothing is said waits for nobody.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lucius.engine.temporal.wire import Happened
from lucius.engine.temporal.workflows import NoAnswer
from lucius.ports.errors import EngineDown

MOST_TOGETHER, MOST_BYTES = 100, 400_000
"""Temporal takes no signal over 2 MB; one that is large by itself goes alone."""
MOST_WAITING, MOST_BYTES_WAITING = 5_000, 3_000_000
"""What waits for longer than a few seconds is told by those who find its letter, too."""
FEW = 8
"""So many more signals than not had somebody waiting behind them: from then on it is a crowd."""
PAUSE, BYTES_PER_SECOND = 0.05, 1_000_000
LONGEST_GAP = 0.1
"""Between two of a crowd."""

Reach = Callable[[str, Sequence[Happened]], Awaitable[bool]]


class Bundles:
    """`reach` tells a job's workflow, and whether there still is one to tell."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._rounds: dict[str, _Round] = {}
        """Of the jobs to which a signal is under way."""
        self._closed = False

    async def reach(self, job_id: str, said: Sequence[Happened]) -> bool:
        """Whoever is cut off meanwhile takes back nothing. Raises what `reach` raises, for all of a bundle; EngineDown
        also if too much waits already."""
        if self._closed:
            raise EngineDown("Temporal: nothing is told any more, this process is about to end")
        job = self._rounds.get(job_id)
        if job is None:
            job = self._rounds[job_id] = _Round(job_id, self._reach, lambda: self._rounds.pop(job_id, None))
        return await asyncio.shield(job.take(said))

    def close(self) -> None:
        self._closed = True
        for job in self._rounds.values():
            job.close()


class _Bundle:
    def __init__(self) -> None:
        self.said: list[Happened] = []
        self.bytes = 0
        self.reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.reached.add_done_callback(lambda done: done.exception())  # who asked may be gone

    def takes(self, said: Sequence[Happened]) -> bool:
        """If there is room."""
        more = sum(len(happened.body) for happened in said)
        if self.said and (len(self.said) + len(said) > MOST_TOGETHER or self.bytes + more > MOST_BYTES):
            return False
        self.said += said
        self.bytes += more
        return True

    def fail(self, error: Exception) -> None:
        if not self.reached.done():
            self.reached.set_exception(error)


class _Round:
    """To one job, one signal after the other, until nothing is left to say."""

    def __init__(self, job_id: str, reach: Reach, on_end: Callable[[], object]) -> None:
        self._job_id = job_id
        self._reach = reach
        self._on_end = on_end
        self._sending: _Bundle | None = None
        self._waiting: deque[_Bundle] = deque()
        self._news = asyncio.Event()
        self._crowd = 0
        self._task = asyncio.create_task(self._run())

    def take(self, said: Sequence[Happened]) -> asyncio.Future[bool]:
        if not self._waiting or not self._waiting[-1].takes(said):
            self._require_room()
            self._waiting.append(_Bundle())
            self._waiting[-1].takes(said)
        self._news.set()
        return self._waiting[-1].reached

    def close(self) -> None:
        self._task.cancel()
        self._cut_off()

    def _require_room(self) -> None:
        things = sum(len(bundle.said) for bundle in self._waiting)
        if things >= MOST_WAITING or sum(bundle.bytes for bundle in self._waiting) >= MOST_BYTES_WAITING:
            raise EngineDown("Temporal: more is said of this job than it can be told at once")

    def _cut_off(self) -> None:
        if self._sending is not None:
            self._sending.fail(EngineDown("Temporal: the signal was cut off"))
        self._fail_all(EngineDown("Temporal: the signal before this one was cut off"))

    def _fail_all(self, error: Exception) -> None:
        while self._waiting:
            self._waiting.popleft().fail(error)

    async def _run(self) -> None:
        try:
            while await self._has_more():
                self._sending = self._waiting.popleft()
                await self._send(self._sending)
                await self._rest(self._sending)
        finally:
            self._on_end()  # at once: who comes now begins another
            self._cut_off()

    async def _has_more(self) -> bool:
        if not self._waiting and self._crowd:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_GAP):
                    await self._news.wait()
        return bool(self._waiting)

    async def _send(self, bundle: _Bundle) -> None:
        try:
            reached = await self._reach(self._job_id, bundle.said)
        except NoAnswer as error:  # those who wait would not be answered, either, and only later
            bundle.fail(error)
            self._fail_all(error)
        except Exception as error:  # noqa: BLE001 - for those who asked
            bundle.fail(error)
        else:
            bundle.reached.set_result(reached)

    async def _rest(self, bundle: _Bundle) -> None:
        if not self._waiting:
            self._crowd = max(self._crowd - 1, 0)
        else:
            self._crowd = min(self._crowd + 1, FEW + 2)
        pause = PAUSE if self._crowd > FEW else 0.0
        if self._waiting:
            pause = max(pause, bundle.bytes / BYTES_PER_SECOND)
        if pause:
            await asyncio.sleep(pause)
