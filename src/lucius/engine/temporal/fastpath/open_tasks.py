"""Passes callbacks to a workflow task that is still open in this process.

A signal is processed by the next workflow task, and each task costs Temporal three writes and a round trip. If a
service answers at once, the task that asked it receives the answer directly. The signal is sent all the same and is as
durable as ever; the workflow ignores it as a duplicate.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from lucius.engine.temporal.messages import JobMessage

MAX_WAIT_SECONDS = 0.3
MAX_SKIPPED_WAITS = 64
MAX_OPEN_TASKS = 10_000
MAX_TASK_SECONDS = 3.0
"""Updates may wait for the task to end, and after 5 s Temporal gives the task to another worker."""
MAX_PENDING_SIGNALS, MAX_PENDING_BYTES = 20, 400_000
"""Signals buffered behind an open task: Temporal fails a task with 100 of them or 2 MB, and a response over 4 MB."""


class OpenTask:
    """Messages for one open workflow task. Belongs to one run: the next run knows other messages."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.known_ids: set[str] = set()
        self.messages: list[JobMessage] = []
        self.signals = self.bytes = 0
        self.callbacks_in_flight = 0
        """Callbacks whose signals are being sent to Temporal."""
        self.wake = asyncio.Event()
        self._time = asyncio.get_running_loop().time
        self._ends_at = self._time() + MAX_TASK_SECONDS

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._ends_at - self._time())

    @property
    def is_full(self) -> bool:
        return not self.seconds_left or self.signals > MAX_PENDING_SIGNALS or self.bytes > MAX_PENDING_BYTES

    def mark_known(self, message_ids: Iterable[str]) -> None:
        self.known_ids.update(message_ids)
        self.messages = [message for message in self.messages if message.message_id not in self.known_ids]

    async def wait_for_messages(self, seconds: float) -> bool:
        """Wait up to `seconds`, or until the task must end if a callback is in flight by then; return whether woken."""
        return await self._wait(seconds) or (bool(self.callbacks_in_flight) and await self._wait(self.seconds_left))

    async def _wait(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        return self.wake.is_set()

    def add(self, messages: Sequence[JobMessage]) -> None:
        """Add messages unless the limits are exceeded; then the task is full and has to end."""
        self.signals += 1
        self.bytes += sum(len(message.body) for message in messages)
        if not self.is_full:
            self.messages += messages


class OpenTasks:
    """Registry of the workflow tasks that are open in this process, by job."""

    def __init__(self, max_wait_seconds: float | None = None) -> None:
        self._max_wait_seconds = MAX_WAIT_SECONDS if max_wait_seconds is None else max_wait_seconds
        self._open: dict[str, OpenTask] = {}
        self._backoffs: dict[str, _WaitBackoff] = {}

    def open(self, job_id: str, run_id: str = "", message_ids: Iterable[str] = ()) -> None:
        """Collect messages for the job from now on, except those with these ids, which the task already has."""
        if (task := self._open.get(job_id)) is None or task.run_id != run_id:
            task = self._open[job_id] = OpenTask(run_id)
        task.mark_known(message_ids)
        while len(self._open) > MAX_OPEN_TASKS:  # left behind by lost tasks
            del self._open[next(iter(self._open))]

    def close(self, job_id: str) -> None:
        self._open.pop(job_id, None)

    def get(self, job_id: str) -> OpenTask | None:
        """Return the job's open task."""
        return self._open.get(job_id)

    def add_messages(self, job_id: str, messages: Sequence[JobMessage]) -> None:
        """Add messages whose signal Temporal has stored."""
        if (task := self._open.get(job_id)) is not None:
            new = [message for message in messages if message.message_id not in task.known_ids]
            if new:
                task.add(new)
                task.wake.set()

    def wake(self, job_id: str) -> None:
        """Make the task end its wait: an update waits for the task to end."""
        if (task := self._open.get(job_id)) is not None:
            task.wake.set()

    @contextmanager
    def callback_in_flight(self, job_id: str) -> Iterator[None]:
        """Mark a callback as being signalled, so that the open task waits for it.

        A busy Temporal server is slow to take the signal, and a further task would cost as much again.
        """
        task = self._open.get(job_id)
        if task is None:
            yield
            return
        task.callbacks_in_flight += 1
        try:
            yield
        except BaseException:
            task.wake.set()
            raise
        finally:
            task.callbacks_in_flight -= 1

    async def wait_for_messages(self, job_id: str, services: Iterable[str]) -> list[JobMessage]:
        """Return the messages that arrive within `max_wait_seconds`, as soon as there are any.

        Does not wait if these services were slow lately. Closes the task if nothing arrived.
        """
        backoffs = [self._backoffs.setdefault(service, _WaitBackoff()) for service in services]
        task = self._open.get(job_id)
        if task is None:
            return []
        waits = not task.is_full and not task.wake.is_set() and sum(backoff.should_wait() for backoff in backoffs)
        if waits and not await task.wait_for_messages(self._max_wait_seconds):
            for backoff in backoffs:
                backoff.record_miss()
        messages, task.messages = task.messages, []
        task.wake.clear()
        if messages:
            for backoff in backoffs:
                backoff.record_hit()
        else:
            self.close(job_id)
        return messages


class _WaitBackoff:
    """Skips waits for a slow service: twice as many after each miss, up to a limit, since it may become quicker."""

    def __init__(self) -> None:
        self._skipped, self._skip = 0, 0

    def should_wait(self) -> bool:
        self._skipped += 1
        return self._skipped > self._skip

    def record_miss(self) -> None:
        self._skipped, self._skip = 0, min(MAX_SKIPPED_WAITS, 2 * self._skip + 1)

    def record_hit(self) -> None:
        self._skipped, self._skip = 0, 0
