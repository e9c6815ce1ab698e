"""What people do to a job: `jobs pause|resume|signal|retry`, `approve`, `reject`."""

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from lucius.cli import render
from lucius.cli.client import Client, job_path
from lucius.cli.connection import connection
from lucius.cli.errors import Misused, guarded, run
from lucius.cli.jobs import ApiKey, AsJson, JobId, Url, jobs
from lucius.contract import JobView

Reason = Annotated[str, typer.Option(help="Why, for the record")]
StepId = Annotated[str, typer.Argument(metavar="STEP", help="The step that waits for approval, such as sign or sign.3")]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Kept with the vote")]


def read_json(given: str, option: str) -> Any:
    """JSON as it stands, or from @FILE."""
    text, where = given, option
    if given.startswith("@"):
        where = given[1:]
        try:
            text = Path(where).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Misused(f"can't read {where}: {error}") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Misused(f"{where} is not JSON: {error}; text needs quotes of its own, as in '\"text\"'") from error


def _act(ctx: typer.Context, path: str, body: dict[str, Any], as_json: bool, url: str | None, key: str | None) -> None:
    """Ask for it, and say where the job stands then."""

    async def work() -> None:
        async with Client(connection(ctx, url, key)) as client:
            answer = await client.post(path, {name: value for name, value in body.items() if value is not None})
            shown = client.read(answer, JobView)
        if as_json:
            render.print_json(answer)
        else:
            render.out().print(f"job {shown.jobId}: {render.explain(shown)}", soft_wrap=True)

    run(work)


@jobs.command("pause")
def pause_job(
    ctx: typer.Context,
    job: JobId,
    reason: Reason = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Start nothing new until it is resumed. What a service has begun goes on, and its result is kept."""
    _act(ctx, f"{job_path(job)}:pause", {"reason": reason}, as_json, url, api_key)


@jobs.command("resume")
def resume_job(
    ctx: typer.Context,
    job: JobId,
    reason: Reason = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Go on with a paused job."""
    _act(ctx, f"{job_path(job)}:resume", {"reason": reason}, as_json, url, api_key)


@jobs.command("signal")
def signal_job(
    ctx: typer.Context,
    job: JobId,
    name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The name that a wait step of its protocol has")],
    payload: Annotated[str | None, typer.Option(help="JSON or @FILE, for the step's result; 8 KiB at most")] = None,
    reason: Reason = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Tell a job that something has happened. One that comes before its step is kept for it."""
    said = guarded(lambda: read_json(payload, "--payload")) if payload is not None else None
    body = {"name": name, "payload": said, "reason": reason}
    _act(ctx, f"{job_path(job)}:signal", body, as_json, url, api_key)


@jobs.command("retry")
def retry_job(
    ctx: typer.Context,
    job: JobId,
    reason: Reason = "",
    from_step: Annotated[str | None, typer.Option(help="An earlier step than the one that failed")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """A new run of a job that failed or was cancelled. What was done before the step it starts from is kept."""
    body = {"reason": reason, "from_step": from_step}
    _act(ctx, f"{job_path(job)}:retry", body, as_json, url, api_key)


def approve(
    ctx: typer.Context,
    job: JobId,
    step: StepId,
    comment: Comment = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Approve what a job waits for, in your name. Needs a key of scope approve that the step asks for."""
    _act(ctx, _vote_path(job, step, "approve"), {"comment": comment}, as_json, url, api_key)


def reject(
    ctx: typer.Context,
    job: JobId,
    step: StepId,
    comment: Comment = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Reject it: the step fails, and the job goes the way that its protocol has for that."""
    _act(ctx, _vote_path(job, step, "reject"), {"comment": comment}, as_json, url, api_key)


def _vote_path(job: str, step: str, act: str) -> str:
    return f"{job_path(job)}/steps/{quote(step, safe='')}:{act}"
