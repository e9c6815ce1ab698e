"""Runs a protocol on a virtual clock, without a server, and shows what happened."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from lucius.authoring.formatting import duration, elapsed, shortened
from lucius.authoring.report import Report, StepLine, report_of
from lucius.authoring.script import Script, ScriptError, check
from lucius.authoring.simulate import DEFAULT_LIMITS, DEFAULT_START_MS, SimulationLimits
from lucius.authoring.simulate import simulate as rehearse
from lucius.authoring.timeline import TimelineEntry
from lucius.cli import render, script
from lucius.cli.errors import Misused, Unsuccessful
from lucius.core.model.records import Instant
from lucius.core.protocol.definition import ProtocolDefinition

MAX_LEGS = 20


def refuse_cut_off(report: Report) -> None:
    """Raise Unsuccessful: the simulation was stopped."""
    raise Unsuccessful(f"the simulation was stopped: {report.cut_off}")


def simulate_protocol(
    protocol: ProtocolDefinition,
    payload: dict[str, Any],
    scripted: Script,
    *,
    seed: int = 0,
    limits: SimulationLimits = DEFAULT_LIMITS,
    start: Instant = DEFAULT_START_MS,
) -> Report:
    """Simulate with the expressions, payload checks and calls of a real deployment; return the report.

    Raises Misused.
    """
    from lucius.bootstrap.authoring import open_tools  # noqa: PLC0415 - these are slow to load
    from lucius.bootstrap.rehearsed_calls import RehearsedCalls  # noqa: PLC0415
    from lucius.usecases.errors import Rejected  # noqa: PLC0415
    from lucius.usecases.submit.payloads import Payloads  # noqa: PLC0415

    try:
        check(scripted, protocol)
        filled = Payloads().fill(protocol, payload)
    except ScriptError as error:
        raise Misused(str(error)) from None
    except Rejected as refused:
        faults = "; ".join(f"{fault.pointer}: {fault.message}" for fault in refused.faults)
        raise Misused(f"--input would be refused: {faults or refused.detail}") from None
    tools = open_tools()
    with RehearsedCalls(tools) as calls:
        rehearsal = rehearse(
            protocol, filled, scripted, tools=tools, calls=calls, seed=seed, limits=limits, start=start
        )
    return report_of(rehearsal)


# Rendering


def show(console: Console, report: Report) -> None:
    timeline = render.table(("TIME", {"justify": "right", "no_wrap": True}), ("STEP", {"no_wrap": True}), "WHAT")
    for entry in report.timeline:
        timeline.add_row(elapsed(entry.at_ms), entry.step_id or "", _entry_text(entry))
    console.print(timeline)
    console.print()
    console.print(_steps(report))
    console.print()
    for line in _summary(report):
        console.print(line, soft_wrap=True)


_STYLES = {
    "WAITS": "dim",
    "STEP_RETRY_SCHEDULED": "yellow",
    "STEP_FAILED": "red",
    "STEP_CANCELLED": "yellow",
    "STEP_REJECTED": "red",
    "STEP_SUCCEEDED": "green",
    "STEP_APPROVED": "green",
    "JOB_SUCCEEDED": "green",
    "JOB_FAILED_FINAL": "red",
    "JOB_CANCELLED": "yellow",
    "REVIEW_OPENED": "magenta",
    "REFUSED": "yellow",
}


def _entry_text(entry: TimelineEntry) -> Text:
    return Text(f"… {entry.text}" if entry.event == "WAITS" else entry.text, style=_STYLES.get(entry.event, ""))


def _steps(report: Report) -> Any:
    lines = []
    for step in report.steps:
        ends = ", ".join(_counted(attempt.outcome or "running" for attempt in step.attempts))
        visits = str(step.visits) if step.visits else ""
        status = render.status_text(step.status)
        lines.append(render.ListingRow((step.step_id, step.kind, status, visits, ends, _outcome(step))))
    return render.listing(("STEP", "KIND", "STATUS", "VISITS", "ATTEMPTS", "OUTCOME"), lines)


def _counted(words: Iterable[str]) -> Iterable[str]:
    """Yield `FAILED ×2` for FAILED, FAILED."""
    for word, same in groupby(words):
        times = sum(1 for _ in same)
        yield word if times == 1 else f"{word} ×{times}"


def _outcome(step: StepLine) -> str:
    if step.error is not None and step.status != "SUCCEEDED":
        return shortened(f"{step.error.code}: {step.error.message}", 100)
    return shortened(script.as_json(step.result), 100) if step.result is not None else ""


def _summary(report: Report) -> list[Text | str]:
    legs = [f"{leg.step_id} ({leg.because.split(' ')[0]})" if leg.because else leg.step_id for leg in report.path]
    if len(legs) > MAX_LEGS:
        legs[MAX_LEGS // 2 : -MAX_LEGS // 2] = [f"… {len(legs) - MAX_LEGS} more …"]
    lines: list[Text | str] = [f"Path: {' → '.join(legs)}"]
    if report.undone:
        lines.append(f"Undone, in this order: {', '.join(report.undone)}")
    if report.not_undone:
        lines.append(f"Not undone: {', '.join(report.not_undone)}")
    for item in report.reviews:
        why = f"{item.error.code} in {item.step_id}" if item.error else item.step_id or ""
        lines.append(f"Review item {item.status}: {item.kind}, {why}")
    lines += [Text(f"Note: {note}", style="yellow") for note in report.notes]
    return [*lines, _verdict(report)]


def _verdict(report: Report) -> Text:
    took = f"after {duration(report.took_ms)} of virtual time, with {render.plural(report.attempts_total, 'attempt')}"
    if report.stands_still:
        return Text(f"Would wait for ever, {took}: {report.stands_still}", style="yellow")
    if report.cut_off:
        return Text(f"Stopped {took}: {report.cut_off}", style="yellow")
    why = f": {report.error.message or report.error.code} [{report.error.code}]" if report.error else ""
    return Text(f"{report.status} {took}{why}", style=render.STYLES.get(report.status, ""))
