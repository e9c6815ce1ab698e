"""Commands for acts on a job: `jobs pause|resume|signal|retry|cancel`, `approve`, `reject`."""

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from lucius.cli.job_ids import find_job, job_path
from lucius.cli.jobs import JobId, jobs
from lucius.cli.json_options import read_json
from lucius.cli.session import Output, act, job_output, server_command
from lucius.contract import JobView

if TYPE_CHECKING:
    from lucius.client import AsyncClient

Reason = Annotated[str, typer.Option(help="Reason, kept in the history")]
StepId = Annotated[str, typer.Argument(metavar="STEP", help="The step that waits for approval, such as sign or sign.3")]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Kept with the vote")]


async def _act(client: "AsyncClient", job: str, act_path: str, body: dict[str, Any]) -> Output:
    path = job_path(await find_job(client, job)) + act_path
    return job_output(*await act(client, path, body, JobView))


@jobs.command("cancel")
@server_command
async def cancel_job(client: "AsyncClient", job: JobId, reason: Reason = "") -> Output:
    """Cancel a job: start no further step; running steps may finish."""
    return await _act(client, job, ":cancel", {"reason": reason})


@jobs.command("pause")
@server_command
async def pause_job(client: "AsyncClient", job: JobId, reason: Reason = "") -> Output:
    """Pause a job: start no step until it is resumed; running steps continue and their results are kept."""
    return await _act(client, job, ":pause", {"reason": reason})


@jobs.command("resume")
@server_command
async def resume_job(client: "AsyncClient", job: JobId, reason: Reason = "") -> Output:
    """Resume a paused job."""
    return await _act(client, job, ":resume", {"reason": reason})


@jobs.command("signal")
@server_command
async def signal_job(
    client: "AsyncClient",
    job: JobId,
    name: Annotated[str, typer.Argument(metavar="SIGNAL", help="Signal name of a wait step in its protocol")],
    payload: Annotated[
        str | None, typer.Option(help="JSON or @FILE, which becomes the step's result; at most 8 KiB")
    ] = None,
    reason: Reason = "",
) -> Output:
    """Send a signal to a job; one that arrives before its step is kept for it."""
    value = read_json("--payload", payload) if payload is not None else None
    return await _act(client, job, ":signal", {"name": name, "payload": value, "reason": reason})


@jobs.command("retry")
@server_command
async def retry_job(
    client: "AsyncClient",
    job: JobId,
    reason: Reason = "",
    from_step: Annotated[str | None, typer.Option(help="First step of the run; by default the one that failed")] = None,
) -> Output:
    """Retry a failed or cancelled job as a new run; results of steps before its first step are kept."""
    return await _act(client, job, ":retry", {"reason": reason, "from_step": from_step})


@server_command
async def approve(client: "AsyncClient", job: JobId, step: StepId, comment: Comment = "") -> Output:
    """Approve a waiting step in your name. Needs a key with scope approve that the step permits."""
    return await _act(client, job, f"/steps/{quote(step, safe='')}:approve", {"comment": comment})


@server_command
async def reject(client: "AsyncClient", job: JobId, step: StepId, comment: Comment = "") -> Output:
    """Reject a step; the job follows its failure path."""
    return await _act(client, job, f"/steps/{quote(step, safe='')}:reject", {"comment": comment})
