"""`lucius simulate`: what a protocol would do, on a virtual clock and without a server."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from lucius.authoring.report import Report, StepLine, report_of
from lucius.authoring.script import Script, ScriptError, check
from lucius.authoring.simulate import MIDNIGHT, USUAL_LIMITS, Limits
from lucius.authoring.simulate import simulate as rehearse
from lucius.authoring.timeline import Entry
from lucius.authoring.words import duration, elapsed, shortened
from lucius.cli import render, script
from lucius.cli.errors import Misused, Unsuccessful, guarded
from lucius.cli.jobs import AsJson
from lucius.cli.protocol_files import read_file
from lucius.core.model import Instant
from lucius.core.protocol import Protocol

Many = list[str] | None

MAX_LEGS = 20


def simulate(
    file: Annotated[Path, typer.Argument(help="A YAML or JSON file")],
    input_: Annotated[str, typer.Option("--input", help="The command's payload: JSON, or @FILE")] = "{}",
    fail: Annotated[
        Many, typer.Option(metavar="STEP:CLASS[:TIMES]", help="Attempts that fail, as in ocr:TRANSIENT:2")
    ] = None,
    timeout: Annotated[
        Many,
        typer.Option(metavar="STEP[:ack|lease|step][:TIMES]", help="Attempts that are not acknowledged, or not ended"),
    ] = None,
    result: Annotated[
        Many, typer.Option(metavar="STEP=JSON", help="What a task gives back, or the body that a call is answered with")
    ] = None,
    respond: Annotated[Many, typer.Option(metavar="STEP=STATUS[:JSON]", help="How a call is answered")] = None,
    guard: Annotated[
        Many, typer.Option(metavar="STEP=STATUS[:JSON]", help="How a call's guard is answered; 404 if absent")
    ] = None,
    duration_: Annotated[
        Many, typer.Option("--duration", metavar="STEP=SECONDS", help="How long an attempt takes; a second if absent")
    ] = None,
    approve: Annotated[
        Many, typer.Option(metavar="STEP[=WHO[:GROUP]][@TIME]", help="A yes; without WHO, of as many as are needed")
    ] = None,
    reject: Annotated[
        Many, typer.Option(metavar="STEP[=WHO[:GROUP]][@TIME]", help="A no; comes before any yes")
    ] = None,
    signal: Annotated[Many, typer.Option(metavar="NAME[=JSON][@TIME]", help="A signal")] = None,
    pause_at: Annotated[Many, typer.Option(metavar="TIME", help="Since the start: 90, 10m, 2h, 7d")] = None,
    resume_at: Annotated[Many, typer.Option(metavar="TIME")] = None,
    cancel_at: Annotated[Many, typer.Option(metavar="TIME")] = None,
    seed: Annotated[int, typer.Option(help="Of the jitter in retry delays")] = 0,
    start: Annotated[str | None, typer.Option(help="When it is at the start; midnight of 2026-01-01 if absent")] = None,
    max_time: Annotated[str, typer.Option(metavar="TIME", help="Stop there")] = "366d",
    as_json: AsJson = False,
) -> None:
    """Run a protocol on a virtual clock, with services, calls and people that do as you say, and tell what happens.

    Services acknowledge and succeed, calls are answered with 200, and nobody approves, unless you say otherwise.
    STEP is a step's id, or `ocr.3` for one map item. What is said several times holds for one attempt (or visit)
    after the other, and the last answer for all that follow.
    """

    def work() -> Report:
        protocol = read_file(file).protocol
        told = script.script_of(
            protocol,
            fail=fail,
            timeout=timeout,
            result=result,
            respond=respond,
            guard=guard,
            lasts=duration_,
            approve=approve,
            reject=reject,
            signal=signal,
            asked=script.asked_of(pause_at, resume_at, cancel_at),
        )
        at = script.instant("--start", start) if start else MIDNIGHT
        limits = Limits(max_time=script.millis("--max-time", max_time))
        return simulated(protocol, read_input(input_), told, seed=seed, limits=limits, start=at)

    report = guarded(work)
    if as_json:
        render.print_json(report)
    else:
        _show(render.out(), report)
    if report.cut_off:
        guarded(lambda: _give_up(report))


def _give_up(report: Report) -> None:
    raise Unsuccessful(f"the simulation was stopped: {report.cut_off}")


def read_input(given: str) -> dict[str, Any]:
    """Raises Misused."""
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Misused(f"can't read --input from {given[1:]}: {error}") from None
    value = script.json_value("--input", text)
    if not isinstance(value, dict):
        raise Misused("--input must be an object")
    return value


def simulated(
    protocol: Protocol,
    payload: dict[str, Any],
    told: Script,
    *,
    seed: int = 0,
    limits: Limits = USUAL_LIMITS,
    start: Instant = MIDNIGHT,
) -> Report:
    """With the expressions, payload checks and calls of a real deployment. Raises Misused."""
    from lucius.adapters.expressions import CelTools  # noqa: PLC0415 - these are slow to load
    from lucius.cli.rehearsed_calls import RehearsedCalls  # noqa: PLC0415
    from lucius.service.errors import Rejected  # noqa: PLC0415
    from lucius.service.payloads import Payloads  # noqa: PLC0415

    try:
        check(told, protocol)
        filled = Payloads().fill(protocol, payload)
    except ScriptError as error:
        raise Misused(str(error)) from None
    except Rejected as refused:
        faults = "; ".join(f"{fault.pointer}: {fault.message}" for fault in refused.faults)
        raise Misused(f"--input would be refused: {faults or refused.detail}") from None
    tools = CelTools()
    with RehearsedCalls(tools) as calls:
        rehearsal = rehearse(protocol, filled, told, tools=tools, calls=calls, seed=seed, limits=limits, start=start)
    return report_of(rehearsal)


# For people


def _show(console: Console, report: Report) -> None:
    timeline = render.table(("TIME", {"justify": "right", "no_wrap": True}), ("STEP", {"no_wrap": True}), "WHAT")
    for entry in report.timeline:
        timeline.add_row(elapsed(entry.at_ms), entry.step_id or "", _told(entry))
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


def _told(entry: Entry) -> Text:
    return Text(f"… {entry.text}" if entry.event == "WAITS" else entry.text, style=_STYLES.get(entry.event, ""))


def _steps(report: Report) -> Any:
    made = render.table("STEP", "KIND", "STATUS", "VISITS", "ATTEMPTS", "CAME TO")
    for step in report.steps:
        ends = ", ".join(_counted(attempt.outcome or "at work" for attempt in step.attempts))
        visits = str(step.visits) if step.visits else ""
        made.add_row(step.step_id, step.kind, render.status_text(step.status), visits, ends, _came_to(step))
    return made


def _counted(words: Iterable[str]) -> Iterable[str]:
    """`FAILED ×2` for FAILED, FAILED."""
    for word, same in groupby(words):
        times = sum(1 for _ in same)
        yield word if times == 1 else f"{word} ×{times}"


def _came_to(step: StepLine) -> str:
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
