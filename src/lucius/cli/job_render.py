"""Renders a job: what it waits for, its runs, and each step with its attempts, votes, waits and items."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from lucius.cli.listing import GAP_COLUMNS, INDENT_COLUMNS
from lucius.cli.render import ListingRow, ago, explain, listing, moment, plural, reported_output, status_text, time_of
from lucius.contract import AttemptView, CompensationView, ItemCounts, JobSummary, JobView, StepView, StepWithAttempts
from lucius.core.model.progress import describe_progress

NARROW_COLUMNS = 140
MAX_ITEMS = 20
MAX_JSON_CHARS = 500
ENDED = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED", "SKIPPED"})


def jobs_view(jobs: Sequence[JobSummary], now: datetime, width: int) -> RenderableType:
    """Return one line for each job; on a narrow terminal its reason has a line of its own."""
    heads = ("JOB", "TENANT", "TYPE", "STATUS", "STEP", "AGE")
    if width < NARROW_COLUMNS:
        return listing(heads, [ListingRow(_job_cells(job, now), why(job)) for job in jobs])
    return listing((*heads, "WHY"), [ListingRow((*_job_cells(job, now), why(job))) for job in jobs])


def _job_cells(job: JobSummary, now: datetime) -> tuple[str | Text, ...]:
    return (
        job.jobId,
        job.tenant_id,
        job.request_type,
        status_text(job.status),
        job.current_step_id or "",
        ago(job.created_at, now),
    )


def why(job: JobSummary) -> str:
    if job.blocked_on is not None:
        return job.blocked_on.message
    return job.error.message or job.error.code if job.error else ""


class JobHeader:
    """Names and values of a job. A ref or an id that has no room beside its name gets a line of its own, uncut.

    Print it without `crop`: such a line may be wider than the terminal.
    """

    def __init__(self, job: JobView) -> None:
        self._rows = [(name, value) for name, value in (*_about(job), *_state(job), *_places(job)) if value]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = max(cell_len(name) for name, _ in self._rows)
        room = options.max_width - width - GAP_COLUMNS
        for name, value in self._rows:
            label = Text(name, style="dim")
            text = value if isinstance(value, Text) else Text(value)
            if text.cell_len > room and " " not in text.plain:
                yield label
                yield Text(" " * INDENT_COLUMNS, no_wrap=True, overflow="ignore").append_text(text)
                continue
            row = Table.grid(padding=(0, GAP_COLUMNS, 0, 0))
            row.add_column(width=width)
            row.add_column(overflow="fold")
            row.add_row(label, text)
            yield row


def _about(job: JobView) -> Iterator[tuple[str, str | Text]]:
    yield "job", job.jobId
    yield "tenant", job.tenant_id
    yield "protocol", f"{job.request_type} version {job.protocol_version}"
    yield "mode", job.mode + (f", doc_id {job.doc_id}" if job.doc_id else "")


def _state(job: JobView) -> Iterator[tuple[str, str | Text]]:
    this_run = f", in run {job.run_no}" if job.run_no > 1 else ""
    yield "status", Text.assemble(status_text(job.status), this_run)
    yield "why", job.blocked_on.message if job.blocked_on is not None else explain(job)
    if job.paused is not None and job.review_id is None:
        yield "resume with", f"lucius jobs resume {job.jobId}"
    for step in job.steps:
        if step.status == "AWAITING_APPROVAL":
            yield "decide with", f"lucius approve {job.jobId} {step.stepId}, or lucius reject"
            break
    for run in job.runs:
        error = f": {run.error.message or run.error.code} [{run.error.code}]" if run.error else ""
        yield f"run {run.run_no}", Text.assemble(status_text(run.status), f" at {moment(run.completed_at)}{error}")
    if job.compensation is not None:
        yield "compensation", _undoing(job.compensation)
    if job.review_id is not None:
        yield "act with", f"lucius review show {job.review_id}"


def _undoing(compensation: CompensationView) -> Text:
    parts = [f" by {compensation.by}"]
    if compensation.failed:
        parts.append(f"the handler of {compensation.failed} failed")
    if compensation.done:
        parts.append(f"undone: {', '.join(compensation.done)}")
    if compensation.todo:
        parts.append(f"to undo: {', '.join(compensation.todo)}")
    return Text.assemble(status_text(compensation.status), "; ".join(parts))


def _places(job: JobView) -> Iterator[tuple[str, str]]:
    yield "created", job.created_at
    yield "ended", job.completed_at or ""
    yield "input", job.input_ref
    yield "output", _output(job)
    yield "workspace", job.workspace_ref
    yield "correlation", job.correlation_id
    yield "workflow", job.engine_url or ("in Temporal, by the job's id" if job.engine == "temporal" else "")
    yield "key", job.idempotency_key or ""
    yield "hash", job.idempotency_hash
    yield "payload", _shortened(job.payload) if job.payload else ""
    yield "result", _shortened(job.output) if job.output is not None else ""


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_JSON_CHARS else text[:MAX_JSON_CHARS] + "… (--json has all of it)"


def _output(job: JobView) -> str:
    if job.status != "SUCCEEDED":
        return job.output_ref
    return reported_output(job) or f"none was reported; requested at {job.output_ref}"


HEADS = ("STEP", "BY", "STATUS", "TRY", "HOW IT ENDED", "HANDED OVER", "ENDED")


def steps_view(steps: Sequence[StepWithAttempts], *, every_item: bool = False) -> RenderableType:
    """Return a line for each attempt, in order, with notes below it."""
    shown, left_out = (list(steps), {}) if every_item else _worth_showing(steps)
    lines: list[ListingRow] = []
    for step in shown:
        lines += _step_lines(step)
        if note := left_out.get(step.stepId):
            lines.append(ListingRow(("",) * len(HEADS), Text(note, style="dim")))
    return listing(HEADS, lines)


def _step_lines(step: StepWithAttempts) -> Iterator[ListingRow]:
    notes = list(_notes(step))
    named = (_indented(step), _by(step))
    if not step.attempts:
        yield ListingRow((*named, status_text(step.status), "", "", "", ""), *notes)
        return
    for number, attempt in enumerate(step.attempts):
        last = number == len(step.attempts) - 1
        head = (*(named if number == 0 else ("", "")), status_text(step.status if last else ""))
        tail = _attempt_cells(attempt, skipped=last and step.status == "SKIPPED")
        yield ListingRow((*head, *tail), *_attempt_notes(attempt), *(notes if last else ()))


def _indented(step: StepView) -> str:
    return ("  " if "." in step.stepId else "") + step.stepId


def _by(step: StepView) -> str:
    """Return what does the step: a service, or for other kinds the kind."""
    return step.service if step.kind == "task" else step.kind.replace("_", " ")


def _attempt_cells(attempt: AttemptView, *, skipped: bool) -> tuple[str, ...]:
    progress = describe_progress(attempt.progress, attempt.progress_counts)
    late = " (late success kept)" if attempt.quarantined else ""
    adopted = f" (adopted from {attempt.adopted_from})" if attempt.adopted_from else ""
    return (
        f"{attempt.attempt_no} (run {attempt.run_no})" if attempt.run_no > 1 else str(attempt.attempt_no),
        ("by a person" if skipped else attempt.outcome or progress) + late + adopted,
        time_of(attempt.handed_over_at),
        time_of(attempt.ended_at),
    )


def _attempt_notes(attempt: AttemptView) -> Iterator[Text]:
    if attempt.error is not None:
        cause = f" ({attempt.failure_class})" if attempt.failure_class else ""
        said = f": {attempt.error.message}" if attempt.error.message else ""
        yield Text(f"{attempt.error.code}{cause}{said}", style="red" if attempt.outcome else "")
    if attempt.logs_ref:
        yield Text(f"logs: {attempt.logs_ref}", style="dim")


def _notes(step: StepView) -> Iterator[Text]:
    if step.items is not None:
        yield Text(progress_of(step.items, "branches" if step.kind == "parallel" else "items"))
    elif step.kind in ("map", "parallel") and isinstance(step.result, dict):
        yield Text(_joined(step.result), style="dim")
    if step.awaits_signal is not None:
        until = f" until {moment(step.wake_at)}" if step.wake_at else ""
        yield Text(f"waits for signal {step.awaits_signal}{until}")
    elif step.status == "WAITING" and step.wake_at:
        yield Text(f"waits until {moment(step.wake_at)}")
    if step.status == "AWAITING_APPROVAL":
        yield from _asked(step)
    for vote in step.votes:
        comment = f": {vote.comment}" if vote.comment else ""
        did, style = ("approved", "green") if vote.approves else ("rejected", "red")
        yield Text.assemble((did, style), f" by {vote.by} at {moment(vote.at)}{comment}")
    if step.status == "FAILED_RETRY" and step.retry_at:
        yield Text(f"tried again at {moment(step.retry_at)}", style="yellow")


def _asked(step: StepView) -> Iterator[Text]:
    if isinstance(step.result, dict) and step.result.get("prompt"):
        yield Text(str(step.result["prompt"]))
    if step.wake_at:
        yield Text(f"times out at {moment(step.wake_at)}", style="dim")


def progress_of(items: ItemCounts, what: str = "items") -> str:
    """Return progress such as "12 of 40 items done, 3 at work, 1 failed"."""
    done = items.succeeded + items.failed
    live = f", {items.live} at work" if items.live else ""
    failed = f", {items.failed} failed" if items.failed else ""
    return f"{done} of {items.total} {what} done{live}{failed}"


def _joined(result: dict[str, Any]) -> str:
    failed = f", {result['failed']} failed" if result.get("failed") else ""
    return f"{result.get('succeeded', 0)} of {result.get('total', 0)} succeeded{failed}"


def _worth_showing(steps: Sequence[StepWithAttempts]) -> tuple[list[StepWithAttempts], dict[str, str]]:
    """Return the steps to show, and notes on items that are left out.

    Of a long map only some items are shown, first those that failed or are at work.
    """
    items: dict[str, list[StepWithAttempts]] = {}
    for step in steps:
        if "." in step.stepId:
            items.setdefault(step.stepId.partition(".")[0], []).append(step)
    keep = {step.stepId for inner in items.values() for step in _first_of(inner)}
    shown = [step for step in steps if "." not in step.stepId or step.stepId in keep]
    last = {step.stepId.partition(".")[0]: step.stepId for step in shown if "." in step.stepId}
    notes = {last[name]: _left_out(name, inner, keep) for name, inner in items.items() if len(inner) > MAX_ITEMS}
    return shown, notes


def _first_of(items: Iterable[StepWithAttempts]) -> list[StepWithAttempts]:
    def rank(step: StepWithAttempts) -> int:
        return 0 if step.status == "FAILED_FINAL" else 1 if step.status not in ENDED else 2

    return sorted(items, key=rank)[:MAX_ITEMS]


def _left_out(name: str, items: Sequence[StepWithAttempts], keep: set[str]) -> str:
    counts: dict[str, int] = {}
    for step in items:
        if step.stepId not in keep:
            counts[step.status] = counts.get(step.status, 0) + 1
    told = ", ".join(f"{n} {status}" for status, n in counts.items())
    return f"and {plural(sum(counts.values()), 'item')} more of {name}: {told}; --items shows them"
