"""The routes that FastAPI serves: what people and dashboards look at, and what operators do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from lucius import contract
from lucius.api.bodies import decode, read_body, read_headers, require_json
from lucius.api.openapi import answers, streams, takes
from lucius.core.model import BlockedReason, JobStatus
from lucius.core.routing import normalise_tenant
from lucius.ports.ledger import JobFilter
from lucius.service.auth import Principal
from lucius.service.backlog import backlog_of, every_backlog
from lucius.service.errors import RejectCode, Rejected
from lucius.service.timestamps import parse_timestamp
from lucius.wiring import Runtime

router = APIRouter()

JobStatusName = Literal[
    "QUEUED",
    "DISPATCHING",
    "IN_PROGRESS",
    "WAITING_APPROVAL",
    "PAUSED",
    "CANCELLING",
    "SUCCEEDED",
    "FAILED_FINAL",
    "CANCELLED",
]
ReasonName = Literal[
    "HANDOVER",
    "DISPATCH_WINDOW",
    "ACK",
    "RESULT",
    "RETRY",
    "TIMER",
    "SIGNAL",
    "APPROVAL",
    "PAUSED",
    "REVIEW",
    "ENGINE",
]

T = TypeVar("T")
MAX_STREAMS = 500
QUIET_SECONDS = 15.0
_encode = msgspec.json.Encoder().encode


def ok(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


async def runtime_of(request: Request) -> Runtime:  # async, or FastAPI would run it in a thread
    runtime: Runtime | None = request.app.state.runtime
    if runtime is None:
        raise Rejected(RejectCode.NOT_READY, "the server is starting or stopping", retry_after_seconds=1)
    return runtime


async def principal_of(request: Request) -> Principal:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return (await runtime_of(request)).auth.authenticate(key.strip() if scheme.lower() == "bearer" else None)


async def reader(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require("read")
    return principal


async def operator(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require("operate")
    return principal


ServiceName = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
Caller = Annotated[Principal, Depends(principal_of)]
Reader = Annotated[Principal, Depends(reader)]
Operator = Annotated[Principal, Depends(operator)]
Wired = Annotated[Runtime, Depends(runtime_of)]


async def body_of(request: Request, kind: type[T]) -> T:
    """A small JSON body, or nothing for its defaults."""
    limit = (await runtime_of(request)).settings.max_body_bytes
    _, declared, media_type = read_headers(request.scope["headers"])
    require_json(media_type)
    raw = await read_body(request.receive, limit, declared)
    value: T = decode(raw or b"{}", msgspec.json.Decoder(kind).decode)
    return value


@router.get("/v1/jobs", tags=["jobs"], **answers(contract.JobList, 401, 403, 422))
async def list_jobs(
    who: Reader,
    runtime: Wired,
    tenant_id: Annotated[str | None, Query(max_length=256)] = None,
    status: JobStatusName | None = None,
    request_type: Annotated[str | None, Query(max_length=128)] = None,
    blocked_on: ReasonName | None = None,
    created_after: Annotated[str | None, Query(description="RFC 3339, with an offset", max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """Newest first. Without `tenant_id`, every tenant the key is good for."""
    where = JobFilter(
        tenants=tenants_asked(who, tenant_id),
        status=JobStatus(status) if status else None,
        request_type=_request_type(runtime, request_type),
        blocked_on=BlockedReason(blocked_on) if blocked_on else None,
        created_after=_instant(created_after),
    )
    jobs, next_cursor = await runtime.queries.jobs(who, where, limit, cursor)
    return ok(contract.JobList(jobs=jobs, next_cursor=next_cursor))


def tenants_asked(who: Principal, tenant_id: str | None) -> frozenset[str] | None:
    if tenant_id is None:
        return None
    tenant = normalise_tenant(tenant_id)
    if tenant is None:
        raise Rejected(RejectCode.INVALID_TENANT, "tenant_id is not a tenant id")
    who.require_tenant(tenant)
    return frozenset({tenant})


def _request_type(runtime: Runtime, name: str | None) -> str | None:
    return (runtime.protocols.request_type(name) or name) if name else None


def _instant(text: str | None) -> int | None:
    try:
        return parse_timestamp(text.replace(" ", "+")) if text else None  # a bare + in a query means a space
    except (ValueError, OverflowError) as error:
        raise Rejected(RejectCode.INVALID_QUERY, f"created_after: {error}") from None


@router.get("/v1/jobs/{job_id}/steps", tags=["jobs"], **answers(contract.StepList, 401, 403, 404))
async def get_steps(job_id: str, who: Reader, runtime: Wired) -> Response:
    return ok(contract.StepList(steps=await runtime.queries.steps(job_id, who)))


@router.get("/v1/jobs/{job_id}/attempts", tags=["jobs"], **answers(contract.AttemptList, 401, 403, 404))
async def get_attempts(job_id: str, who: Reader, runtime: Wired) -> Response:
    return ok(contract.AttemptList(attempts=await runtime.queries.attempts(job_id, who)))


@router.get("/v1/jobs/{job_id}/events", tags=["jobs"], **streams(contract.EventList, 401, 403, 404, 422))
async def get_events(
    request: Request,
    job_id: str,
    who: Reader,
    runtime: Wired,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[int, Query(ge=0, le=2**53, description="Answer what comes after this sequence number")] = 0,
    last_event_id: Annotated[str | None, Header(description="Goes before `cursor` in a stream")] = None,
) -> Response:
    """With `Accept: text/event-stream`, live until the job ends; resumes after `Last-Event-ID`."""
    if "text/event-stream" in request.headers.get("accept", ""):
        last = last_event_id or ""
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else cursor
        await runtime.queries.require(job_id, who)
        if request.app.state.streams.locked():
            raise Rejected(RejectCode.NOT_READY, "too many live streams; poll instead", retry_after_seconds=5)
        return StreamingResponse(_stream(request, runtime, job_id, who, after), media_type="text/event-stream")
    events, next_cursor = await runtime.queries.events(job_id, who, cursor, limit)
    return ok(contract.EventList(events=events, next_cursor=next_cursor))


async def _stream(request: Request, runtime: Runtime, job_id: str, who: Principal, after: int) -> AsyncIterator[bytes]:
    slots: asyncio.Semaphore = request.app.state.streams
    async with slots:
        async for event in runtime.queries.follow(job_id, who, after, QUIET_SECONDS):
            if event is None:
                yield b": still here\n\n"
            else:
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), _encode(event))
        yield b"event: end\ndata: {}\n\n"


@router.post(
    "/v1/jobs/{job_id}:cancel",
    tags=["jobs"],
    **takes(contract.CancelRequest, contract.JobView, 202, 401, 403, 404, 409, 422),
)
async def cancel_job(request: Request, job_id: str, who: Operator, runtime: Wired) -> Response:
    """No further step starts. What is with a service may end; then the job is CANCELLED."""
    asked = await body_of(request, contract.CancelRequest)
    return ok(await runtime.operations.cancel(job_id, who, asked.reason or ""), 202)


@router.post(
    "/v1/admin/outbox/retry",
    tags=["operations"],
    **takes(contract.OutboxRetryRequest, contract.OutboxRetried, 200, 401, 403, 422),
)
async def retry_outbox(request: Request, who: Operator, runtime: Wired) -> Response:
    """Try every step again now that waits after a failed hand-over, and wake the relay for the rest.

    Of the tenants that the key is good for.
    """
    asked = await body_of(request, contract.OutboxRetryRequest)
    return ok(await runtime.operations.retry_outbox(who, asked.reason or ""))


BACKLOG_IS_SHARED = "a backlog is that of all tenants"


async def backlog_reader(principal: Annotated[Principal, Depends(principal_of)], service: ServiceName) -> Principal:
    """Whoever may read what is every tenant's, and the service itself."""
    if "read" in principal.scopes and "serve" not in principal.scopes:
        principal.require_every_tenant(BACKLOG_IS_SHARED)
    if "read" not in principal.scopes or not principal.every_tenant:
        principal.require_service(service)
    return principal


@router.get("/v1/backlog", tags=["operations"], **answers(contract.BacklogList, 401, 403))
async def list_backlogs(who: Reader, runtime: Wired) -> Response:
    """What every service has before it, of all tenants. As cheap as it looks, so it can be asked often.

    Needs a key that is good for every tenant.
    """
    who.require_every_tenant(BACKLOG_IS_SHARED)
    return ok(contract.BacklogList(services=await every_backlog(runtime.store, runtime.clock.now())))


@router.get("/v1/services/{service}/backlog", tags=["operations"], **answers(contract.ServiceBacklog, 401, 403, 422))
async def get_backlog(
    service: ServiceName, who: Annotated[Principal, Depends(backlog_reader)], runtime: Wired
) -> Response:
    """What a service has before it, of all tenants: made for autoscalers. 0 for one that has nothing to do.

    Needs a key of the service, or one that may read and is good for every tenant.
    """
    return ok(await backlog_of(runtime.store, service, runtime.clock.now()))
