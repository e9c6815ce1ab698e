"""The quickstart and the tutorial work as written: their commands run, and print what the pages show."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from tests.e2e.support import REPO, until
from tests.e2e.test_dev import Dev

DOCS = REPO / "docs"
JOB_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNS_UNTIL_STOPPED = "lucius service "
STARTED_BY_THE_TEST = "lucius dev"


class Command(Struct, frozen=True):
    """A command of a page, and the output that the page shows for it; `…` stands for any text or lines."""

    line: str
    shown: str


def commands_of(page: Path) -> list[Command]:
    found = []
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.replace("\\\n", "").partition("\n")
            found.append(Command(line, shown.strip()))
    return found


def matches(shown: str, printed: str) -> bool:
    parts = [re.escape(" ".join(part.split())) for part in shown.split("…")]
    return re.search(".*".join(parts), " ".join(printed.split()), re.DOTALL) is not None


class Walk:
    """Runs the commands of a page in one folder, beside a `lucius dev`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job_id = ""
        self._services: list[subprocess.Popen[bytes]] = []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
        self._env = kept | {"PATH": path, "COLUMNS": "200"}

    def run(self, command: Command) -> None:
        line = command.line.replace("JOB", self.job_id)
        if line.startswith(RUNS_UNTIL_STOPPED):
            self._services.append(subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=self.folder, env=self._env))
            return
        if line.startswith("lucius explain"):  # the job gets there by itself
            until(lambda: matches(command.shown, self._output(line)), f"{line}: {command.shown}", 30)
            return
        printed = self._output(line, exit_code=int("FAILED_FINAL" in command.shown and "--wait" in line))
        assert matches(command.shown, printed), f"{line}\n{printed}\nis not\n{command.shown}"
        if line.startswith("lucius submit"):
            found = JOB_ID.search(printed)
            assert found, printed
            self.job_id = found[0]

    def _output(self, line: str, exit_code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == exit_code, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        for service in self._services:
            service.send_signal(signal.SIGTERM)
        for service in self._services:
            service.wait(20)


@contextmanager
def walk_beside_dev(folder: Path) -> Iterator[Walk]:
    shutil.copytree(REPO / "examples" / "tutorial", folder / "examples" / "tutorial")
    dev, walk = Dev(folder, "--port", "0"), Walk(folder)
    try:
        yield walk
    finally:
        walk.stop()
        dev.kill()


@pytest.mark.parametrize("page", ["quickstart.md", "tutorial.md"])
def test_commands_of_the_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    commands = commands_of(DOCS / page)
    assert commands[0].line == STARTED_BY_THE_TEST
    with walk_beside_dev(tmp_path) as walk:
        for command in commands[1:]:
            walk.run(command)


def test_code_in_the_tutorial_is_the_code_of_the_example() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code in (REPO / "examples" / "tutorial" / "totals_service.py").read_text(encoding="utf-8")
