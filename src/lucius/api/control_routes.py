"""What people do to a job: pause, resume, signal, retry, approve, reject; and whether its history is as it was."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from lucius import contract_control as contract
from lucius.api.openapi import answers, takes
from lucius.api.routes import Operator, Reader, Wired, body_of, ok, principal_of
from lucius.contract import JobView
from lucius.service.auth import Principal

router = APIRouter(tags=["jobs"])

StepId = Annotated[str, Path(max_length=256)]
VOTE = "/v1/jobs/{job_id}/steps/{step_id}"


async def approver(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require("approve")
    return principal


Approver = Annotated[Principal, Depends(approver)]


@router.post("/v1/jobs/{job_id}:pause", **takes(contract.PauseRequest, JobView, 202, 401, 403, 404, 409, 422))
async def pause_job(request: Request, job_id: str, who: Operator, runtime: Wired) -> Response:
    """Nothing new starts until resume. What services have goes on, and what they report is recorded."""
    asked = await body_of(request, contract.PauseRequest)
    return ok(await runtime.operations.pause(job_id, who, asked.reason or ""), 202)


@router.post("/v1/jobs/{job_id}:resume", **takes(contract.ResumeRequest, JobView, 202, 401, 403, 404, 409, 422))
async def resume_job(request: Request, job_id: str, who: Operator, runtime: Wired) -> Response:
    """Goes on with what was paused. A job that waits for a review goes on by an act on its review item."""
    asked = await body_of(request, contract.ResumeRequest)
    return ok(await runtime.operations.resume(job_id, who, asked.reason or ""), 202)


@router.post("/v1/jobs/{job_id}:signal", **takes(contract.SignalRequest, JobView, 202, 401, 403, 404, 409, 422))
async def signal_job(request: Request, job_id: str, who: Operator, runtime: Wired) -> Response:
    """For the step that waits for it, now or later in this run."""
    asked = await body_of(request, contract.SignalRequest)
    job = await runtime.operations.signal(job_id, who, asked.name, asked.payload, asked.reason or "")
    return ok(job, 202)


@router.post("/v1/jobs/{job_id}:retry", **takes(contract.RetryRequest, JobView, 202, 401, 403, 404, 409, 422, 429))
async def retry_job(request: Request, job_id: str, who: Operator, runtime: Wired) -> Response:
    """A new run of a job that failed or was cancelled. It passes the limits again, and what it keeps is not redone."""
    asked = await body_of(request, contract.RetryRequest)
    return ok(await runtime.operations.retry(job_id, who, asked.reason or "", asked.from_step), 202)


@router.post(VOTE + ":approve", **takes(contract.VoteRequest, JobView, 200, 401, 403, 404, 409, 422))
async def approve_step(request: Request, job_id: str, step_id: StepId, who: Approver, runtime: Wired) -> Response:
    """Counts once for each person; the job goes on when as many as the protocol wants have approved."""
    asked = await body_of(request, contract.VoteRequest)
    return ok(await runtime.operations.vote(job_id, step_id, who, True, asked.comment or ""))


@router.post(VOTE + ":reject", **takes(contract.VoteRequest, JobView, 200, 401, 403, 404, 409, 422))
async def reject_step(request: Request, job_id: str, step_id: StepId, who: Approver, runtime: Wired) -> Response:
    """One is enough: the step fails, and the job goes the way that the protocol has for that."""
    asked = await body_of(request, contract.VoteRequest)
    return ok(await runtime.operations.vote(job_id, step_id, who, False, asked.comment or ""))


@router.get("/v1/jobs/{job_id}/audit", **answers(contract.AuditView, 401, 403, 404))
async def audit_job(job_id: str, who: Reader, runtime: Wired) -> Response:
    """Whether its events are all there, unedited and in order, by the hash that each carries of all before it."""
    return ok(await runtime.queries.audit(job_id, who))
