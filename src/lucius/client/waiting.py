"""Waiting for a job's end by long polls, across restarts of the server."""

import asyncio
import random

from msgspec import Struct

from lucius.client.errors import RequestRefused, TimedOut
from lucius.client.http import Http, Request, job_path
from lucius.client.retry import LONG_POLL_LIMIT, pause_after
from lucius.contract import JobView

LONG_POLL_SECONDS = 25.0  # many proxies cut connections that are silent for 30 s
SHORT_POLL_SECONDS = 2.0  # while other polls queue for a connection
GRACE_SECONDS = 1.0  # for the last answer to arrive
TERMINAL = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})


class PolledJob(Struct):
    """Last known state of the job, and the answer it was read from."""

    job: JobView | None = None
    answer: bytes = b""


async def until_ended(http: Http, job_id: str, timeout: float | None, retry_for: float | None = None) -> PolledJob:
    """Poll until the job has ended; return it and its answer. Raises TimedOut after `timeout` seconds."""
    polled = PolledJob()
    try:
        async with asyncio.timeout(None if timeout is None else timeout + GRACE_SECONDS) as limit:
            await _poll(http, job_id, timeout, retry_for, polled)
    except TimeoutError:
        if not limit.expired():
            raise
    if polled.job is None or polled.job.status not in TERMINAL:
        raise TimedOut(job_id, timeout or 0.0, polled.job)
    return polled


async def _poll(http: Http, job_id: str, timeout: float | None, retry_for: float | None, polled: PolledJob) -> None:
    """Poll the job until it has ended or the time is over."""
    clock = asyncio.get_running_loop().time
    deadline = None if timeout is None else clock() + timeout
    early_answers = 0
    while True:
        began = clock()
        max_seconds = SHORT_POLL_SECONDS if http.are_polls_exhausted else LONG_POLL_SECONDS
        asked = max_seconds if deadline is None else max(0.0, min(max_seconds, deadline - began))
        params = {"wait": f"{asked:.3f}"}
        request = Request(method="GET", path=job_path(job_id), params=params, repeatable=True, waits=asked)
        try:
            polled.answer = await http.call(request, retry_for=retry_for)
        except RequestRefused as refusal:
            if refusal.code != LONG_POLL_LIMIT:
                raise
            pause = pause_after(1, refusal.retry_after or 0.0, random.random())
            await asyncio.sleep(pause if deadline is None else max(0.0, min(pause, deadline - clock())))
            continue
        polled.job = http.read(polled.answer, JobView)
        now = clock()
        if polled.job.status in TERMINAL or (deadline is not None and now >= deadline):
            return
        early_answers = early_answers + 1 if now - began < asked / 2 else 0
        if early_answers:  # avoid a busy loop if the server is stopping or a proxy does not hold long polls
            await asyncio.sleep(pause_after(early_answers, 0.0, random.random()))
