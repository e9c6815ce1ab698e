"""Shows a job live: its steps with their progress on a terminal, its events as lines in a pipe."""

import asyncio

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lucius.cli.job_render import ENDED, progress_of
from lucius.cli.render import event_line, explain, out, status_text
from lucius.cli.session import OUTAGE_SECONDS
from lucius.client import AsyncClient, LuciusError, RequestRefused
from lucius.contract import EventView, JobView, StepView
from lucius.core.model.progress import describe_progress

REFRESH_SECONDS = 0.5  # heartbeats leave no event, so progress is polled
MAX_EVENTS = 8
BAR_COLUMNS = 20
MAX_ITEMS = 8
NO_ATTEMPTS = frozenset({"decision", "wait", "human_approval", "parallel", "map"})


async def watch(client: AsyncClient, job_id: str) -> JobView:
    """Show the job until it has ended, and return it."""
    job = await client.get(job_id)
    console = out()
    if console.is_terminal:
        await _live(client, job, console)
    else:
        async for event in client.stream(job_id, retry_for=OUTAGE_SECONDS):
            console.print(event_line(event), soft_wrap=True)
    job = await client.get(job_id)
    console.print(explain(job), soft_wrap=True)
    return job


async def _live(client: AsyncClient, job: JobView, console: Console) -> None:
    events: list[EventView] = []

    async def collect() -> None:
        async for event in client.stream(job.jobId, retry_for=OUTAGE_SECONDS):
            events.append(event)

    collecting = asyncio.create_task(collect())
    try:
        with Live(render_job(job, events), console=console, refresh_per_second=8) as live:
            while not collecting.done():
                await asyncio.wait({collecting}, timeout=REFRESH_SECONDS)
                job = await _latest(client, job)
                live.update(render_job(job, events))
        await collecting
    finally:
        collecting.cancel()


async def _latest(client: AsyncClient, before: JobView) -> JobView:
    try:
        return await client.get(before.jobId)
    except RequestRefused:
        raise
    except LuciusError:
        return before


def render_job(job: JobView, events: list[EventView]) -> RenderableType:
    title = Text.assemble((job.jobId, "bold"), f"  {job.tenant_id}  {job.request_type}  ", status_text(job.status))
    why = Text(job.blocked_on.message if job.blocked_on else "", style="dim")
    return Group(title, _steps(job), why, *(event_line(event) for event in events[-MAX_EVENTS:]))


def _steps(job: JobView) -> Table:
    made = Table.grid(padding=(0, 2))
    for no_wrap in (True, True, True, False):
        made.add_column(no_wrap=no_wrap)
    for step in _visible_steps(job.steps):
        made.add_row(step.stepId, _bar(step), status_text(step.status), _step_detail(step))
    return made


def _visible_steps(steps: list[StepView]) -> list[StepView]:
    """Return the steps to show: of a map's items only the unfinished ones, and at most MAX_ITEMS."""
    items = [step for step in steps if "." in step.stepId and step.status not in ENDED][:MAX_ITEMS]
    return [step for step in steps if "." not in step.stepId or step in items]


def _step_detail(step: StepView) -> str:
    if step.items is not None:
        return progress_of(step.items, "branches" if step.kind == "parallel" else "items")
    if step.status == "AWAITING_APPROVAL":
        return f"{len(step.votes)} given" if step.votes else ""
    if not step.attempt_no or step.kind in NO_ATTEMPTS:
        return ""
    shown = describe_progress(step.progress, step.progress_counts) if step.status == "PROCESSING" else ""
    return f"attempt {step.attempt_no}" + (f", {shown}" if shown else "")


def _bar(step: StepView) -> ProgressBar:
    """Draw the part that is done; a pulse while the service has not reported progress."""
    done = done_part(step)
    return ProgressBar(1.0, done or 0.0, width=BAR_COLUMNS, pulse=done is None)


def done_part(step: StepView) -> float | None:
    """Return the part of a step that is done; None while it is at work and has not reported any."""
    if step.items is not None:
        return (step.items.succeeded + step.items.failed) / max(1, step.items.total)
    if step.status == "PROCESSING":
        return step.progress
    return 1.0 if step.status == "SUCCEEDED" else 0.0
