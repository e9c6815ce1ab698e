"""Commands about the history of jobs: `audit verify`."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lucius.cli import render
from lucius.cli.errors import Misused, Unsuccessful
from lucius.cli.job_ids import find_job
from lucius.cli.session import AsJson, server_command
from lucius.contract.control import AuditView

if TYPE_CHECKING:
    from lucius.client import AsyncClient

audit = typer.Typer(help="Verify the history of jobs.", no_args_is_help=True)


@audit.callback()
def _group() -> None:
    """Verify the history of jobs."""


@audit.command("verify")
@server_command
async def verify(
    client: "AsyncClient",
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Jobs to verify")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Verify every job that the key may read")] = False,
    tenant: Annotated[str | None, typer.Option(help="With --all, only of this tenant")] = None,
    as_json: AsJson = False,
) -> None:
    """Find events that were edited, deleted or moved. Prints a line for each; exit code 1 if there are any."""
    if bool(job_ids) is all_:
        raise Misused("give jobs, or --all")
    found: list[AuditView] = []
    async for job_id in _job_ids(client, job_ids or [], tenant):
        answer = await client.audit(job_id)
        found.append(answer)
        if not as_json:
            _print_breaks(answer)
    _summarize(found, as_json)


async def _job_ids(client: "AsyncClient", job_ids: list[str], tenant: str | None) -> AsyncIterator[str]:
    for job_id in job_ids:
        yield await find_job(client, job_id)
    if not job_ids:
        async for job in client.jobs(tenant=tenant):
            yield job.jobId


def _print_breaks(answer: AuditView) -> None:
    for found in answer.breaks:
        render.out().print(f"job {answer.jobId}: event {found.seq} {found.what}", style="red", soft_wrap=True)


def _summarize(found: list[AuditView], as_json: bool) -> None:
    broken = sum(not answer.valid for answer in found)
    events = sum(answer.events for answer in found)
    if as_json:
        summary: dict[str, Any] = {"valid": not broken, "jobs": msgspec.to_builtins(found)}
        render.print_json(summary)
    if broken:
        raise Unsuccessful(f"the history of {broken} of {render.plural(len(found), 'job')} was tampered with")
    if not as_json:
        unsealed = sum(answer.unsealed for answer in found)
        older = f"; {render.plural(unsealed, 'event')} from before hash chains were introduced" if unsealed else ""
        checked = f"{render.plural(len(found), 'job')}, {render.plural(events, 'event')}"
        render.out().print(f"{checked}: all unchanged{older}", soft_wrap=True)
