"""Commands about jobs: `submit`, `jobs list|show|output|watch`, `explain`."""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec
import typer

from lucius.cli import render
from lucius.cli.connection import GlobalOptions
from lucius.cli.errors import Misused, Unsuccessful
from lucius.cli.job_ids import find_job, job_path
from lucius.cli.json_options import read_object
from lucius.cli.session import (
    OUTAGE_SECONDS,
    AsJson,
    AtMost,
    Everything,
    Output,
    act,
    fetch,
    list_output,
    server_command,
)
from lucius.contract import Accepted, JobList, JobView, StepList
from lucius.core.model.statuses import BlockedReason, JobStatus, Mode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lucius.client import AsyncClient

JobId = Annotated[str, typer.Argument(metavar="JOB", help="A jobId, or a unique prefix")]

jobs = typer.Typer(
    help="List, show, watch, pause, resume, signal, retry and cancel jobs, and fetch their output.",
    no_args_is_help=True,
)

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@server_command
async def submit(
    client: "AsyncClient",
    request_type: Annotated[str, typer.Argument(help="Such as OCR_EMBEDDING_SIS; see `lucius protocols list`")],
    tenant: Annotated[str, typer.Option(help="Tenant of the job")],
    input_: Annotated[str, typer.Option("--input", help="The document: a ref such as blob://in/a.pdf, or a path")],
    output: Annotated[str, typer.Option(help="Where to write the result: a ref or a path")],
    payload: Annotated[str, typer.Option(help="JSON with a member for each step, or @FILE")] = "{}",
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt for the sis step; may be repeated")] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(help="How to spread jobs over lanes; SAFE is the same as DEFAULT", case_sensitive=False),
    ] = None,
    doc_id: Annotated[str | None, typer.Option(help="Document id; required for BURST")] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Idempotency key: the same key is the same job; by default derived from a local file and the command"
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run again even if the same command was accepted before")
    ] = False,
    correlation_id: Annotated[str | None, typer.Option(help="Your own id of the job, in every log line")] = None,
    callback: Annotated[
        str | None, typer.Option(metavar="URL", help="Webhook URL, called when the job has ended")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the job has ended; exit code 1 if not SUCCEEDED")
    ] = False,
    watch_: Annotated[bool, typer.Option("--watch", help="Like --wait, and show progress")] = False,
    as_json: AsJson = False,
) -> None:
    """Submit a command; it becomes a job."""
    command: dict[str, Any] = {
        "tenant_id": tenant,
        "request_type": request_type,
        "input_ref": ref_of(input_, must_exist=True),
        "output_ref": ref_of(output),
        "payload": read_payload(payload, prompt or []),
        "schema_version": "v1",
    }
    command |= {
        "idempotency_key": choose_key(key, again, command),
        "mode": mode,
        "doc_id": doc_id,
        "correlation_id": correlation_id,
        "callback_urls": None if callback is None else {"job": callback},
    }
    _, accepted = await act(client, "/v1/commands", command, Accepted)
    if wait or watch_:
        await _wait_for_end(client, accepted, watch_, as_json)
    elif as_json:
        render.print_json(accepted)
    else:
        _print_accepted(accepted)


async def _wait_for_end(client: "AsyncClient", accepted: Accepted, watched: bool, as_json: bool) -> None:
    """Wait until a job has ended, and show its progress if it is watched. Raises Unsuccessful."""
    from lucius.cli.watch import watch  # noqa: PLC0415
    from lucius.client.waiting import until_ended  # noqa: PLC0415

    if watched and not as_json:
        _print_accepted(accepted)
        _require_success(await watch(client, accepted.jobId))
        return
    with ExitStack() as unfinished:
        unfinished.callback(_print_still_running, accepted)
        ended = await until_ended(client.http, accepted.jobId, None, OUTAGE_SECONDS)
        unfinished.pop_all()
    assert ended.job is not None, "it has ended"
    _finish(ended.job, ended.answer, accepted, as_json)


def choose_key(key: str | None, again: bool, command: Mapping[str, Any]) -> str | None:
    """Return the key as given, a fresh one for `--again`, else one from the content of a local input file.

    Raises Misused.
    """
    if again:
        if key is not None:
            raise Misused("--again generates a key: omit --key, or give a new key without --again")
        return f"again-{uuid4()}"
    if key is not None or not command["input_ref"].lower().startswith("file:"):
        return key
    from lucius.client.command import content_key  # noqa: PLC0415

    return content_key(path_of(command["input_ref"]), command)


def _print_accepted(accepted: Accepted) -> None:
    repeated = f", {_duplicate_of(accepted)}" if accepted.duplicate else ""
    render.out().print(f"job {accepted.jobId} is {accepted.status}{repeated}", soft_wrap=True)


def _print_still_running(accepted: Accepted) -> None:
    """Print the id of an accepted job if waiting for it fails, as the submit itself succeeded."""
    text = f"job {accepted.jobId} was accepted; `lucius explain {accepted.jobId}` shows its state"
    render.err().print(text, soft_wrap=True)


def _duplicate_of(accepted: Accepted) -> str:
    when = f"at {render.moment(accepted.accepted_at)}" if accepted.accepted_at else "before"
    return f"a duplicate: the same command was accepted {when}; --again runs it again"


def _finish(job: JobView, answer: bytes, accepted: Accepted, as_json: bool) -> None:
    if as_json:
        extra = {"duplicate": accepted.duplicate, "accepted_at": job.created_at}
        render.print_json(msgspec.json.decode(answer) | extra)
    else:
        if accepted.duplicate:
            _print_accepted(accepted)
        render.out().print(f"job {job.jobId}: {render.explain(job)}", soft_wrap=True)
    _require_success(job)


def _require_success(job: JobView) -> None:
    if job.status != "SUCCEEDED":
        raise Unsuccessful(f"job {job.jobId} ended {job.status}")


def ref_of(ref_or_path: str, *, must_exist: bool = False) -> str:
    """Return a ref as it is, and a local path as a file:// ref. Raises Misused."""
    if SCHEME.match(ref_or_path):
        return ref_or_path
    path = Path(ref_or_path).expanduser().absolute()
    if must_exist and not path.exists():
        raise Misused(f"{ref_or_path} does not exist; refs look like blob://container/path, https://… or file:///path")
    return path.as_uri() + ("/" if ref_or_path.endswith("/") else "")


def path_of(ref: str) -> Path:
    """Return the path behind a file:// ref."""
    return Path(unquote(urlsplit(ref).path))


def read_payload(text: str, prompts: Sequence[str]) -> dict[str, Any]:
    payload = read_object("--payload", text)
    if not isinstance(payload.get("sis", {}), dict):
        raise Misused('--payload must have an object for each step, as in {"sis": {}}')
    if prompts:
        payload["sis"] = {**payload.get("sis", {}), "prompt_set": list(prompts)}
    return payload


@jobs.command("list")
@server_command
async def list_jobs(
    client: "AsyncClient",
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant")] = None,
    status: Annotated[
        JobStatus | None,
        typer.Option(
            metavar="STATUS", help=f"Only those with this status: {', '.join(JobStatus)}", case_sensitive=False
        ),
    ] = None,
    request_type: Annotated[str | None, typer.Option(help="Only of this request type")] = None,
    blocked_on: Annotated[
        BlockedReason | None,
        typer.Option(
            metavar="REASON", help=f"Only those that wait for: {', '.join(BlockedReason)}", case_sensitive=False
        ),
    ] = None,
    doc_id: Annotated[str | None, typer.Option(help="Only of this document")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only with this correlation id")] = None,
    target: Annotated[str | None, typer.Option(metavar="TYPE/ID", help="Only with this target")] = None,
    error_code: Annotated[str | None, typer.Option(help="Only those that ended with this error code")] = None,
    completed_after: Annotated[
        str | None, typer.Option(help="Only those that ended after this time (RFC 3339)")
    ] = None,
    completed_before: Annotated[
        str | None, typer.Option(help="Only those that ended before this time (RFC 3339)")
    ] = None,
    limit: AtMost = 20,
    all_: Everything = False,
) -> Output:
    """List jobs, newest first, and what each waits for."""
    most = None if all_ else limit
    jobs = client.jobs(
        tenant=tenant,
        status=status,
        request_type=request_type,
        blocked_on=blocked_on,
        doc_id=doc_id,
        correlation_id=correlation_id,
        target=target,
        error_code=error_code,
        completed_after=completed_after,
        completed_before=completed_before,
        limit=most,
    )
    found = [job async for job in jobs]

    def view() -> "RenderableType":
        from lucius.cli.job_render import jobs_view  # noqa: PLC0415

        return jobs_view(found, datetime.now(UTC), render.out().width)

    return list_output(JobList(jobs=found, next_cursor=None), found, view, "no jobs", most)


@jobs.command("show")
@server_command
async def show_job(
    client: "AsyncClient",
    job: JobId,
    items: Annotated[bool, typer.Option("--items", help="Show every item of a long map")] = False,
) -> Output:
    """Show one job: runs, steps with every attempt, vote and wait, and a summary of events."""
    path = job_path(await find_job(client, job))
    answer, shown = await fetch(client, path, JobView)
    _, listed = await fetch(client, f"{path}/steps", StepList)
    events = [event async for event in client.events(shown.jobId)]
    value = {
        **msgspec.json.decode(answer),
        "steps": msgspec.to_builtins(listed.steps),
        "events": msgspec.to_builtins(events),
    }

    def show() -> None:
        from lucius.cli.job_render import JobHeader, steps_view  # noqa: PLC0415

        console = render.out()
        console.print(JobHeader(shown), crop=False)
        console.print()
        console.print(steps_view(listed.steps, every_item=items))
        console.print(f"\n{len(events)} events: {render.events_summary(events)}", style="dim")

    return Output(value, show)


@jobs.command("output")
@server_command
async def fetch_output(
    client: "AsyncClient",
    ctx: typer.Context,
    job: JobId,
    file: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; stdout by default or for -")
    ] = None,
    blob_root: Annotated[
        Path | None,
        typer.Option(help="Folder of blob: refs; by default `blobs` in the data folder", envvar="LUCIUS_BLOB_ROOT"),
    ] = None,
    allow_private: Annotated[
        bool,
        typer.Option(
            "--allow-private",
            help="Also read an https: output from a non-public address",
            envvar="LUCIUS_HTTPS_ALLOW_PRIVATE",
        ),
    ] = False,
) -> None:
    """Fetch a job's output: the file that its last step reported, else that step's result as JSON.

    Only files at or below the job's output_ref or in its workspace are read.
    """
    from lucius.cli import outputs  # noqa: PLC0415

    shown = await client.get(await find_job(client, job))
    blobs = blob_root or ctx.ensure_object(GlobalOptions).data_dir / "blobs"
    to = None if file == Path("-") else file
    ref = await outputs.fetch_output(shown, blobs, to, allow_private=allow_private)
    if to is not None:
        render.err().print(f"{file} has {ref or 'the result of the last step'}", soft_wrap=True)


@jobs.command("watch")
@server_command
async def watch_job(client: "AsyncClient", job: JobId) -> None:
    """Follow a job until it has ended. Exit code 1 if it did not succeed."""
    from lucius.cli.watch import watch  # noqa: PLC0415

    _require_success(await watch(client, await find_job(client, job)))


@server_command
async def explain(client: "AsyncClient", job: JobId) -> Output:
    """Explain in one sentence what a job waits for, or how it ended."""
    shown = await client.get(await find_job(client, job))
    sentence = render.explain(shown)
    value = {"jobId": shown.jobId, "status": shown.status, "sentence": sentence, "blocked_on": shown.blocked_on}
    return Output(value, lambda: render.out().print(sentence, soft_wrap=True))
