"""A job, live: its steps with their progress on a terminal, its events as lines in a pipe."""

import asyncio

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lucius.cli.client import Client
from lucius.cli.errors import Unreachable
from lucius.cli.job_render import ENDED, progress_of
from lucius.cli.render import event_line, explain, out, status_text
from lucius.contract import EventView, JobView, StepView

REFRESH_SECONDS = 0.5  # heartbeats leave no event, so progress is looked up
SHOWN_EVENTS = 8
SHOWN_ITEMS = 8
NO_ATTEMPTS = frozenset({"decision", "wait", "human_approval", "parallel", "map"})
DONE = {"SUCCEEDED": 1.0, "PROCESSING": 0.1, "INITIATED": 0.05}


async def watch(client: Client, job_id: str) -> JobView:
    """Show the job until it has ended."""
    job = await client.job_view(job_id)
    console = out()
    if console.is_terminal:
        await _live(client, job, console)
    else:
        async for event in client.follow(job_id):
            console.print(event_line(event), soft_wrap=True)
    job = await client.job_view(job_id)
    console.print(explain(job), soft_wrap=True)
    return job


async def _live(client: Client, job: JobView, console: Console) -> None:
    events: list[EventView] = []

    async def collect() -> None:
        async for event in client.follow(job.jobId):
            events.append(event)

    collecting = asyncio.create_task(collect())
    try:
        with Live(_picture(job, events), console=console, refresh_per_second=8) as live:
            while not collecting.done():
                await asyncio.wait({collecting}, timeout=REFRESH_SECONDS)
                job = await _latest(client, job)
                live.update(_picture(job, events))
        await collecting
    finally:
        collecting.cancel()


async def _latest(client: Client, before: JobView) -> JobView:
    try:
        return await client.job_view(before.jobId)
    except Unreachable:
        return before


def _picture(job: JobView, events: list[EventView]) -> RenderableType:
    title = Text.assemble((job.jobId, "bold"), f"  {job.tenant_id}  {job.request_type}  ", status_text(job.status))
    why = Text(job.blocked_on.message if job.blocked_on else "", style="dim")
    return Group(title, _steps(job), why, *(event_line(event) for event in events[-SHOWN_EVENTS:]))


def _steps(job: JobView) -> Table:
    made = Table.grid(padding=(0, 2))
    for step in _worth_watching(job.steps):
        made.add_row(step.stepId, ProgressBar(1.0, done_part(step), width=30), status_text(step.status), _tells(step))
    return made


def _worth_watching(steps: list[StepView]) -> list[StepView]:
    """Of a map's items only those at work, and only as many as fit."""
    items = [step for step in steps if "." in step.stepId and step.status not in ENDED][:SHOWN_ITEMS]
    return [step for step in steps if "." not in step.stepId or step in items]


def _tells(step: StepView) -> str:
    if step.items is not None:
        return progress_of(step.items, "branches" if step.kind == "parallel" else "items")
    if step.status == "AWAITING_APPROVAL":
        return f"{len(step.votes)} given" if step.votes else ""
    return f"attempt {step.attempt_no}" if step.attempt_no and step.kind not in NO_ATTEMPTS else ""


def done_part(step: StepView) -> float:
    if step.items is not None:
        return (step.items.succeeded + step.items.failed) / max(1, step.items.total)
    if step.status == "PROCESSING" and step.progress is not None:
        return max(DONE["PROCESSING"], step.progress)
    return DONE.get(step.status, 0.0)
