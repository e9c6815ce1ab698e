"""Every command answers `--help` fast, without importing what only its work needs."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.core import TyperGroup

from lucius.cli.main import COMMANDS
from tests.integration.cli.support import lucius

MAX_CPU_SECONDS = 0.3
MAX_OVER_FLOOR = 1.8  # limit on a machine so busy that importing the two libraries takes most of that time
TRIES = 5  # load only makes a process slower, so the fastest try counts
HEAVY = (
    "aiohttp",
    "pydantic",
    "rich",
    "structlog",
    "fastapi",
    "uvicorn",
    "lucius.bootstrap.settings",
    "lucius.authoring",
)
ASK = f"""
import sys
from lucius.cli.main import app
try:
    app(sys.argv[1:], prog_name="lucius")
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


def _names() -> Iterator[str]:
    yield ""
    for lazy in COMMANDS:
        yield lazy.name
        command = lazy.load()
        if isinstance(command, TyperGroup):
            yield from (f"{lazy.name} {name}" for name in command.commands)


def _named_by(line: str) -> str:
    """Return the command within a line that has values and options too."""
    return max((name for name in _names() if f" {name} " in f" {line} "), key=len, default="")


def _run(*arguments: str) -> tuple[float, str, str]:
    """Run Python; return its CPU seconds, stdout and stderr."""
    words = [sys.executable, *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        out, err = child.stdout.read().decode(), child.stderr.read().decode()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, err
    return used.ru_utime + used.ru_stime, out, err.strip()


WITH_VALUES = [
    "service ocr",
    "explain 01a1ef38",
    "--url http://x jobs show 01a1ef38 --items",
    "submit OCR --tenant acme --payload={}",
    "review skip a~run1 -y",
]


@pytest.mark.parametrize("command", [*_names(), *WITH_VALUES])
def test_help_needs_little_cpu_and_imports_nothing_heavy(command: str) -> None:
    fastest = floor = float("inf")
    for _ in range(TRIES):
        seconds, answer, imported = _run("-c", ASK, *command.split(), "--help")
        assert answer.startswith(f"Usage: lucius {_named_by(command)}".rstrip())
        assert imported == "[]"
        fastest = min(fastest, seconds)
        if fastest < MAX_CPU_SECONDS:
            return
        floor = min(floor, _run("-c", "import typer, msgspec")[0])
        if fastest < floor * MAX_OVER_FLOOR:
            return
    pytest.fail(f"lucius {command} --help took {fastest:.2f} s of CPU, its libraries alone {floor:.2f} s")


@pytest.mark.parametrize("command", list(_names()))
def test_help_fits_80_columns(command: str) -> None:
    lines = lucius(*command.split(), "--help", env={"COLUMNS": "80"}).stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_list_of_commands_has_the_help_of_each() -> None:
    for lazy in COMMANDS:
        command = lazy.load()
        told = " ".join((command.help or "").split("\n\n")[0].split())
        assert told == lazy.help, lazy.name


def test_help_is_equal_with_options_before_it() -> None:
    assert lucius("--url", "http://x", "jobs", "list", "--help").stdout == lucius("jobs", "list", "-h").stdout


@pytest.mark.parametrize(("line", "command"), [("jobs -h list", "jobs"), ("submit --help OCR", "submit")])
def test_help_may_be_asked_for_anywhere(line: str, command: str) -> None:
    assert lucius(*line.split()).stdout == lucius(command, "--help").stdout


@pytest.mark.parametrize("line", ["jobs list --bogus --help", "jobs list -- --help", "bogus --help"])
def test_help_does_not_hide_misuse(line: str) -> None:
    assert lucius(*line.split()).exit_code == 2


def test_version_comes_before_help() -> None:
    assert lucius("--version", "--help").stdout.startswith("lucius ")


def test_list_of_commands_is_not_cut() -> None:
    groups = [lazy.name for lazy in COMMANDS if isinstance(lazy.load(), TyperGroup)]
    for group in groups:
        said = lucius(group, "--help", env={"COLUMNS": "80"}).stdout
        assert "..." not in said.partition("Commands:")[2], said
    assert len(groups) > 5
    review = " ".join(lucius("review", "--help").stdout.split())
    assert "retry Retry as a new run from the failed step or an earlier one; earlier results are kept." in review


def test_misspelt_command_gets_a_suggestion() -> None:
    result = lucius("job", "list")
    assert result.exit_code == 2
    assert "Did you mean 'jobs'?" in result.stderr
