"""Errors of the command line, each printed as one line on stderr with an exit code.

CliError
├── ServerRefused      1  the server refused the request
├── Unsuccessful       1  the command was executed, with a negative outcome
├── Misused            2  invalid arguments or environment
└── ServerUnreachable  3  no control plane answers
"""

import os
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from lucius.terminal import strip_controls

if TYPE_CHECKING:
    import asyncio

    from lucius.contract import Problem

T = TypeVar("T")
INTERRUPTED = 130


class CliError(Exception):
    exit_code = 1


class ServerRefused(CliError):
    def __init__(self, problem: "Problem") -> None:
        super().__init__(one_line(problem))


class Unsuccessful(CliError):
    pass


class Misused(CliError):
    exit_code = 2


class ServerUnreachable(CliError):
    exit_code = 3


def one_line(problem: "Problem") -> str:
    """Return what was refused and why, with a pointer for each fault."""
    faults = "; ".join(f"{fault.pointer}: {fault.message}" for fault in problem.errors)
    reason = faults or problem.detail or problem.title
    job = f" (job {problem.jobId})" if problem.jobId and problem.jobId not in reason else ""
    return f"{reason}{job} [{problem.code}]"


def fail(message: str, exit_code: int) -> NoReturn:
    line = strip_controls(" ".join(message.split()))
    red, plain = ("\x1b[31m", "\x1b[0m") if _has_colour() else ("", "")
    typer.echo(f"{red}lucius:{plain} {line}", err=True)
    raise typer.Exit(exit_code)


def _has_colour() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def run(work: Callable[[], Coroutine[Any, Any, T]], *, fast_loop: bool = False) -> T:
    """Run a coroutine; report errors as one line and an exit code."""
    return guarded(lambda: _in_loop(work, fast_loop))


_NOT_UTF8 = "surrogates not allowed"
"""Reason why text can't be sent if Python had to read it from bytes that are not UTF-8."""


def guarded(act: Callable[[], T]) -> T:
    from lucius.ports.errors import ExpectedError, SettingsError  # noqa: PLC0415 - not needed for help

    try:
        return act()
    except CliError as error:
        fail(str(error), error.exit_code)
    except SettingsError as error:
        fail(str(error), Misused.exit_code)
    except ExpectedError as error:
        fail(str(error), CliError.exit_code)
    except UnicodeEncodeError as error:
        if error.reason != _NOT_UTF8:
            raise
        fail(f"an argument is not UTF-8 text: {error.object!a}", Misused.exit_code)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _in_loop(work: Callable[[], Coroutine[Any, Any, T]], fast_loop: bool) -> T:
    import asyncio  # noqa: PLC0415 - not needed for help

    with asyncio.Runner(loop_factory=_fast_loop_factory() if fast_loop else None) as runner:
        return runner.run(work())


def _fast_loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    try:
        import uvloop  # noqa: PLC0415 - an extra, and only for servers
    except ImportError:
        return None
    return uvloop.new_event_loop
