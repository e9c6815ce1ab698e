"""Commands about jobs: `submit`, `jobs list|show|watch|cancel`, `explain`."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lucius.cli import render
from lucius.cli.client import Client, job_path
from lucius.cli.connection import connection
from lucius.cli.errors import Misused, Unsuccessful, guarded, run
from lucius.cli.job_render import job_header, jobs_view, steps_view
from lucius.cli.watch import watch
from lucius.contract import Accepted, JobList, JobView
from lucius.core.model import BlockedReason, JobStatus, Mode

Url = Annotated[str | None, typer.Option("--url", help="The control plane; also LUCIUS_URL")]
ApiKey = Annotated[str | None, typer.Option("--api-key", help="Who you are; also LUCIUS_API_KEY")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine output on stdout")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The jobId that submit gave")]

jobs = typer.Typer(help="List, show, watch, pause, resume, signal, retry and cancel jobs.", no_args_is_help=True)

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def submit(
    ctx: typer.Context,
    request_type: Annotated[str, typer.Argument(help="Such as OCR_EMBEDDING_SIS; see `lucius protocols list`")],
    tenant: Annotated[str, typer.Option(help="Whose job it is")],
    input_: Annotated[str, typer.Option("--input", help="The document: a ref such as blob://in/a.pdf, or a path")],
    output: Annotated[str, typer.Option(help="Where the result goes: a ref or a path")],
    payload: Annotated[str, typer.Option(help="JSON with a member for each step, or @FILE")] = "{}",
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt for the sis step; may be repeated")] = None,
    mode: Annotated[Mode | None, typer.Option(help="How jobs are spread over lanes", case_sensitive=False)] = None,
    doc_id: Annotated[str | None, typer.Option(help="Which document it is; BURST needs it")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key is the same job")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Your name for it, in every log line")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended; exit code 1 if not SUCCEEDED")] = False,
    watch_: Annotated[bool, typer.Option("--watch", help="Like --wait, and show progress")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Submit a command. What comes back is a job."""
    optional = {"mode": mode, "doc_id": doc_id, "idempotency_key": key, "correlation_id": correlation_id}
    command = guarded(
        lambda: {
            "tenant_id": tenant,
            "request_type": request_type,
            "input_ref": ref_of(input_, must_exist=True),
            "output_ref": ref_of(output),
            "payload": read_payload(payload, prompt or []),
            "schema_version": "v1",
            **{name: value for name, value in optional.items() if value is not None},
        }
    )

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            accepted = await client.submit(command)
            if watch_ and not as_json:
                _say_accepted(accepted)
                _require_success(await watch(client, accepted.jobId))
            elif wait or watch_:
                answer = await client.wait_for_end(accepted.jobId)
                _finish(client.read(answer, JobView), answer, as_json)
            elif as_json:
                render.print_json(accepted)
            else:
                _say_accepted(accepted)

    run(work)


def _say_accepted(accepted: Accepted) -> None:
    again = ", which was accepted before" if accepted.duplicate else ""
    render.out().print(f"job {accepted.jobId} is {accepted.status}{again}", soft_wrap=True)


def _finish(job: JobView, answer: bytes, as_json: bool) -> None:
    if as_json:
        render.print_json(answer)
    else:
        render.out().print(f"job {job.jobId}: {render.explain(job)}", soft_wrap=True)
    _require_success(job)


def _require_success(job: JobView) -> None:
    if job.status != "SUCCEEDED":
        raise Unsuccessful(f"job {job.jobId} ended {job.status}")


def ref_of(given: str, *, must_exist: bool = False) -> str:
    """A ref as it is; a local path as a file:// ref."""
    if SCHEME.match(given):
        return given
    path = Path(given).expanduser().absolute()
    if must_exist and not path.exists():
        raise Misused(f"there is no file {given}; refs look like blob://container/path, https://… or file:///path")
    return path.as_uri() + ("/" if given.endswith("/") else "")


def read_payload(given: str, prompts: Sequence[str]) -> dict[str, Any]:
    text, where = given, "--payload"
    if given.startswith("@"):
        where = given[1:]
        try:
            text = Path(where).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Misused(f"can't read the payload from {where}: {error}") from error
    try:
        payload = json.loads(text)
    except json.JSONDecodeError as error:
        raise Misused(f"{where} is not JSON: {error}") from error
    if not isinstance(payload, dict) or not isinstance(payload.get("sis", {}), dict):
        raise Misused(f'{where} must be an object with a member for each step, as in {{"ocr": {{}}}}')
    if prompts:
        payload["sis"] = {**payload.get("sis", {}), "prompt_set": list(prompts)}
    return payload


@jobs.command("list")
def list_jobs(
    ctx: typer.Context,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's")] = None,
    status: Annotated[JobStatus | None, typer.Option(help="Only these", case_sensitive=False)] = None,
    request_type: Annotated[str | None, typer.Option(help="Only of this type")] = None,
    blocked_on: Annotated[
        BlockedReason | None, typer.Option(help="Only those that wait for this", case_sensitive=False)
    ] = None,
    limit: Annotated[int, typer.Option(help="At most this many", min=1)] = 20,
    all_: Annotated[bool, typer.Option("--all", help="However many there are")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Jobs, newest first, and what each waits for."""
    wanted = {"tenant_id": tenant, "status": status, "request_type": request_type, "blocked_on": blocked_on}
    params = {name: str(value) for name, value in wanted.items() if value is not None}

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            found = [job async for job in client.jobs(params, None if all_ else limit)]
        if as_json:
            render.print_json(JobList(jobs=found, next_cursor=None))
        elif found:
            console = render.out()
            console.print(jobs_view(found, datetime.now(UTC), console.width))
            if not all_ and len(found) == limit:
                render.err().print(f"the newest {limit}; --limit or --all for more", style="dim")
        else:
            render.err().print("no jobs")

    run(work)


@jobs.command("show")
def show_job(
    ctx: typer.Context,
    job: JobId,
    items: Annotated[bool, typer.Option("--items", help="Every item of a long map")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """One job: its runs, its steps with every attempt, vote and wait, and what happened."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.job(job)
            steps, events = await client.steps(job), await client.events(job)
        if as_json:
            shown = msgspec.json.decode(answer)
            shown["steps"] = msgspec.to_builtins(steps.steps)
            render.print_json({**shown, "events": msgspec.to_builtins(events)})
            return
        console = render.out()
        console.print(job_header(client.read(answer, JobView)))
        console.print()
        console.print(steps_view(steps.steps, every_item=items))
        console.print(f"\n{len(events)} events: {render.events_summary(events)}", style="dim")

    run(work)


@jobs.command("watch")
def watch_job(ctx: typer.Context, job: JobId, url: Url = None, api_key: ApiKey = None) -> None:
    """Follow a job until it has ended. Exit code 1 if it did not succeed."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            _require_success(await watch(client, job))

    run(work)


@jobs.command("cancel")
def cancel_job(
    ctx: typer.Context,
    job: JobId,
    reason: Annotated[str, typer.Option(help="Why, for the record")] = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Start no further step. What a service has begun may end first."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.post(f"{job_path(job)}:cancel", {"reason": reason})
            shown = client.read(answer, JobView)
        if as_json:
            render.print_json(answer)
        else:
            render.out().print(f"job {shown.jobId}: {render.explain(shown)}", soft_wrap=True)

    run(work)


def explain(ctx: typer.Context, job: JobId, as_json: AsJson = False, url: Url = None, api_key: ApiKey = None) -> None:
    """Why a job waits and until when, or how it ended, in a sentence."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            shown = await client.job_view(job)
        if as_json:
            told = {"jobId": shown.jobId, "status": shown.status, "sentence": render.explain(shown)}
            render.print_json({**told, "blocked_on": msgspec.to_builtins(shown.blocked_on)})
        else:
            render.out().print(render.explain(shown), soft_wrap=True)

    run(work)
