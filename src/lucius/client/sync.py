"""Client for blocking code: every method runs the AsyncClient's on the bridge."""

import ssl
from collections.abc import Generator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from lucius.client.aio import DEFAULT_RETRY_SECONDS, DEFAULT_TIMEOUT_SECONDS, AsyncClient, from_environment
from lucius.client.batch import Outcome
from lucius.client.bridge import Bridge, documented_as
from lucius.client.command import Command, CommandOptions, Ref
from lucius.client.http import Trace
from lucius.client.sync_parts import Protocols, Reviews
from lucius.contract import Accepted, AttemptView, EventView, JobSummary, JobView, StepWithAttempts
from lucius.contract.control import AuditView


@documented_as(AsyncClient)
class Client:
    """Blocking variant of AsyncClient. Any number of threads may share it; Ctrl-C cancels the running call."""

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
        self._client = AsyncClient(url, api_key=api_key, retry_for=retry_for, timeout=timeout, trace=trace, tls=tls)
        self._bridge = Bridge(self._client.close)
        self.protocols = Protocols(self._client.protocols, self._bridge)
        self.reviews = Reviews(self._client.reviews, self._bridge)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; running calls of other threads raise RuntimeError. Garbage collection closes it too."""
        self._bridge.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.http.url!r})"

    def submit(
        self, request_type: str, *, tenant: str, input: Ref, output: Ref, **options: Unpack[CommandOptions]
    ) -> Accepted:
        return self._bridge.run(self._client.submit(request_type, tenant=tenant, input=input, output=output, **options))

    def submit_many(self, commands: Iterable[Command]) -> list[Outcome]:
        return self._bridge.run(self._client.submit_many(list(commands)))

    def run(
        self,
        request_type: str,
        *,
        tenant: str,
        input: Ref,
        output: Ref,
        timeout: float | None = None,
        **options: Unpack[CommandOptions],
    ) -> JobView:
        return self._bridge.run(
            self._client.run(request_type, tenant=tenant, input=input, output=output, timeout=timeout, **options)
        )

    def get(self, job_id: str) -> JobView:
        return self._bridge.run(self._client.get(job_id))

    def wait(
        self, job_id: str, *, timeout: float | None = None, check: bool = False, retry_for: float | None = None
    ) -> JobView:
        return self._bridge.run(self._client.wait(job_id, timeout=timeout, check=check, retry_for=retry_for))

    def events(self, job_id: str, *, after: int = 0) -> Generator[EventView, None, None]:
        return self._bridge.iterate(self._client.events(job_id, after=after))

    def stream(
        self, job_id: str, *, after: int = 0, retry_for: float | None = None
    ) -> Generator[EventView, None, None]:
        return self._bridge.iterate(self._client.stream(job_id, after=after, retry_for=retry_for))

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
    ) -> Generator[JobSummary, None, None]:
        found = self._client.jobs(
            tenant=tenant,
            status=status,
            request_type=request_type,
            blocked_on=blocked_on,
            created_after=created_after,
            doc_id=doc_id,
            correlation_id=correlation_id,
            target=target,
            error_code=error_code,
            completed_after=completed_after,
            completed_before=completed_before,
            limit=limit,
        )
        return self._bridge.iterate(found)

    def steps(self, job_id: str) -> list[StepWithAttempts]:
        return self._bridge.run(self._client.steps(job_id))

    def attempts(self, job_id: str) -> list[AttemptView]:
        return self._bridge.run(self._client.attempts(job_id))

    def audit(self, job_id: str) -> AuditView:
        return self._bridge.run(self._client.audit(job_id))

    def cancel(self, job_id: str, *, reason: str | None = None) -> JobView:
        return self._bridge.run(self._client.cancel(job_id, reason=reason))

    def pause(self, job_id: str, *, reason: str | None = None) -> JobView:
        return self._bridge.run(self._client.pause(job_id, reason=reason))

    def resume(self, job_id: str, *, reason: str | None = None) -> JobView:
        return self._bridge.run(self._client.resume(job_id, reason=reason))

    def retry(self, job_id: str, *, reason: str | None = None, from_step: str | None = None) -> JobView:
        return self._bridge.run(self._client.retry(job_id, reason=reason, from_step=from_step))

    def signal(self, job_id: str, name: str, *, payload: Any = None, reason: str | None = None) -> JobView:
        return self._bridge.run(self._client.signal(job_id, name, payload=payload, reason=reason))

    def approve(self, job_id: str, step_id: str, *, comment: str | None = None) -> JobView:
        return self._bridge.run(self._client.approve(job_id, step_id, comment=comment))

    def reject(self, job_id: str, step_id: str, *, comment: str | None = None) -> JobView:
        return self._bridge.run(self._client.reject(job_id, step_id, comment=comment))

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        repeatable: bool = False,
    ) -> bytes:
        asked = self._client.request(method, path, params=params, body=body, repeatable=repeatable)
        return self._bridge.run(asked)
