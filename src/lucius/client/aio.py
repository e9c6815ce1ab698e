"""The client, for asyncio."""

import os
import ssl
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

import msgspec

from lucius.client import batch, following, waiting
from lucius.client.command import Command, CommandOptions, Ref
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
from lucius.contract_control import AuditView

RETRY_FOR = 30.0
TIMEOUT = 10.0
AUDIT_SECONDS = 300.0


def from_environment() -> tuple[str, str]:
    """LUCIUS_URL and LUCIUS_API_KEY. Raises Misconfigured."""
    for name in ("LUCIUS_URL", "LUCIUS_API_KEY"):
        if not os.environ.get(name, "").strip():
            raise Misconfigured(f"{name} is not set")
    return os.environ["LUCIUS_URL"], os.environ["LUCIUS_API_KEY"]


class AsyncClient:
    """One session with one control plane. Any number of tasks may share it.

    A request that fails is tried again for `retry_for` seconds where that is safe: see each method. `timeout` is for
    one answer. `trace` is a W3C traceparent, or what gives the current one, and goes along with every request.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        retry_for: float = RETRY_FOR,
        timeout: float = TIMEOUT,
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
        retry_for: float = RETRY_FOR,
        timeout: float = TIMEOUT,
        trace: Trace = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """By LUCIUS_URL and LUCIUS_API_KEY."""
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
        """A job for this command. Tried again after whatever failure: the key, or without one the content, makes a
        repeat the same job. `duplicate` then says that it was there before, if only by a try whose answer was lost."""
        command = Command(request_type, tenant=tenant, input=input, output=output, **options)
        envelope = command.envelope(self.http.trace())
        return self.http.read(await self.http.post("/v1/commands", envelope, repeatable=True), Accepted)

    async def submit_many(self, commands: Iterable[Command]) -> list[batch.Outcome]:
        """Each command's own outcome, in their order: Accepted, or the RequestRefused that `submit` would have raised.

        What fails as a whole is raised; the same call again is safe.
        """
        trace = self.http.trace()
        encoded = [msgspec.json.encode(command.envelope(trace)) for command in commands]
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
        """Submit and wait for success. Raises JobFailed, or TimedOut after `timeout` seconds; the job goes on then."""
        accepted = await self.submit(request_type, tenant=tenant, input=input, output=output, **options)
        return await self.wait(accepted.jobId, timeout=timeout, check=True)

    # Looking

    async def get(self, job_id: str) -> JobView:
        return self.http.read(await self.http.get(job_path(job_id)), JobView)

    async def wait(
        self, job_id: str, *, timeout: float | None = None, check: bool = False, retry_for: float | None = None
    ) -> JobView:
        """The job, once it has ended; the server may be away for `retry_for` seconds at a time. Raises TimedOut, and
        with `check` JobFailed if it did not succeed."""
        looked = await waiting.until_ended(self.http, job_id, timeout, retry_for)
        assert looked.job is not None, "it has ended"
        if check and looked.job.status != "SUCCEEDED":
            raise JobFailed(looked.job)
        return looked.job

    def events(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventView, None]:
        """What happened to the job so far, in order, after that sequence number."""
        return following.pages(self.http, job_id, after)

    def stream(self, job_id: str, *, after: int = 0, retry_for: float | None = None) -> AsyncGenerator[EventView, None]:
        """What happens to the job, each event once, until it has ended; the server may be away for `retry_for` seconds
        at a time. Close it if you stop early."""
        return following.follow(self.http, job_id, after, retry_for)

    def jobs(
        self,
        *,
        tenant: str | None = None,
        status: str | None = None,
        request_type: str | None = None,
        blocked_on: str | None = None,
        created_after: datetime | str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[JobSummary, None]:
        """Newest first; all that the key may see, unless told otherwise."""
        since = created_after.astimezone().isoformat() if isinstance(created_after, datetime) else created_after
        wanted = {
            "tenant_id": tenant,
            "status": status,
            "request_type": request_type,
            "blocked_on": blocked_on,
            "created_after": since,
        }
        return items(self.http, "/v1/jobs", wanted, limit, JobList, lambda page: page.jobs)

    async def steps(self, job_id: str) -> list[StepWithAttempts]:
        """Every step with its attempts; of a long map, every item."""
        return self.http.read(await self.http.get(f"{job_path(job_id)}/steps"), StepList).steps

    async def attempts(self, job_id: str) -> list[AttemptView]:
        return self.http.read(await self.http.get(f"{job_path(job_id)}/attempts"), AttemptList).attempts

    async def audit(self, job_id: str) -> AuditView:
        """Whether the job's events are all there as they were written."""
        return self.http.read(await self.http.get(f"{job_path(job_id)}/audit", within=AUDIT_SECONDS), AuditView)

    # Acting. What stops a job is sent again after whatever failure: stopping twice is stopping. What sets something
    # going is not, once it may have arrived: twice would be two runs, two signals, or a vote on another question.

    async def cancel(self, job_id: str, *, reason: str | None = None) -> JobView:
        """No further step starts. Tried again after whatever failure."""
        return await self._act(job_id, ":cancel", {"reason": reason}, repeatable=True)

    async def pause(self, job_id: str, *, reason: str | None = None) -> JobView:
        """Nothing new starts until it is resumed. Tried again after whatever failure."""
        return await self._act(job_id, ":pause", {"reason": reason}, repeatable=True)

    async def resume(self, job_id: str, *, reason: str | None = None) -> JobView:
        """Not sent twice: somebody may have paused it again."""
        return await self._act(job_id, ":resume", {"reason": reason})

    async def retry(self, job_id: str, *, reason: str | None = None, from_step: str | None = None) -> JobView:
        """A new run of a job that failed or was cancelled. Not sent twice: that could be two runs."""
        return await self._act(job_id, ":retry", {"reason": reason, "from_step": from_step})

    async def signal(self, job_id: str, name: str, *, payload: Any = None, reason: str | None = None) -> JobView:
        """For the step that waits for it, now or later. Not sent twice: each counts."""
        return await self._act(job_id, ":signal", {"name": name, "payload": payload, "reason": reason})

    async def approve(self, job_id: str, step_id: str, *, comment: str | None = None) -> JobView:
        """Not sent twice: the job may have come back to the step with another question."""
        return await self._act(job_id, f"/steps/{quote(step_id, safe='')}:approve", {"comment": comment})

    async def reject(self, job_id: str, step_id: str, *, comment: str | None = None) -> JobView:
        """Not sent twice, as with `approve`."""
        return await self._act(job_id, f"/steps/{quote(step_id, safe='')}:reject", {"comment": comment})

    async def _act(self, job_id: str, act: str, said: dict[str, Any], *, repeatable: bool = False) -> JobView:
        body = {name: value for name, value in said.items() if value is not None}
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
        """Whatever else the API has, answered with JSON as it came. `repeatable` if sending it twice does no harm."""
        encoded = None if body is None else msgspec.json.encode(body)
        safe = repeatable or method.upper() == "GET"
        asked = Request(method=method.upper(), path=path, params=params, body=encoded, repeatable=safe)
        return await self.http.call(asked)
