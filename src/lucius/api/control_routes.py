"""Routes for acts on a job: pause, resume, signal, retry, approve, reject; and the audit of its history."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from lucius.api.dependencies import JobControl, Jobs, Operator, Reader, body_of, ok, principal_of
from lucius.api.openapi_parts import answers, takes
from lucius.contract import JobView
from lucius.contract import control as contract
from lucius.usecases.access.auth import Principal

router = APIRouter(tags=["jobs"])

StepId = Annotated[str, Path(max_length=256)]
VOTE = "/v1/jobs/{job_id}/steps/{step_id}"


async def approver(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    principal.require("approve")
    return principal


Approver = Annotated[Principal, Depends(approver)]


@router.post("/v1/jobs/{job_id}:pause", **takes(contract.PauseRequest, JobView, 202, 401, 403, 404, 409, 422))
async def pause_job(request: Request, job_id: str, who: Operator, control: JobControl) -> Response:
    """Start nothing new until the job is resumed. What services have begun goes on, and its results are recorded."""
    asked = await body_of(request, contract.PauseRequest)
    return ok(await control.pause(job_id, who, asked.reason or ""), 202)


@router.post("/v1/jobs/{job_id}:resume", **takes(contract.ResumeRequest, JobView, 202, 401, 403, 404, 409, 422))
async def resume_job(request: Request, job_id: str, who: Operator, control: JobControl) -> Response:
    """Resume a paused job. A job that waits for a review is resumed by an act on its review item."""
    asked = await body_of(request, contract.ResumeRequest)
    return ok(await control.resume(job_id, who, asked.reason or ""), 202)


@router.post("/v1/jobs/{job_id}:signal", **takes(contract.SignalRequest, JobView, 202, 401, 403, 404, 409, 422))
async def signal_job(request: Request, job_id: str, who: Operator, control: JobControl) -> Response:
    """Send a signal to the step that waits for it, now or later in this run."""
    asked = await body_of(request, contract.SignalRequest)
    job = await control.signal(job_id, who, asked.name, asked.payload, asked.reason or "")
    return ok(job, 202)


@router.post("/v1/jobs/{job_id}:retry", **takes(contract.RetryRequest, JobView, 202, 401, 403, 404, 409, 422, 429))
async def retry_job(request: Request, job_id: str, who: Operator, control: JobControl) -> Response:
    """Start a new run of a job that failed or was cancelled.

    It passes the limits again, and does not redo what it keeps.
    """
    asked = await body_of(request, contract.RetryRequest)
    return ok(await control.retry(job_id, who, asked.reason or "", asked.from_step), 202)


@router.post(VOTE + ":approve", **takes(contract.VoteRequest, JobView, 200, 401, 403, 404, 409, 422))
async def approve_step(request: Request, job_id: str, step_id: StepId, who: Approver, control: JobControl) -> Response:
    """Approve a step; each person counts once. The job goes on when as many as the protocol requires have approved."""
    asked = await body_of(request, contract.VoteRequest)
    return ok(await control.vote(job_id, step_id, who, True, asked.comment or ""))


@router.post(VOTE + ":reject", **takes(contract.VoteRequest, JobView, 200, 401, 403, 404, 409, 422))
async def reject_step(request: Request, job_id: str, step_id: StepId, who: Approver, control: JobControl) -> Response:
    """Reject a step. One rejection fails the step, and the job continues as the protocol defines for that."""
    asked = await body_of(request, contract.VoteRequest)
    return ok(await control.vote(job_id, step_id, who, False, asked.comment or ""))


@router.get("/v1/jobs/{job_id}/audit", **answers(contract.AuditView, 401, 403, 404))
async def audit_job(job_id: str, who: Reader, jobs: Jobs) -> Response:
    """Check that a job's events are complete, unedited and in order, by the hash that each carries of all before it."""
    return ok(await jobs.audit(job_id, who))
