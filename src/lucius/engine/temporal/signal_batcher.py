"""Batches signals to one workflow.

While a signal is in flight, further messages for the same job are queued and sent together in the next one. Temporal
fails a workflow task with more than 100 pending signals or 2 MB, and hundreds of services may answer one job within the
time that a task takes, so under load the batcher also pauses between signals. A message to an idle job is sent at once.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lucius.engine.temporal.messages import JobMessage
from lucius.engine.temporal.workflow_client import NoAnswer
from lucius.ports.errors import EngineDown

MAX_BATCH_MESSAGES, MAX_BATCH_BYTES = 100, 400_000
"""Temporal refuses signals over 2 MB; a single larger message is sent alone."""
MAX_QUEUED_MESSAGES, MAX_QUEUED_BYTES = 5_000, 3_000_000
"""Beyond this the caller gets EngineDown. The inbox still holds the messages and is redelivered after a few seconds."""
BUSY_THRESHOLD = 8
"""Surplus of signals sent with a non-empty queue behind them over those without; above it, pauses begin."""
PAUSE_SECONDS, MAX_BYTES_PER_SECOND = 0.05, 1_000_000
IDLE_SECONDS = 0.1
"""How long the sender of a busy job waits for the next message before it ends."""

SendSignal = Callable[[str, Sequence[JobMessage]], Awaitable[bool]]


class SignalBatcher:
    """Sends messages to job workflows, at most one signal in flight per job.

    `send_signal` returns False if the workflow has closed.
    """

    def __init__(self, send_signal: SendSignal) -> None:
        self._send_signal = send_signal
        self._queues: dict[str, _JobQueue] = {}
        """Jobs with a signal in flight."""
        self._closed = False

    @property
    def queue_count(self) -> int:
        """Number of jobs with a signal in flight."""
        return len(self._queues)

    async def send(self, job_id: str, messages: Sequence[JobMessage]) -> bool:
        """Send `messages` with the next signal to the job's workflow; return False if the workflow has closed.

        Cancelling the caller does not withdraw the messages. Raises what `send_signal` raises, to every caller in the
        batch, and EngineDown if the queue is full.
        """
        if self._closed:
            raise EngineDown("Temporal: this process is shutting down")
        queue = self._queues.get(job_id)
        if queue is None:
            queue = self._queues[job_id] = _JobQueue(job_id, self._send_signal, lambda: self._queues.pop(job_id, None))
        return await asyncio.shield(queue.enqueue(messages))

    def close(self) -> None:
        self._closed = True
        for queue in self._queues.values():
            queue.close()


class _Batch:
    def __init__(self) -> None:
        self.messages: list[JobMessage] = []
        self.bytes = 0
        self.result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.result.add_done_callback(lambda done: done.exception())  # mark as retrieved: the caller may be gone

    def try_add(self, messages: Sequence[JobMessage]) -> bool:
        """Add messages if there is room; return whether they were added."""
        size = sum(len(message.body) for message in messages)
        is_full = len(self.messages) + len(messages) > MAX_BATCH_MESSAGES or self.bytes + size > MAX_BATCH_BYTES
        if self.messages and is_full:
            return False
        self.messages += messages
        self.bytes += size
        return True

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class _JobQueue:
    """Queue and sender task of one job; removed when the queue runs empty."""

    def __init__(self, job_id: str, send_signal: SendSignal, on_end: Callable[[], object]) -> None:
        self._job_id = job_id
        self._send_signal = send_signal
        self._on_end = on_end
        self._sending: _Batch | None = None
        self._queue: deque[_Batch] = deque()
        self._wake = asyncio.Event()
        self._busy = 0
        self._task = asyncio.create_task(self._send_batches())

    def enqueue(self, messages: Sequence[JobMessage]) -> asyncio.Future[bool]:
        if not self._queue or not self._queue[-1].try_add(messages):
            self._reject_if_full()
            self._queue.append(_Batch())
            self._queue[-1].try_add(messages)
        self._wake.set()
        return self._queue[-1].result

    def close(self) -> None:
        self._task.cancel()
        self._fail_pending()

    def _reject_if_full(self) -> None:
        count = sum(len(batch.messages) for batch in self._queue)
        if count >= MAX_QUEUED_MESSAGES or sum(batch.bytes for batch in self._queue) >= MAX_QUEUED_BYTES:
            raise EngineDown("Temporal: too many pending messages for this job")

    def _fail_pending(self) -> None:
        if self._sending is not None:
            self._sending.fail(EngineDown("Temporal: the signal was cancelled"))
        self._fail_all(EngineDown("Temporal: the preceding signal was cancelled"))

    def _fail_all(self, error: Exception) -> None:
        while self._queue:
            self._queue.popleft().fail(error)

    async def _send_batches(self) -> None:
        try:
            while await self._wait_for_batch():
                self._sending = self._queue.popleft()
                await self._send(self._sending)
                await self._pause_if_busy(self._sending)
        finally:
            self._on_end()  # before anything else: the next caller starts a new queue
            self._fail_pending()

    async def _wait_for_batch(self) -> bool:
        if not self._queue and self._busy:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._wake.wait()
        return bool(self._queue)

    async def _send(self, batch: _Batch) -> None:
        try:
            result = await self._send_signal(self._job_id, batch.messages)
        except NoAnswer as error:  # queued batches would time out as well, one after the other
            batch.fail(error)
            self._fail_all(error)
        except Exception as error:  # noqa: BLE001 - passed on to the callers
            batch.fail(error)
        else:
            batch.result.set_result(result)

    async def _pause_if_busy(self, batch: _Batch) -> None:
        if not self._queue:
            self._busy = max(self._busy - 1, 0)
        else:
            self._busy = min(self._busy + 1, BUSY_THRESHOLD + 2)
        pause = PAUSE_SECONDS if self._busy > BUSY_THRESHOLD else 0.0
        if self._queue:
            pause = max(pause, batch.bytes / MAX_BYTES_PER_SECOND)
        if pause:
            await asyncio.sleep(pause)
