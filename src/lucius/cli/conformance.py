"""`lucius conformance`: runs the conformance kit against a service and prints its report."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lucius.cli import render
from lucius.cli.errors import Misused, guarded
from lucius.cli.session import AsJson

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

    from lucius.conformance.case import Case
    from lucius.conformance.model import CaseReport, Options, Report

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "NOT_SHOWN": "magenta", "SKIPPED": "dim"}
UNSUCCESSFUL = 1


def conformance(
    service_command: Annotated[
        str | None, typer.Option(help='Command that starts the service, for example "python -m mysvc"')
    ] = None,
    service: Annotated[str | None, typer.Option(help="Name of the service; by default the one it pulls for")] = None,
    step_type: Annotated[str | None, typer.Option(help="Step type; by default the service's name in capitals")] = None,
    payload: Annotated[str | None, typer.Option(help="Payload of a step: JSON, or @FILE; {} by default")] = None,
    slow_payload: Annotated[
        str | None, typer.Option(help="Payload that takes some seconds, for services that ignore LUCIUS_SERVICE_DELAY")
    ] = None,
    bad_payload: Annotated[
        str | None, typer.Option(help="Payload with which no attempt can succeed; one case needs it")
    ] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="Input document; a few lines of text by default")
    ] = None,
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="Run only this case; may be repeated")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the cases")] = False,
    as_json: AsJson = False,
    report: Annotated[Path | None, typer.Option(help="Also write the JSON report to this file")] = None,
    ack_seconds: Annotated[float, typer.Option(help="Seconds from hand-over to the ACK deadline")] = 3.0,
    start_seconds: Annotated[float, typer.Option(help="Maximum seconds from a start to the first pull")] = 30.0,
    patience: Annotated[
        float, typer.Option(help="Extra seconds to wait for an expected event, such as a RESULT")
    ] = 15.0,
    side_by_side: Annotated[int, typer.Option(help="Maximum number of concurrent cases", min=1, max=32)] = 4,
    bus: Annotated[str, typer.Option(help="Bus: local: or redis://…")] = "local:",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Environment variable of the service; may be repeated"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A WARN also fails the run")] = False,
    keep: Annotated[Path | None, typer.Option(help="Keep each case's log, files and requests in this folder")] = None,
) -> None:
    """Test a service in any language against the contract; the kit acts as the orchestrator.

    Exit code 0 if every case passed, 1 if one failed or ended NOT SHOWN (the service gave no occasion), 2 for wrong
    usage.
    """
    from lucius.conformance.model import Misuse  # noqa: PLC0415
    from lucius.conformance.options import options_of  # noqa: PLC0415 - nothing else needs the kit
    from lucius.conformance.run import choose  # noqa: PLC0415

    def parse() -> "tuple[list[Case], Options]":
        if service_command is None and not list_:
            raise Misused("--service-command is required")
        try:
            options = options_of(
                service_command=service_command or "none",
                service=service,
                step_type=step_type,
                payload=payload,
                slow_payload=slow_payload,
                bad_payload=bad_payload,
                input_file=input_,
                bus=bus,
                env=env or (),
                ack_seconds=ack_seconds,
                start_seconds=start_seconds,
                patience=patience,
                side_by_side=side_by_side,
                strict=strict,
                keep=keep,
            )
            return choose(case), options
        except Misuse as misuse:
            raise Misused(str(misuse)) from None

    cases, options = guarded(parse)
    if list_:
        _show_list(cases, as_json)
    else:
        _run_cases(cases, options, as_json, report)


def _show_list(cases: "list[Case]", as_json: bool) -> None:
    if as_json:
        render.print_json([{"id": case.id, "title": case.title, "read": case.read} for case in cases])
        return
    made = render.table("CASE", "REQUIREMENT")
    for case in cases:
        made.add_row(case.id, case.title)
    render.out().print(made)


def _run_cases(cases: "list[Case]", options: "Options", as_json: bool, file: Path | None) -> None:
    from lucius.conformance.model import Misuse  # noqa: PLC0415 - nothing else needs the kit
    from lucius.conformance.run import run  # noqa: PLC0415

    async def play(progress: _ProgressDisplay) -> "Report":
        task = asyncio.current_task()
        assert task is not None
        with suppress(NotImplementedError):  # Windows
            # As Ctrl-C: a cancelled pipeline must not leave services behind.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await run(options, cases, on_begin=progress.on_begin, on_end=progress.on_end)

    def work() -> "Report":
        if file is not None:
            _require_writable(file)
        with _progress(render.err(), len(cases)) as progress:
            try:
                return asyncio.run(play(progress))
            except Misuse as misuse:
                raise Misused(str(misuse)) from None
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None

    report = guarded(work)
    if file is not None:
        import msgspec  # noqa: PLC0415

        file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if as_json:
        render.print_json(report)
    else:
        _show(render.out(), report)
    if not report.passed:
        raise typer.Exit(UNSUCCESSFUL)


def _require_writable(file: Path) -> None:
    """Raise Misused now rather than after half a minute if the report can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise Misused(f"can't write --report to {file}: {error.strerror}") from None


class _ProgressDisplay:
    """Shows progress: on a terminal a line that changes, in a pipe a line for each case that ends."""

    def __init__(self, console: "Console", total: int, status: "Status | None") -> None:
        self._console = console
        self._total = total
        self._status = status
        self._playing: list[str] = []
        self._done = 0

    def on_begin(self, case_id: str) -> None:
        self._playing = [name for name in self._playing if name != "rehearsal"] + [case_id]
        self._update_status()

    def on_end(self, report: "CaseReport") -> None:
        self._playing = [name for name in self._playing if name != report.id]
        self._done += 1
        if self._status is None:
            self._console.print(f"{report.outcome.label} {report.id} ({report.seconds:.1f} s)", soft_wrap=True)
        self._update_status()

    def _update_status(self) -> None:
        if self._status is not None:
            self._status.update(f"{self._done} of {self._total}: {', '.join(self._playing)}")


@contextmanager
def _progress(console: "Console", total: int) -> Iterator[_ProgressDisplay]:
    if not console.is_terminal:
        yield _ProgressDisplay(console, total, None)
        return
    with console.status("") as status:
        yield _ProgressDisplay(console, total, status)


def _show(console: "Console", report: "Report") -> None:
    from rich.text import Text  # noqa: PLC0415

    lines = [
        render.ListingRow([_case.id, _outcome(_case), f"{_case.seconds:.1f}", _case.seen or _case.title])
        for _case in report.cases
    ]
    console.print(render.listing(["CASE", "OUTCOME", "SECONDS", "WHAT WAS SEEN"], lines))
    shown: list[list[str]] = []
    for case in report.cases:
        if case.outcome in ("FAIL", "NOT_SHOWN"):
            _show_failure(console, case, case.log_tail not in shown)
            shown.append(case.log_tail)
    console.print()
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.counts.items())
    verdict = "keeps the contract" if report.passed else "does not keep the contract"
    name = report.service.name or "the service"
    text = f"{name} {verdict}: {render.plural(len(report.cases), 'case')} in {report.seconds:.1f} s, {counts}"
    console.print(Text(text, style="green" if report.passed else "bold red"), soft_wrap=True)


def _show_failure(console: "Console", case: "CaseReport", with_log: bool) -> None:
    from rich.text import Text  # noqa: PLC0415

    console.print()
    console.print(Text.assemble((case.id, "bold"), f": {case.title}"), soft_wrap=True)
    console.print(Text(f"  read {case.read}", style="dim"), soft_wrap=True)
    if with_log and case.log_tail:
        console.print(Text("  the service's last lines:", style="dim"))
        for line in case.log_tail:
            console.print(Text(f"    | {line}", style="dim"), soft_wrap=True)


def _outcome(case: "CaseReport") -> "Text":
    from rich.text import Text  # noqa: PLC0415

    return Text(case.outcome.label, style=STYLES[case.outcome])
