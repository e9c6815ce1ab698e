"""How the command line fails: one line on stderr and an exit code, never a traceback.

CliError
├── Refused          1  the server said no; the line says what and where
├── Unsuccessful     1  what was asked for has been done and did not turn out well
├── Misused          2  the arguments or the environment make no sense
└── Unreachable      3  no control plane answers
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import typer

from lucius.contract import Problem
from lucius.ports.errors import LuciusError
from lucius.settings import SettingsError

T = TypeVar("T")
INTERRUPTED = 130


class CliError(Exception):
    exit_code = 1


class Refused(CliError):
    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(one_line(problem))
        self.status = status
        self.problem = problem


class Unsuccessful(CliError):
    pass


class Misused(CliError):
    exit_code = 2


class Unreachable(CliError):
    exit_code = 3


def one_line(problem: Problem) -> str:
    """What was refused and why, with a pointer for each fault."""
    faults = "; ".join(f"{fault.pointer}: {fault.message}" for fault in problem.errors)
    said = faults or problem.detail or problem.title
    job = f" (job {problem.jobId})" if problem.jobId and problem.jobId not in said else ""
    return f"{said}{job} [{problem.code}]"


def fail(message: str, exit_code: int) -> NoReturn:
    line = " ".join(message.split())
    red, plain = ("\x1b[31m", "\x1b[0m") if _colourful() else ("", "")
    typer.echo(f"{red}lucius:{plain} {line}", err=True)
    raise typer.Exit(exit_code)


def _colourful() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def run(work: Callable[[], Coroutine[Any, Any, T]], *, fast_loop: bool = False) -> T:
    """Do it, and turn what goes wrong into one line and an exit code."""
    return guarded(lambda: _in_loop(work, fast_loop))


def guarded(act: Callable[[], T]) -> T:
    try:
        return act()
    except CliError as error:
        fail(str(error), error.exit_code)
    except SettingsError as error:
        fail(str(error), Misused.exit_code)
    except LuciusError as error:
        fail(str(error), CliError.exit_code)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _in_loop(work: Callable[[], Coroutine[Any, Any, T]], fast_loop: bool) -> T:
    with asyncio.Runner(loop_factory=_fast_loop_factory() if fast_loop else None) as runner:
        return runner.run(work())


def _fast_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - an extra, and only for servers
    except ImportError:
        return None
    return uvloop.new_event_loop
