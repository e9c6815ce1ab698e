"""Commands about history: `audit verify`."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import typer

from lucius.cli import render
from lucius.cli.client import Client, job_path
from lucius.cli.connection import connection
from lucius.cli.errors import Misused, Unsuccessful, run
from lucius.cli.jobs import ApiKey, AsJson, Url
from lucius.contract_control import AuditView

audit = typer.Typer(help="Whether the history of jobs is as it was written.", no_args_is_help=True)


@audit.callback()
def _group() -> None:
    """Whether the history of jobs is as it was written."""


@audit.command("verify")
def verify(
    ctx: typer.Context,
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="The jobs to look at")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every job that the key may read")] = False,
    tenant: Annotated[str | None, typer.Option(help="With --all, only this tenant's")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Find events that were edited, deleted or moved. One line for each break; exit code 1 if there is one."""

    async def work() -> None:
        if bool(job_ids) is all_:
            raise Misused("name jobs, or say --all")
        found: list[AuditView] = []
        async with Client(connection(ctx, url, api_key)) as client:
            async for job_id in _wanted(client, job_ids or [], tenant):
                answer = client.read(await client.get(f"{job_path(job_id)}/audit", within=300.0), AuditView)
                found.append(answer)
                if not as_json:
                    _tell(answer)
        _sum_up(found, as_json)

    run(work)


async def _wanted(client: Client, job_ids: list[str], tenant: str | None) -> AsyncIterator[str]:
    for job_id in job_ids:
        yield job_id
    if not job_ids:
        async for job in client.jobs({"tenant_id": tenant} if tenant else {}):
            yield job.jobId


def _tell(answer: AuditView) -> None:
    for found in answer.breaks:
        render.out().print(f"job {answer.jobId}: event {found.seq} {found.what}", style="red", soft_wrap=True)


def _sum_up(found: list[AuditView], as_json: bool) -> None:
    broken = sum(not answer.valid for answer in found)
    events = sum(answer.events for answer in found)
    if as_json:
        told: dict[str, Any] = {"valid": not broken, "jobs": msgspec.to_builtins(found)}
        render.print_json(told)
    if broken:
        raise Unsuccessful(f"the history of {broken} of {render.plural(len(found), 'job')} was tampered with")
    if not as_json:
        unsealed = sum(answer.unsealed for answer in found)
        older = f"; {render.plural(unsealed, 'event')} from before there were chains" if unsealed else ""
        checked = f"{render.plural(len(found), 'job')}, {render.plural(events, 'event')}"
        render.out().print(f"{checked}: all as they were written{older}", soft_wrap=True)
