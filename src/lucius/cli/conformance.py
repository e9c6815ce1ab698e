"""`lucius conformance`: does a platform service keep the contract? The kit plays, this shows."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from lucius.cli import render
from lucius.cli.errors import Misused, guarded
from lucius.cli.jobs import AsJson

if TYPE_CHECKING:
    from lucius.conformance.cases import Case
    from lucius.conformance.model import CaseReport, Options, Report

STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "NOT_SHOWN": "magenta", "SKIPPED": "dim"}
UNSUCCESSFUL = 1


def conformance(
    service_command: Annotated[str | None, typer.Option(help='Starts the service, as in "python -m mysvc"')] = None,
    service: Annotated[str | None, typer.Option(help="Its name on the bus; by default the one it pulls for")] = None,
    step_type: Annotated[str | None, typer.Option(help="By default the service's name in capitals")] = None,
    payload: Annotated[str | None, typer.Option(help="What a step gets: JSON, or @FILE; {} if absent")] = None,
    slow_payload: Annotated[
        str | None, typer.Option(help="Takes some seconds; for services that don't heed LUCIUS_SERVICE_DELAY")
    ] = None,
    bad_payload: Annotated[str | None, typer.Option(help="Can't ever work; one case needs it")] = None,
    input_: Annotated[Path | None, typer.Option("--input", help="The document; a few lines of text if absent")] = None,
    case: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this one; may be repeated")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say which cases there are")] = False,
    as_json: AsJson = False,
    report: Annotated[Path | None, typer.Option(help="Write the machine-readable report here too")] = None,
    ack_seconds: Annotated[float, typer.Option(help="From hand-over to the ACK deadline")] = 3.0,
    start_seconds: Annotated[float, typer.Option(help="From a start to the first pull")] = 30.0,
    side_by_side: Annotated[int, typer.Option(help="Cases at a time", min=1, max=32)] = 4,
    bus: Annotated[str, typer.Option(help="How directives reach the service: local: or redis://…")] = "local:",
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the service")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A WARN fails too")] = False,
    keep: Annotated[Path | None, typer.Option(help="Leave each case's log, files and requests in this folder")] = None,
) -> None:
    """Play the orchestrator against a service in any language, and say what it gets wrong.

    Exit code 0 if every case passed, 1 if one failed or could not be shown, 2 for wrong usage.
    """
    from lucius.conformance.given import options_of  # noqa: PLC0415 - nothing else needs the kit
    from lucius.conformance.model import Misuse  # noqa: PLC0415
    from lucius.conformance.run import choose  # noqa: PLC0415

    def understood() -> "tuple[list[Case], Options]":
        if service_command is None and not list_:
            raise Misused("say how to start the service: --service-command")
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
                side_by_side=side_by_side,
                strict=strict,
                keep=keep,
            )
            return choose(case), options
        except Misuse as misuse:
            raise Misused(str(misuse)) from None

    cases, options = guarded(understood)
    if list_:
        _show_list(cases, as_json)
    else:
        _judge(cases, options, as_json, report)


def _show_list(cases: "list[Case]", as_json: bool) -> None:
    if as_json:
        render.print_json([{"id": case.id, "title": case.title, "read": case.read} for case in cases])
        return
    made = render.table("CASE", "DEMANDS")
    for case in cases:
        made.add_row(case.id, case.title)
    render.out().print(made)


def _judge(cases: "list[Case]", options: "Options", as_json: bool, file: Path | None) -> None:
    from lucius.conformance.model import Misuse  # noqa: PLC0415 - nothing else needs the kit
    from lucius.conformance.run import run  # noqa: PLC0415

    async def play(progress: _Progress) -> "Report":
        task = asyncio.current_task()
        assert task is not None
        with suppress(NotImplementedError):  # Windows
            # As Ctrl-C: a cancelled pipeline must not leave services behind.
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await run(options, cases, on_begin=progress.began, on_end=progress.ended)

    def work() -> "Report":
        if file is not None:
            _writable(file)
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


def _writable(file: Path) -> None:
    """Better to know before than after half a minute."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise Misused(f"can't write --report to {file}: {error.strerror}") from None


class _Progress:
    """On a terminal a line that changes; in a pipe a line for each case that ends."""

    def __init__(self, console: Console, total: int, status: Status | None) -> None:
        self._console = console
        self._total = total
        self._status = status
        self._playing: list[str] = []
        self._done = 0

    def began(self, case_id: str) -> None:
        self._playing = [name for name in self._playing if name != "rehearsal"] + [case_id]
        self._tell()

    def ended(self, report: "CaseReport") -> None:
        self._playing = [name for name in self._playing if name != report.id]
        self._done += 1
        if self._status is None:
            self._console.print(f"{report.outcome.words} {report.id} ({report.seconds:.1f} s)", soft_wrap=True)
        self._tell()

    def _tell(self) -> None:
        if self._status is not None:
            self._status.update(f"{self._done} of {self._total}: {', '.join(self._playing)}")


@contextmanager
def _progress(console: Console, total: int) -> Iterator[_Progress]:
    if not console.is_terminal:
        yield _Progress(console, total, None)
        return
    with console.status("") as status:
        yield _Progress(console, total, status)


def _show(console: Console, report: "Report") -> None:
    lines = [
        render.Line([_case.id, _outcome(_case), f"{_case.seconds:.1f}", _case.seen or _case.title])
        for _case in report.cases
    ]
    console.print(render.listing(["CASE", "OUTCOME", "SECONDS", "WHAT WAS SEEN"], lines))
    shown: list[list[str]] = []
    for case in report.cases:
        if case.outcome in ("FAIL", "NOT_SHOWN"):
            _show_trouble(console, case, case.log_tail not in shown)
            shown.append(case.log_tail)
    console.print()
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in report.counts.items())
    verdict = "keeps the contract" if report.passed else "does not keep the contract, as far as was seen"
    name = report.service.name or "the service"
    text = f"{name} {verdict}: {render.plural(len(report.cases), 'case')} in {report.seconds:.1f} s, {counts}"
    console.print(Text(text, style="green" if report.passed else "bold red"), soft_wrap=True)


def _show_trouble(console: Console, case: "CaseReport", with_log: bool) -> None:
    console.print()
    console.print(Text.assemble((case.id, "bold"), f": {case.title}"), soft_wrap=True)
    console.print(Text(f"  read {case.read}", style="dim"), soft_wrap=True)
    if with_log and case.log_tail:
        console.print(Text("  the service's last lines:", style="dim"))
        for line in case.log_tail:
            console.print(Text(f"    | {line}", style="dim"), soft_wrap=True)


def _outcome(case: "CaseReport") -> Text:
    return Text(case.outcome.words, style=STYLES[case.outcome])
