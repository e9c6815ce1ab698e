"""What a client is told when its job has ended."""

from typing import Any

from lucius.core.decision import JobView
from lucius.service.timestamps import timestamp, timestamp_or_none
from lucius.service.views import error_view


def notice_id(job_id: str, run_no: int) -> str:
    """The same however often it is sent, so that a receiver can tell a repeat."""
    return f"{job_id}~run{run_no}"


def notice_body(view: JobView, run_no: int) -> dict[str, Any]:
    """`view` has the step whose result is the job's output. Of an earlier run only its end is told."""
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
            "output": output.result if output else None,
            "correlation_id": command.correlation_id,
            "doc_id": command.doc_id,
            "created_at": timestamp(job.created_at),
            "completed_at": timestamp_or_none(at),
        },
    }
