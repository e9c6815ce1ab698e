"""What is said of one job while a signal to it is under way goes out together, in the next.

Temporal fails a task for which a hundred signals wait. Where hundreds of services work for one job, as many may answer
within the time that a task takes: then signals go out with pauses between them. Who is alone waits for nobody.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lucius.engine.temporal.wire import Happened
from lucius.ports.errors import EngineDown

MOST_TOGETHER, MOST_BYTES = 100, 400_000
"""Temporal takes no signal over 2 MB; one that is large by itself goes alone."""
FEW = 8
"""So many more signals than not had somebody waiting behind them: from then on it is a crowd."""
PAUSE = 0.05
LONGEST_GAP = 0.1
"""Between two of a crowd."""

Reach = Callable[[str, Sequence[Happened]], Awaitable[bool]]


class Bundles:
    """`reach` tells a job's workflow, and whether there still is one to tell."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._rounds: dict[str, _Round] = {}
        """Of the jobs to which a signal is under way."""

    @property
    def busy(self) -> int:
        """How many jobs something is said of."""
        return len(self._rounds)

    async def reach(self, job_id: str, said: Sequence[Happened]) -> bool:
        """Whoever is cut off meanwhile takes back nothing. Raises what `reach` raises, for all of a bundle."""
        job = self._rounds.get(job_id)
        if job is None:
            job = self._rounds[job_id] = _Round(job_id, self._reach, lambda: self._rounds.pop(job_id, None))
        return await asyncio.shield(job.take(said))

    def close(self) -> None:
        for job in list(self._rounds.values()):
            job.close()


class _Bundle:
    def __init__(self) -> None:
        self.said: list[Happened] = []
        self._bytes = 0
        self.reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.reached.add_done_callback(lambda done: done.exception())  # who asked may be gone

    def takes(self, said: Sequence[Happened]) -> bool:
        """If there is room."""
        more = sum(len(happened.body) for happened in said)
        if self.said and (len(self.said) + len(said) > MOST_TOGETHER or self._bytes + more > MOST_BYTES):
            return False
        self.said += said
        self._bytes += more
        return True


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
            self._waiting.append(_Bundle())
            self._waiting[-1].takes(said)
        self._news.set()
        return self._waiting[-1].reached

    def close(self) -> None:
        self._task.cancel()
        self._cut_off()

    def _cut_off(self) -> None:
        for bundle in (*([self._sending] if self._sending else ()), *self._waiting):
            if not bundle.reached.done():
                bundle.reached.set_exception(EngineDown("Temporal: the signal was cut off"))

    async def _run(self) -> None:
        try:
            while await self._has_more():
                self._sending = self._waiting.popleft()
                await self._send(self._sending)
                self._sending = None
                self._crowd = min(self._crowd + 1, FEW + 2) if self._waiting else max(self._crowd - 1, 0)
                if self._crowd > FEW:
                    await asyncio.sleep(PAUSE)
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
            bundle.reached.set_result(await self._reach(self._job_id, bundle.said))
        except Exception as error:  # noqa: BLE001 - for those who asked
            bundle.reached.set_exception(error)
