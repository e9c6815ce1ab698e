"""Waiting for a job's end by long polls, over restarts of the server."""

import asyncio
import random

from msgspec import Struct

from lucius.client.errors import TimedOut
from lucius.client.http import Http, Request, job_path
from lucius.client.retry import pause_after
from lucius.contract import JobView

LONG_POLL = 25.0  # proxies like to cut what is silent for 30
SHORT_POLL = 2.0  # while others queue for their turn
GRACE_SECONDS = 1.0  # for the last answer to arrive
TERMINAL = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})


class Looked(Struct):
    """The job as it was last seen, and the bytes that said so."""

    job: JobView | None = None
    answer: bytes = b""


async def until_ended(http: Http, job_id: str, timeout: float | None, retry_for: float | None = None) -> Looked:
    """The job, ended. Raises TimedOut."""
    looked = Looked()
    try:
        async with asyncio.timeout(None if timeout is None else timeout + GRACE_SECONDS) as limit:
            await _poll(http, job_id, timeout, retry_for, looked)
    except TimeoutError:
        if not limit.expired():
            raise
    if looked.job is None or looked.job.status not in TERMINAL:
        raise TimedOut(job_id, timeout or 0.0, looked.job)
    return looked


async def _poll(http: Http, job_id: str, timeout: float | None, retry_for: float | None, looked: Looked) -> None:
    """Look at it until it has ended or the time is over."""
    clock = asyncio.get_running_loop().time
    deadline = None if timeout is None else clock() + timeout
    early = 0
    while True:
        began = clock()
        most = SHORT_POLL if http.crowded else LONG_POLL
        asked = most if deadline is None else max(0.0, min(most, deadline - began))
        params = {"wait": f"{asked:.3f}"}
        request = Request(method="GET", path=job_path(job_id), params=params, repeatable=True, waits=asked)
        looked.answer = await http.call(request, retry_for=retry_for)
        looked.job = http.read(looked.answer, JobView)
        now = clock()
        if looked.job.status in TERMINAL or (deadline is not None and now >= deadline):
            return
        early = early + 1 if now - began < asked / 2 else 0
        if early:  # a server that is stopping, or a proxy that knows no long polls: don't run in circles
            await asyncio.sleep(pause_after(early, 0.0, random.random()))
