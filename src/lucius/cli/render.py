"""Renders the API's answers as tables and sentences."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from lucius.contract import EventView, JobView
from lucius.contract.protocols import ProtocolList, ProtocolView
from lucius.terminal import escape_json, strip_controls

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

TERMINAL = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})
WIDE_COLUMNS = 200  # in a pipe the width does not matter, and lines must not be cut
STYLES = {
    "SUCCEEDED": "green",
    "FAILED_FINAL": "red",
    "CANCELLED": "yellow",
    "CANCELLING": "yellow",
    "FAILED_RETRY": "yellow",
    "PROCESSING": "cyan",
    "IN_PROGRESS": "cyan",
    "INITIATED": "cyan",
    "WAITING": "cyan",
    "WAITING_APPROVAL": "magenta",
    "AWAITING_APPROVAL": "magenta",
    "PAUSED": "yellow",
    "HALTED": "red",
    "RUNNING": "cyan",
    "COMPLETED": "green",
    "OPEN": "yellow",
    "REPROCESSED": "green",
    "RESOLVED": "green",
    "DISCARDED": "dim",
    "PENDING": "dim",
    "SKIPPED": "dim",
}


def out() -> "Console":
    return _console(sys.stdout.isatty(), stderr=False)


def err() -> "Console":
    return _console(sys.stderr.isatty(), stderr=True)


def _console(terminal: bool, *, stderr: bool) -> "Console":
    from lucius.cli.console import SafeConsole  # noqa: PLC0415

    width = None if terminal or os.environ.get("COLUMNS") else WIDE_COLUMNS
    return SafeConsole(stderr=stderr, highlight=False, markup=False, width=width)


def print_line(text: str) -> None:
    """Print foreign text as it is, without terminal control characters."""
    typer.echo(strip_controls(text))


def print_json(value: Any) -> None:
    """Print machine output: an answer's bytes as they came, or a value of ours, indented."""
    if isinstance(value, bytes):
        text = msgspec.json.format(value, indent=2).decode()
    else:
        text = json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)
    typer.echo(escape_json(text))


def table(*columns: str | tuple[str, dict[str, Any]]) -> "Table":
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        name, options = (column, {}) if isinstance(column, str) else column
        made.add_column(name, **{"overflow": "fold", **options})
    return made


def status_text(status: str) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    return Text(status, style=STYLES.get(status, ""))


class ListingRow:
    """Cells under their heads, and below them notes that span the whole width."""

    def __init__(self, cells: "Sequence[str | Text]", *notes: "str | Text") -> None:
        from rich.text import Text  # noqa: PLC0415

        self.cells = [cell if isinstance(cell, Text) else Text(cell) for cell in cells]
        self.notes = [note if isinstance(note, Text) else Text(note, style="dim") for note in notes]


def listing(heads: Sequence[str], lines: Sequence[ListingRow]) -> "RenderableType":
    """Return a table in which no cell is cut: columns without room go to further rows."""
    from lucius.cli.listing import Listing  # noqa: PLC0415

    return Listing(heads, lines)


def explain(job: JobView) -> str:
    """Return why a job waits and until when; or how it ended, and why."""
    if job.status not in TERMINAL:
        return f"{job.status}: {job.blocked_on.message if job.blocked_on else 'it is being worked on'}."
    took = f"{seconds_between(job.created_at, job.completed_at):.1f} s after it was accepted"
    tries = plural(job.attempts_total, "attempt")
    match job.status:
        case "SUCCEEDED":
            ref = reported_output(job)
            output = f"its output is {ref}" if ref else "no output was reported"
            return f"SUCCEEDED {took}, with {tries} at {plural(len(job.steps), 'step')}; {output}"
        case "CANCELLED":
            return f"CANCELLED {took}, on request; {tries} had been made."
        case _:
            error = job.error
            return f"{job.status} {took}: {error.message or error.code} [{error.code}]" if error else job.status


def reported_output(job: JobView) -> str | None:
    """Return the ref of the output that the service of the last step reported.

    It is in its result or among its artifacts.
    """
    return job.reported_output_ref


def events_summary(events: Sequence[EventView]) -> str:
    counts: dict[str, int] = {}
    for event in events:
        disposition = event.data.get("disposition", "APPLIED")
        name = event.type if disposition == "APPLIED" else f"{event.type} {disposition}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if n == 1 else f"{name} ×{n}" for name, n in counts.items())


def event_line(event: EventView) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    where = f"{event.stepId} #{event.attempt_no}" if event.stepId else ""
    hidden = ("lease_id", "extra")
    data = {name: value for name, value in event.data.items() if name not in hidden and value not in (None, "")}
    told = " ".join("  ".join(f"{name}={_told(name, value)}" for name, value in data.items()).splitlines())
    bad = event.data.get("disposition") in ("STALE", "LATE") or event.type in _TROUBLE
    style = "yellow" if bad else ("green" if event.type.endswith("SUCCEEDED") else "")
    return Text.assemble((time_of(event.at), "dim"), "  ", (f"{event.type:<22}", style), f"  {where:<14}  {told}")


_TROUBLE = frozenset(
    {
        "STEP_RETRY_SCHEDULED",
        "STEP_FAILED",
        "STEP_REJECTED",
        "JOB_FAILED_FINAL",
        "JOB_HELD",
        "REVIEW_OPENED",
        "COMPENSATION_STARTED",
        "COMPENSATION_HALTED",
        "HANDOVER_FAILED",
        "DRIFT_REPAIRED",
    }
)
_INSTANTS = frozenset({"retry_at", "ack_deadline", "lease_expires_at", "until"})


def _told(name: str, value: Any) -> str:
    if name in _INSTANTS and isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def protocols_table(found: ProtocolList) -> "RenderableType":
    lines = []
    for protocol in found.protocols:
        steps = " → ".join(str(step["step_id"]) for step in protocol.steps)
        named = (protocol.request_type, str(protocol.version), protocol.status)
        lines.append(ListingRow((*named, steps, ", ".join(protocol.aliases), protocol.title)))
    return listing(("REQUEST TYPE", "VERSION", "STATUS", "STEPS", "ALSO KNOWN AS", "TITLE"), lines)


def protocol_steps(protocol: ProtocolView) -> "RenderableType":
    """Return steps in their order; those inside others are indented below them."""
    lines = []
    for depth, step in _nested(protocol.steps):
        schema = step.get("payload_schema") or {}
        required = schema.get("required", [])
        members = ", ".join(name for name in schema.get("properties", {}) if name not in required)
        kind = step.get("step_type") or step.get("kind", "task")
        named = ("  " * depth + step["step_id"], kind, step.get("service", ""))
        lines.append(ListingRow((*named, members, ", ".join(required))))
    return listing(("STEP", "TYPE", "SERVICE", "PAYLOAD", "MUST HAVE"), lines)


def _nested(steps: Iterable[dict[str, Any]], depth: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    for step in steps:
        yield depth, step
        for branch in step.get("parallel", {}).get("branches", {}).values():
            yield from _nested(branch, depth + 1)
        yield from _nested(step.get("map", {}).get("steps", ()), depth + 1)
        yield from _nested([step["compensation"]] if "compensation" in step else [], depth + 1)


def ago(then: str, now: datetime) -> str:
    seconds = max(0, int((now - parse(then)).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def seconds_between(start: str, end: str | None) -> float:
    return (parse(end) - parse(start)).total_seconds() if end else 0.0


def moment(instant: str, now: datetime | None = None) -> str:
    """Return the time of day; with the date where it is not today."""
    at, today = parse(instant).astimezone(UTC), (now or datetime.now(UTC)).date()
    return at.strftime("%H:%M:%S UTC" if at.date() == today else "%Y-%m-%d %H:%M:%S UTC")


def time_of(instant: str | None) -> str:
    return parse(instant).strftime("%H:%M:%S.%f")[:-3] if instant else ""


def parse(instant: str) -> datetime:
    return datetime.fromisoformat(instant)


def plural(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
