"""Sends hand-overs in the signal of the callback that usually follows soon: one signal instead of two."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from lucius.engine.temporal.messages import JobMessage
from lucius.engine.temporal.shortcuts import SendSignal

COALESCE_SECONDS = 0.4
"""How long a hand-over waits for a callback of its job before it is signalled alone."""


class _Waiting:
    """Hand-overs of one job that are to be signalled together."""

    def __init__(self) -> None:
        self.messages: list[JobMessage] = []
        self.taken = asyncio.Event()
        self.result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.result.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark as retrieved


class CoalescedHandovers:
    """Holds the hand-overs of each job until a callback takes them along, or for `COALESCE_SECONDS`."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._closed = False

    def close(self) -> None:
        """Send at once what waits, and whatever comes later."""
        self._closed = True
        for waiting in self._waiting.values():
            waiting.taken.set()

    async def send_later(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        """Send with the next callback of the job or after `COALESCE_SECONDS`; return and raise what `send` does."""
        waiting = self._waiting.get(job_id)
        if waiting is not None:
            waiting.messages += messages
            return await asyncio.shield(waiting.result)
        waiting = self._waiting[job_id] = _Waiting()
        waiting.messages += messages
        try:
            await self._wait_for_callback(waiting)
        except BaseException:
            if self._waiting.get(job_id) is waiting:
                del self._waiting[job_id]
                waiting.result.cancel()
            raise
        if self._waiting.get(job_id) is waiting:
            return await self._send(job_id, waiting, (), send)
        return await asyncio.shield(waiting.result)

    async def _wait_for_callback(self, waiting: _Waiting) -> None:
        if not self._closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(COALESCE_SECONDS):
                    await waiting.taken.wait()

    async def send_together(self, job_id: str, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        """Send a callback, preceded by the hand-overs of its job that wait."""
        waiting = self._waiting.get(job_id)
        if waiting is None:
            return await send(job_id, messages)
        return await self._send(job_id, waiting, messages, send)

    async def _send(self, job_id: str, waiting: _Waiting, messages: Sequence[JobMessage], send: SendSignal) -> bool:
        del self._waiting[job_id]
        waiting.taken.set()
        try:
            sent = await send(job_id, [*waiting.messages, *messages])
        except Exception as error:
            waiting.result.set_exception(error)
            raise
        except BaseException:  # the callback's caller is gone; `send` may go on
            waiting.result.cancel()
            raise
        waiting.result.set_result(sent)
        return sent
