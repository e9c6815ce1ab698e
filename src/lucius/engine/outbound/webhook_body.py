"""Id and body of the webhook that a client gets when its job has ended."""

from typing import Any

from lucius.core.model.decision import JobSnapshot
from lucius.usecases.queries.views import error_view, reported_output_ref
from lucius.usecases.timestamps import timestamp, timestamp_or_none


def webhook_id(job_id: str, run_no: int) -> str:
    """Return the webhook's id, which is the same in every delivery, so that receivers can detect repeats."""
    return f"{job_id}~run{run_no}"


def webhook_body(view: JobSnapshot, run_no: int) -> dict[str, Any]:
    """Return the webhook's body; for an earlier run, only how it ended.

    `view` must have the step whose result is the job's output.
    """
    job, command = view.job, view.job.command
    past = next((run for run in job.runs if run.run_no == run_no), None)
    status, error, at = (
        (past.status, past.error, past.completed_at) if past else (job.status, job.error, job.completed_at)
    )
    output = view.steps.get(job.output_step_id) if job.output_step_id and past is None else None
    problem = error_view(error)
    return {
        "type": f"job.{str(status).lower()}",
        "timestamp": timestamp(at or job.updated_at),
        "data": {
            "jobId": job.job_id,
            "tenant_id": job.tenant_id,
            "request_type": command.request_type,
            "protocol_version": job.protocol_version,
            "status": str(status),
            "run_no": run_no,
            "error": {"code": problem.code, "message": problem.message} if problem else None,
            "output_ref": command.output_ref,
            "reported_output_ref": reported_output_ref(view) if past is None else None,
            "output": output.result if output else None,
            "correlation_id": command.correlation_id,
            "doc_id": command.doc_id,
            "created_at": timestamp(job.created_at),
            "completed_at": timestamp_or_none(at),
        },
    }
