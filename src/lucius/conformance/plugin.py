"""pytest plugin of the kit: `pytest --lucius-service-command "python -m mysvc"` makes each case a test.

Every option can be set in the ini file too (`lucius_service_command = python -m mysvc`); `python` in the command is
the interpreter that runs pytest. Without a command the plugin does nothing. The kit is imported only if there are
cases to play, and only this module of it imports pytest.
"""

import asyncio
import sys
import threading
import warnings
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from lucius.conformance.model import CaseReport, Options


STOP_SECONDS = 10.0
PYTHON = ("python", "python3")
NUMBERS = {"ack_seconds": float, "start_seconds": float, "patience": float, "side_by_side": int}


class Setting(NamedTuple):
    name: str
    help: str
    many: bool = False


SETTINGS = (
    Setting("service_command", "command that starts the platform service; without it there are no conformance tests"),
    Setting("service", "name of the service; by default the one it pulls for"),
    Setting("step_type", "by default the service's name in capitals"),
    Setting("payload", "payload of a step: JSON, or @FILE"),
    Setting("slow_payload", "a payload that takes some seconds; by default LUCIUS_SERVICE_DELAY is set"),
    Setting("bad_payload", "a payload with which no attempt can succeed"),
    Setting("input", "input document; a few lines of text by default"),
    Setting("bus", "bus: `local:`, the default, or `redis://…`, which needs `service`"),
    Setting("ack_seconds", "seconds from hand-over to the ACK deadline; 3 by default"),
    Setting("start_seconds", "seconds from a start to the first pull; 30 by default"),
    Setting("patience", "extra seconds to wait for an expected event, such as a RESULT; 15 by default"),
    Setting("side_by_side", "concurrent cases; 4 by default"),
    Setting("strict", "`true`: a WARN also fails the test"),
    Setting("env", "NAME=VALUE for the service", many=True),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lucius", "Lucius conformance kit")
    for setting in SETTINGS:
        option = f"--lucius-{setting.name.replace('_', '-')}"
        action = "append" if setting.many else "store"
        group.addoption(option, dest=f"lucius_{setting.name}", default=None, action=action, help=setting.help)
        kind: Any = "linelist" if setting.many else "string"
        parser.addini(f"lucius_{setting.name}", setting.help, type=kind, default=None)


@pytest.hookimpl(tryfirst=True)  # -k and -m select among these too
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _setting(config, "service_command"):
        return
    from lucius.conformance.model import Misuse  # noqa: PLC0415 - only if there are cases to play

    try:
        shared = _Shared(_options(config), alone=hasattr(config, "workerinput"))
    except Misuse as misuse:
        raise pytest.UsageError(str(misuse).replace("--", "--lucius-", 1)) from None
    config.add_cleanup(shared.stop)
    kit = _Kit.from_parent(session, name="conformance", nodeid="conformance", shared=shared)
    collected = session.ihook.pytest_make_collect_report(collector=kit)
    session.ihook.pytest_collectreport(report=collected)  # corrects the number of collected tests
    items.extend(collected.result)


def _setting(config: pytest.Config, name: str) -> Any:
    value = config.getoption(f"lucius_{name}")
    return config.getini(f"lucius_{name}") if value is None else value


def _options(config: pytest.Config) -> "Options":
    from lucius.conformance.model import Misuse  # noqa: PLC0415
    from lucius.conformance.options import options_of  # noqa: PLC0415

    values = {setting.name: _setting(config, setting.name) for setting in SETTINGS}
    given = {name: value for name, value in values.items() if value not in (None, "", [])}
    try:
        for name, kind in NUMBERS.items():
            if name in given:
                given[name] = kind(given[name])
    except ValueError:
        raise Misuse(f"--{name.replace('_', '-')} must be a number, not {given[name]!r}") from None
    if "input" in given:
        given["input_file"] = given.pop("input")
    given["strict"] = str(given.get("strict", "")).lower() in ("1", "true", "yes", "on")
    return _with_our_python(options_of(**given))


def _with_our_python(options: "Options") -> "Options":
    """Replace `python` in the command by the running interpreter.

    `.venv/bin/pytest` does not put its environment's `python` on PATH, and another one may lack the service.
    """
    from msgspec.structs import replace  # noqa: PLC0415

    program, *arguments = options.command
    return replace(options, command=[sys.executable, *arguments]) if program in PYTHON else options


class _Kit(pytest.Collector):
    """Collector of the cases, which belong to no file."""

    def __init__(self, *, shared: "_Shared", **more: Any) -> None:
        super().__init__(**more)
        self._shared = shared

    def collect(self) -> "list[pytest.Item]":
        from lucius.conformance.cases import all_cases  # noqa: PLC0415

        return [_Item.from_parent(self, name=case.id, shared=self._shared) for case in all_cases()]


class _Item(pytest.Item):
    def __init__(self, *, shared: "_Shared", **more: Any) -> None:
        super().__init__(**more)
        self._shared = shared

    def runtest(self) -> None:
        report = self._shared.report_of(self.name, self.session)
        match report.outcome.value:
            case "SKIPPED":
                pytest.skip(report.seen)
            case "WARN" if not self._shared.strict:
                warnings.warn(f"{report.id}: {report.seen}", ConformanceWarning, stacklevel=1)
            case "PASS":
                pass
            case _:
                raise NotConforming(report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if not isinstance(excinfo.value, NotConforming):
            return super().repr_failure(excinfo, style)
        report = excinfo.value.report
        lines = [f"{report.outcome.label}: {report.title}", report.seen, f"read {report.read}"]
        if report.log_tail:
            lines += ["the service's last lines:", *(f"  | {line}" for line in report.log_tail)]
        return "\n".join(lines)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self.path, None, f"conformance::{self.name}"


class ConformanceWarning(UserWarning):
    """The service keeps the contract but is improvable."""


class NotConforming(Exception):
    def __init__(self, report: "CaseReport") -> None:
        super().__init__(report.seen)
        self.report = report


class _Shared:
    """Run of all selected cases: the first test starts them concurrently, each test waits for its own.

    A worker of pytest-xdist does not know which tests it will get, so there each is played `alone`.
    """

    def __init__(self, options: "Options", *, alone: bool) -> None:
        self.strict = options.strict
        self._options = options
        self._alone = alone
        self._reports: dict[str, Future[CaseReport]] = {}
        self._playing: list[tuple[threading.Thread, asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    def report_of(self, case_id: str, session: pytest.Session) -> "CaseReport":
        if case_id not in self._reports:
            chosen = [item.name for item in session.items if isinstance(item, _Item)]
            self._play([case_id] if self._alone else chosen)
        return self._reports[case_id].result()

    def _play(self, ids: list[str]) -> None:
        self._reports |= {case_id: Future() for case_id in ids}
        threading.Thread(target=self._work, args=(ids,), daemon=True).start()

    def _work(self, ids: list[str]) -> None:
        from lucius.conformance.run import choose, run  # noqa: PLC0415

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._playing.append((threading.current_thread(), asyncio.get_running_loop(), task))
            await run(self._options, choose(ids), on_end=lambda report: self._reports[report.id].set_result(report))

        try:
            asyncio.run(work())
        except BaseException as error:  # noqa: BLE001 - raised in the tests that wait
            for case_id in ids:
                if not self._reports[case_id].done():
                    self._reports[case_id].set_exception(error)

    def stop(self) -> None:
        """Cancel running cases at the end of the session, so that no service process outlives it."""
        for thread, loop, task in self._playing:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
            thread.join(STOP_SECONDS)
