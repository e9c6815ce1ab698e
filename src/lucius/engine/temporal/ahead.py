"""What is said of a job while a task of its workflow is still open, for that task.

A signal is heard by the next task, and each task costs Temporal three writes and a moment. A service that answers at
once is heard by the task that asked it: the signal, which is as durable as ever, tells it nothing new when it comes.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from lucius.engine.temporal.wire import Happened

LONGEST_WAIT = 0.3
MOST_SKIPPED = 64
MOST_OPEN = 10_000
MOST_SECONDS = 3.0
"""Others may have to wait for a task to end; and Temporal gives one to another worker after five."""
MOST_SIGNALS, MOST_BYTES = 20, 400_000
"""That may wait for a task to end. Temporal fails one for which 100 wait, or 2 MB, and takes no answer over 4 MB."""


class OpenTask:
    """Of one run: the next has not read what this one has, and must not hear of it again."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.read: set[str] = set()
        self.said: list[Happened] = []
        self.signals = self.bytes = 0
        self.coming = 0
        """How many answers are on their way to Temporal."""
        self.news = asyncio.Event()
        self._time = asyncio.get_running_loop().time
        self._ends_at = self._time() + MOST_SECONDS

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._ends_at - self._time())

    @property
    def is_full(self) -> bool:
        return not self.seconds_left or self.signals > MOST_SIGNALS or self.bytes > MOST_BYTES

    def has_read(self, letters: Iterable[str]) -> None:
        self.read.update(letters)
        self.said = [happened for happened in self.said if happened.letter not in self.read]

    async def is_answered(self, seconds: float) -> bool:
        """Within so many; or a little later, if the answer is on its way by then."""
        return await self._hears(seconds) or (bool(self.coming) and await self._hears(self.seconds_left))

    async def _hears(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.news.wait()
        return self.news.is_set()

    def take(self, said: Sequence[Happened]) -> None:
        """Unless it is too much: then it is to end, and hears no more."""
        self.signals += 1
        self.bytes += sum(len(happened.body) for happened in said)
        if not self.is_full:
            self.said += said


class Ahead:
    """Of the tasks that are open in this process."""

    def __init__(self, longest_wait: float = LONGEST_WAIT) -> None:
        self._longest_wait = longest_wait
        self._open: dict[str, OpenTask] = {}
        self._patience: dict[str, _Patience] = {}

    def open(self, job_id: str, run_id: str = "", letters: Iterable[str] = ()) -> None:
        """From now on, what is said of it is kept, except what these letters say, which it has read."""
        if (task := self._open.get(job_id)) is None or task.run_id != run_id:
            task = self._open[job_id] = OpenTask(run_id)
        task.has_read(letters)
        while len(self._open) > MOST_OPEN:  # of tasks that were lost
            del self._open[next(iter(self._open))]

    def close(self, job_id: str) -> None:
        self._open.pop(job_id, None)

    def task(self, job_id: str) -> OpenTask | None:
        """The one that is open."""
        return self._open.get(job_id)

    def told(self, job_id: str, said: Sequence[Happened]) -> None:
        """Temporal has the signal. If nothing was said, somebody else waits for the task to end."""
        if (task := self._open.get(job_id)) is not None:
            new = [happened for happened in said if happened.letter not in task.read]
            if new:
                task.take(new)
            if new or not said:
                task.news.set()

    @contextmanager
    def telling(self, job_id: str) -> Iterator[None]:
        """The service has answered. Temporal takes its time when it has much to do: whoever listens waits for that, for
        it would take as long again to hear of it in another task."""
        task = self._open.get(job_id)
        if task is None:
            yield
            return
        task.coming += 1
        try:
            yield
        except BaseException:
            task.news.set()
            raise
        finally:
            task.coming -= 1

    async def listen(self, job_id: str, services: Iterable[str]) -> list[Happened]:
        """What is said of it, if these services are quick to answer; as soon as there is something, and soon anyway."""
        patience = [self._patience.setdefault(service, _Patience()) for service in services]
        task = self._open.get(job_id)
        if task is None:
            return []
        waits = not task.is_full and not task.news.is_set() and sum(one.is_worth_it() for one in patience)
        if waits and not await task.is_answered(self._longest_wait):
            for one in patience:
                one.waited_in_vain()
        said, task.said = task.said, []
        task.news.clear()
        if said:
            for one in patience:
                one.was_answered()
        else:
            self.close(job_id)
        return said


class _Patience:
    """With a service that takes its time, ever more rarely, up to a point: it may have become quicker."""

    def __init__(self) -> None:
        self._skipped, self._skip = 0, 0

    def is_worth_it(self) -> bool:
        self._skipped += 1
        return self._skipped > self._skip

    def waited_in_vain(self) -> None:
        self._skipped, self._skip = 0, min(MOST_SKIPPED, 2 * self._skip + 1)

    def was_answered(self) -> None:
        self._skipped, self._skip = 0, 0
