"""Client for asyncio."""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

from lucius.client import batch, following, waiting
from lucius.client.command import Command, CommandOptions, Ref
from lucius.client.encoding import encode_body
from lucius.client.errors import JobFailed, Misconfigured
from lucius.client.http import Http, Request, Trace, job_path
from lucius.client.paging import items
from lucius.client.protocols import AsyncProtocols
from lucius.client.reviews import AsyncReviews
from lucius.contract import (
    Accepted,
    AttemptList,
    AttemptView,
    EventView,
    JobList,
    JobSummary,
    JobView,
    StepList,
    StepWithAttempts,
)
from lucius.contract.control import AuditView

DEFAULT_RETRY_SECONDS = 30.0
DEFAULT_TIMEOUT_SECONDS = 10.0
AUDIT_SECONDS = 300.0


def from_environment() -> tuple[str, str]:
    """Return LUCIUS_URL and LUCIUS_API_KEY. Raises Misconfigured if one is not set."""
    for name in ("LUCIUS_URL", "LUCIUS_API_KEY"):
        if not os.environ.get(name, "").strip():
            raise Misconfigured(f"{name} is not set")
    return os.environ["LUCIUS_URL"], os.environ["LUCIUS_API_KEY"]


class AsyncClient:
    """Session with one control plane. Any number of tasks may share it.

    A failed request is retried for `retry_for` seconds where that is safe: see each method. `timeout` limits one
    answer, in seconds. `trace` is a W3C traceparent, or a function that returns the current one, sent with every
    request.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        retry_for: float = DEFAULT_RETRY_SECONDS,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        trace: Trace = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.http = Http(url, api_key, retry_for=retry_for, timeout=timeout, trace=trace, tls=tls)
        self.protocols = AsyncProtocols(self.http)
        self.reviews = AsyncReviews(self.http)

    @classmethod
    def from_env(
        cls,
        *,
        retry_for: float = DEFAULT_RETRY_SECONDS,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        trace: Trace = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Create a client from LUCIUS_URL and LUCIUS_API_KEY. Raises Misconfigured."""
        url, api_key = from_environment()
        return cls(url, api_key=api_key, retry_for=retry_for, timeout=timeout, trace=trace, tls=tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.http.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.http.url!r})"

    # Submitting

    async def submit(
        self, request_type: str, *, tenant: str, input: Ref, output: Ref, **options: Unpack[CommandOptions]
    ) -> Accepted:
        """Submit a command and return the accepted job.

        Retried after any temporary failure: the key, or without one the content, makes a repeat the same job.
        `duplicate` is then true if the job existed before, even if only by a try whose answer was lost.
        """
        command = Command(request_type, tenant=tenant, input=input, output=output, **options)
        envelope = await _envelope(command, self.http.trace())
        return self.http.read(await self.http.post("/v1/commands", envelope, repeatable=True), Accepted)

    async def submit_many(self, commands: Iterable[Command]) -> list[batch.Outcome]:
        """Submit commands; return their outcomes in order: Accepted, or the RequestRefused that `submit` would raise.

        Raises an error if a whole batch fails; repeating the call is safe.
        """
        trace = self.http.trace()
        encoded = [encode_body(await _envelope(command, trace)) for command in commands]
        return await batch.submit_all(self.http, encoded)

    async def run(
        self,
        request_type: str,
        *,
        tenant: str,
        input: Ref,
        output: Ref,
        timeout: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> JobView:
        """Submit a command and wait for success.

        Raises JobFailed, or TimedOut after `timeout` seconds of waiting; the job then continues.
        """
        accepted = await self.submit(request_type, tenant=tenant, input=input, output=output, **options)
        return await self.wait(accepted.jobId, timeout=timeout, check=True)

    # Looking

    async def get(self, job_id: str) -> JobView:
        return self.http.read(await self.http.get(job_path(job_id)), JobView)

    async def wait(
        self, job_id: str, *, timeout: float | None = None, check: bool = False, retry_for: float | None = None
    ) -> JobView:
        """Wait until a job has ended and return it; the server may be down for `retry_for` seconds at a time.

        Raises TimedOut after `timeout` seconds, and with `check` JobFailed if it did not succeed.
        """
        polled = await waiting.until_ended(self.http, job_id, timeout, retry_for)
        assert polled.job is not None, "it has ended"
        if check and polled.job.status != "SUCCEEDED":
            raise JobFailed(polled.job)
        return polled.job

    def events(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventView, None]:
        """Yield the job's events so far, in order, after that sequence number."""
        return following.pages(self.http, job_id, after)

    def stream(self, job_id: str, *, after: int = 0, retry_for: float | None = None) -> AsyncGenerator[EventView, None]:
        """Yield the job's events as they occur, each once, until it has ended. Close the generator if you stop early.

        The server may be down for `retry_for` seconds at a time.
        """
        return following.follow(self.http, job_id, after, retry_for)

    def jobs(
        self,
        *,
        tenant: str | None = None,
        status: str | None = None,
        request_type: str | None = None,
        blocked_on: str | None = None,
        created_after: datetime | str | None = None,
        doc_id: str | None = None,
        correlation_id: str | None = None,
        target: str | None = None,
        error_code: str | None = None,
        completed_after: datetime | str | None = None,
        completed_before: datetime | str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[JobSummary, None]:
        """Yield jobs that match the filters, newest first; without filters, all that the key may see.

        `target` is `type/id`. With `completed_after` or `completed_before` alone, the job that ended last comes first.
        """
        filters = {
            "tenant_id": tenant,
            "status": status,
            "request_type": request_type,
            "blocked_on": blocked_on,
            "created_after": _timestamp(created_after),
            "doc_id": doc_id,
            "correlation_id": correlation_id,
            "target": target,
            "error_code": error_code,
            "completed_after": _timestamp(completed_after),
            "completed_before": _timestamp(completed_before),
        }
        return items(self.http, "/v1/jobs", filters, limit, JobList, lambda page: page.jobs)

    async def steps(self, job_id: str) -> list[StepWithAttempts]:
        """Return every step with its attempts; for a long map, every item."""
        return self.http.read(await self.http.get(f"{job_path(job_id)}/steps"), StepList).steps

    async def attempts(self, job_id: str) -> list[AttemptView]:
        return self.http.read(await self.http.get(f"{job_path(job_id)}/attempts"), AttemptList).attempts

    async def audit(self, job_id: str) -> AuditView:
        """Check that the job's events are complete and unchanged, and return the findings."""
        return self.http.read(await self.http.get(f"{job_path(job_id)}/audit", within=AUDIT_SECONDS), AuditView)

    # Acting. Requests that stop a job are retried after any temporary failure, as stopping twice does no harm. Requests
    # that start something are not retried once they may have arrived: twice could be two runs, two signals, or a vote
    # on another question.

    async def cancel(self, job_id: str, *, reason: str | None = None) -> JobView:
        """Cancel a job: no further step starts. Retried after any temporary failure."""
        return await self._act(job_id, ":cancel", {"reason": reason}, repeatable=True)

    async def pause(self, job_id: str, *, reason: str | None = None) -> JobView:
        """Pause a job: nothing new starts until it is resumed. Retried after any temporary failure."""
        return await self._act(job_id, ":pause", {"reason": reason}, repeatable=True)

    async def resume(self, job_id: str, *, reason: str | None = None) -> JobView:
        """Resume a paused job. Not sent twice: it may have been paused again meanwhile."""
        return await self._act(job_id, ":resume", {"reason": reason})

    async def retry(self, job_id: str, *, reason: str | None = None, from_step: str | None = None) -> JobView:
        """Start a new run of a job that failed or was cancelled. Not sent twice: that could be two runs."""
        return await self._act(job_id, ":retry", {"reason": reason, "from_step": from_step})

    async def signal(self, job_id: str, name: str, *, payload: Any = None, reason: str | None = None) -> JobView:
        """Send a signal to the step that waits for it, now or later. Not sent twice: each signal counts."""
        return await self._act(job_id, ":signal", {"name": name, "payload": payload, "reason": reason})

    async def approve(self, job_id: str, step_id: str, *, comment: str | None = None) -> JobView:
        """Approve a step. Not sent twice: the job may have returned to the step with another question."""
        return await self._act(job_id, f"/steps/{quote(step_id, safe='')}:approve", {"comment": comment})

    async def reject(self, job_id: str, step_id: str, *, comment: str | None = None) -> JobView:
        """Reject a step. Not sent twice, as with `approve`."""
        return await self._act(job_id, f"/steps/{quote(step_id, safe='')}:reject", {"comment": comment})

    async def _act(self, job_id: str, act: str, members: dict[str, Any], *, repeatable: bool = False) -> JobView:
        body = {name: value for name, value in members.items() if value is not None}
        return self.http.read(await self.http.post(job_path(job_id) + act, body, repeatable=repeatable), JobView)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        repeatable: bool = False,
    ) -> bytes:
        """Send any other API request; return the JSON answer as received.

        `repeatable`: sending it twice does no harm.
        """
        encoded = None if body is None else encode_body(body)
        safe = repeatable or method.upper() == "GET"
        asked = Request(method=method.upper(), path=path, params=params, body=encoded, repeatable=safe)
        return await self.http.call(asked)


async def _envelope(command: Command, trace: str | None) -> dict[str, Any]:
    """Build the command's envelope, in a thread if that reads a file."""
    return await asyncio.to_thread(command.envelope, trace) if command.reads_file else command.envelope(trace)


def _timestamp(given: datetime | str | None) -> str | None:
    return given.astimezone().isoformat() if isinstance(given, datetime) else given
