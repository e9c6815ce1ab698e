"""Routes that FastAPI serves: lists and details for people and dashboards, and acts of operators."""

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response

from lucius import contract
from lucius.api.dependencies import (
    Canceller,
    EventStreams,
    JobControl,
    Jobs,
    ListAdmission,
    Operator,
    Protocols,
    Reader,
    ServiceBacklogs,
    ServiceName,
    Services,
    body_of,
    ok,
    principal_of,
    tenants_asked,
)
from lucius.api.openapi_parts import answers, streams, takes
from lucius.api.requests import is_head
from lucius.api.streams import EventStream, stream_headers
from lucius.core.model.statuses import BlockedReason, JobStatus
from lucius.ports.readers import JobFilter
from lucius.usecases.access.auth import Principal
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.timestamps import parse_timestamp

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

MIN_ID_PREFIX_CHARS = 8  # ids of the same minute begin alike; fewer characters name too many jobs to look through


@router.get("/v1/jobs", tags=["jobs"], **answers(contract.JobList, 401, 403, 422, 429))
async def list_jobs(
    who: Reader,
    jobs: Jobs,
    admission: ListAdmission,
    protocols: Protocols,
    tenant_id: Annotated[str | None, Query(max_length=256)] = None,
    status: JobStatusName | None = None,
    request_type: Annotated[str | None, Query(max_length=128)] = None,
    blocked_on: ReasonName | None = None,
    created_after: Annotated[str | None, Query(description="RFC 3339, with an offset", max_length=64)] = None,
    doc_id: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
    correlation_id: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
    target: Annotated[str | None, Query(description="`type/id`", max_length=513)] = None,
    error_code: Annotated[
        str | None, Query(description="Error code of an ended job", min_length=1, max_length=128)
    ] = None,
    completed_after: Annotated[str | None, Query(description="RFC 3339, with an offset", max_length=64)] = None,
    completed_before: Annotated[str | None, Query(description="RFC 3339, with an offset", max_length=64)] = None,
    id_prefix: Annotated[
        str | None,
        Query(
            description="How the jobs' ids begin; goes with `tenant_id` only",
            min_length=MIN_ID_PREFIX_CHARS,
            max_length=128,
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List jobs, newest first; without `tenant_id`, of every tenant the key is good for.

    With `completed_after` or `completed_before`, and no `doc_id`, `correlation_id`, `target` or `error_code`, the job
    that ended last comes first. Where few jobs match, a page may be short, even empty, and still have a `next_cursor`:
    continue until it is null.
    """
    others = (status, request_type, blocked_on, created_after, doc_id, correlation_id, target, error_code)
    if id_prefix is not None and any((*others, completed_after, completed_before)):
        raise Rejected(RejectCode.INVALID_QUERY, "id_prefix goes with tenant_id, limit and cursor only")
    where = JobFilter(
        tenants=tenants_asked(who, tenant_id),
        status=JobStatus(status) if status else None,
        request_type=_request_type(protocols, request_type),
        blocked_on=BlockedReason(blocked_on) if blocked_on else None,
        created_after=_instant("created_after", created_after),
        id_prefix=id_prefix,
        doc_id=doc_id,
        correlation_id=correlation_id,
        target=_target(target),
        error_code=error_code,
        completed_after=_instant("completed_after", completed_after),
        completed_before=_instant("completed_before", completed_before),
    )
    (asked,) = where.tenants if where.tenants is not None else (None,)
    await admission.admit_list(who, asked, limit)
    found, next_cursor = await jobs.jobs(who, where, limit, cursor)
    admission.count_list(who, asked, len(found))
    return ok(contract.JobList(jobs=found, next_cursor=next_cursor))


def _request_type(protocols: Catalog, name: str | None) -> str | None:
    return (protocols.request_type(name) or name) if name else None


def _target(text: str | None) -> str | None:
    if text is not None and not all(text.partition("/")):
        raise Rejected(RejectCode.INVALID_QUERY, "target: must be the type and the id with a slash between them")
    return text


def _instant(name: str, text: str | None) -> int | None:
    try:
        return parse_timestamp(text.replace(" ", "+")) if text else None  # a bare + in a query means a space
    except (ValueError, OverflowError) as error:
        raise Rejected(RejectCode.INVALID_QUERY, f"{name}: {error}") from None


@router.get("/v1/jobs/{job_id}/steps", tags=["jobs"], **answers(contract.StepList, 401, 403, 404))
async def get_steps(job_id: str, who: Reader, jobs: Jobs) -> Response:
    return ok(contract.StepList(steps=await jobs.steps(job_id, who)))


@router.get("/v1/jobs/{job_id}/attempts", tags=["jobs"], **answers(contract.AttemptList, 401, 403, 404))
async def get_attempts(job_id: str, who: Reader, jobs: Jobs) -> Response:
    return ok(contract.AttemptList(attempts=await jobs.attempts(job_id, who)))


@router.get("/v1/jobs/{job_id}/events", tags=["jobs"], **streams(contract.EventList, 401, 403, 404, 422, 429))
async def get_events(
    request: Request,
    job_id: str,
    who: Reader,
    jobs: Jobs,
    streams: EventStreams,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: Annotated[int, Query(ge=0, le=2**53, description="Answer what comes after this sequence number")] = 0,
    last_event_id: Annotated[str | None, Header(description="Goes before `cursor` in a stream")] = None,
) -> Response:
    """List a job's events; with `Accept: text/event-stream`, stream them live, after `Last-Event-ID` if it is given.

    `event: end` means that the job has ended; its `id` is that of the last event. A stream without it was cut off. 204
    means that no event follows.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        seen = _event_number(last_event_id)
        job = await jobs.require(job_id, who)
        if seen is not None and seen >= job.event_seq and not job.live:
            return Response(status_code=204)
        if is_head(request.scope):  # a stream has no end to wait for
            return stream_headers()
        after = cursor if seen is None else seen
        return EventStream(jobs, streams, who, job_id, job.tenant_id, after)
    events, next_cursor = await jobs.events(job_id, who, cursor, limit)
    return ok(contract.EventList(events=events, next_cursor=next_cursor))


def _event_number(last_event_id: str | None) -> int | None:
    """Read `Last-Event-ID`; None if it is not one of ours."""
    text = last_event_id or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


@router.post(
    "/v1/jobs/{job_id}:cancel",
    tags=["jobs"],
    **takes(contract.CancelRequest, contract.JobView, 202, 401, 403, 404, 409, 422),
)
async def cancel_job(request: Request, job_id: str, who: Canceller, control: JobControl) -> Response:
    """Cancel a job: no further step starts. Steps at services may end; then the job is CANCELLED.

    Needs `operate`, or `submit`. A key that may neither read nor operate gets the job's state without its contents.
    """
    asked = await body_of(request, contract.CancelRequest)
    job = await control.cancel(job_id, who, asked.reason or "")
    return ok(job if who.scopes & {"read", "operate"} else _without_contents(job), 202)


def _without_contents(job: contract.JobView) -> contract.JobView:
    """Return a job as a key without `read` may see it: which job, its state and times."""
    error = None if job.error is None else contract.Error(job.error.code)
    paused = None if job.paused is None else msgspec.structs.replace(job.paused, by="", reason="")
    return msgspec.structs.replace(
        job,
        steps=[],
        runs=[],
        payload={},
        output=None,
        reported_output_ref=None,
        input_ref="",
        output_ref="",
        workspace_ref="",
        doc_id=None,
        idempotency_key=None,
        idempotency_hash="",
        target=None,
        traceparent=None,
        error=error,
        paused=paused,
        compensation=None,
        review_id=None,
        engine_url=None,
    )


@router.post(
    "/v1/admin/outbox/retry",
    tags=["operations"],
    **takes(contract.OutboxRetryRequest, contract.OutboxRetried, 200, 401, 403, 422),
)
async def retry_outbox(request: Request, who: Operator, control: JobControl) -> Response:
    """Retry now every step that waits after a failed hand-over, and wake the relay for the rest.

    Only for the tenants that the key is good for.
    """
    asked = await body_of(request, contract.OutboxRetryRequest)
    return ok(await control.retry_outbox(who, asked.reason or ""))


BACKLOG_IS_SHARED = "a backlog is that of all tenants"


async def backlog_reader(principal: Annotated[Principal, Depends(principal_of)], service: ServiceName) -> Principal:
    """Admit a key that may read data of every tenant, and the service itself if it serves every tenant."""
    if "read" in principal.scopes and "serve" not in principal.scopes:
        principal.require_every_tenant(BACKLOG_IS_SHARED)
    if "read" not in principal.scopes or not principal.every_tenant:
        principal.require_service(service)
        if principal.serves_tenants is not None:
            principal.require_every_tenant(BACKLOG_IS_SHARED)
    return principal


@router.get("/v1/backlog", tags=["operations"], **answers(contract.BacklogList, 401, 403))
async def list_backlogs(who: Reader, backlogs: ServiceBacklogs) -> Response:
    """List the backlog of every service, over all tenants. Cheap, so it can be polled often.

    Needs a key that is good for every tenant.
    """
    who.require_every_tenant(BACKLOG_IS_SHARED)
    return ok(contract.BacklogList(services=await backlogs.of_every_service()))


@router.get("/v1/services", tags=["operations"], **answers(contract.ServiceList, 401, 403))
async def list_services(who: Reader, services: Services) -> Response:
    """List services that pull and call back: when each was seen last, what it works on and what waits for it.

    Needs a key that is good for every tenant.
    """
    who.require_every_tenant("services work for all tenants")
    return ok(await services.services())


@router.get(
    "/v1/services/{service}/backlog", tags=["operations"], **answers(contract.ServiceBacklog, 401, 403, 404, 422)
)
async def get_backlog(
    service: ServiceName, who: Annotated[Principal, Depends(backlog_reader)], backlogs: ServiceBacklogs
) -> Response:
    """Get the backlog of a service, over all tenants, as autoscalers need it; 0 for a service without work.

    Needs a key of the service that is not bound to tenants, or one that may read and is good for every tenant.
    """
    return ok(await backlogs.of_service(service))
