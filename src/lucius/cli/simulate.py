"""`lucius simulate`: shows what a protocol would do, on a virtual clock and without a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lucius.cli import render
from lucius.cli.errors import guarded
from lucius.cli.session import AsJson

if TYPE_CHECKING:
    from lucius.authoring.report import Report

Many = list[str] | None


def simulate(
    file: Annotated[Path, typer.Argument(help="YAML or JSON file")],
    input_: Annotated[str, typer.Option("--input", help="The command's payload: JSON, or @FILE")] = "{}",
    fail: Annotated[
        Many, typer.Option(metavar="STEP:CLASS[:TIMES]", help="Attempts fail, for example ocr:TRANSIENT:2")
    ] = None,
    timeout: Annotated[
        Many,
        typer.Option(
            metavar="STEP[:ack|lease|step][:TIMES]",
            help="Attempts miss the ACK deadline, the lease or the step timeout",
        ),
    ] = None,
    result: Annotated[
        Many, typer.Option(metavar="STEP=JSON", help="Result of a task, or response body of a call")
    ] = None,
    respond: Annotated[Many, typer.Option(metavar="STEP=STATUS[:JSON]", help="Response of a call")] = None,
    guard: Annotated[
        Many, typer.Option(metavar="STEP=STATUS[:JSON]", help="Response of a call's guard; 404 by default")
    ] = None,
    duration_: Annotated[
        Many, typer.Option("--duration", metavar="STEP=SECONDS", help="Duration of an attempt; 1 second by default")
    ] = None,
    approve: Annotated[
        Many,
        typer.Option(metavar="STEP[=WHO[:GROUP]][@TIME]", help="Approval; without WHO, by as many approvers as needed"),
    ] = None,
    reject: Annotated[
        Many, typer.Option(metavar="STEP[=WHO[:GROUP]][@TIME]", help="Rejection; takes precedence over approvals")
    ] = None,
    signal: Annotated[Many, typer.Option(metavar="NAME[=JSON][@TIME]", help="Signal to send")] = None,
    pause_at: Annotated[
        Many, typer.Option(metavar="TIME", help="Pause at this time since the start: 90, 10m, 2h, 7d")
    ] = None,
    resume_at: Annotated[Many, typer.Option(metavar="TIME", help="Resume at this time")] = None,
    cancel_at: Annotated[Many, typer.Option(metavar="TIME", help="Cancel at this time")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the jitter in retry delays")] = 0,
    start: Annotated[str | None, typer.Option(help="Clock time at the start; 2026-01-01T00:00:00Z by default")] = None,
    max_time: Annotated[str, typer.Option(metavar="TIME", help="Stop at this time since the start")] = "366d",
    as_json: AsJson = False,
) -> None:
    """Run a protocol on a virtual clock with scripted services, calls and approvers, and print what happens.

    By default services acknowledge and succeed, calls return 200, and approvals stay open. STEP is a step's id, or
    `ocr.3` for one map item. A repeated option applies to successive attempts (or visits), and its last value to all
    later ones.
    """

    from lucius.authoring.simulate import DEFAULT_START_MS, SimulationLimits  # noqa: PLC0415 - not needed for help
    from lucius.bootstrap.authoring import read_protocol_file  # noqa: PLC0415
    from lucius.cli import script  # noqa: PLC0415
    from lucius.cli.json_options import read_object  # noqa: PLC0415
    from lucius.cli.simulation import refuse_cut_off, show, simulate_protocol  # noqa: PLC0415

    def work() -> "Report":
        protocol = read_protocol_file(file).protocol
        scripted = script.script_of(
            protocol,
            fail=fail,
            timeout=timeout,
            result=result,
            respond=respond,
            guard=guard,
            durations=duration_,
            approve=approve,
            reject=reject,
            signal=signal,
            acts=script.asked_of(pause_at, resume_at, cancel_at),
        )
        at = script.instant("--start", start) if start else DEFAULT_START_MS
        limits = SimulationLimits(max_time_ms=script.millis("--max-time", max_time))
        return simulate_protocol(protocol, read_object("--input", input_), scripted, seed=seed, limits=limits, start=at)

    report = guarded(work)
    if as_json:
        render.print_json(report)
    else:
        show(render.out(), report)
    if report.cut_off:
        guarded(lambda: refuse_cut_off(report))
