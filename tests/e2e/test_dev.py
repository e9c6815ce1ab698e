"""`lucius dev`: one command, the whole stack, and nothing left behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import Api, until
from tests.support.ports import free_port

LUCIUS = (sys.executable, "-m", "lucius.cli")
STOPS_WITHIN = 8.0


class Dev:
    """`lucius dev` as someone types it, in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self.folder = folder
        self.output = folder / "dev.out"
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")} | env
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                [*LUCIUS, "dev", *self._arguments],
                cwd=self.folder,
                env=self._env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            until(self._ready, "lucius dev is ready", 60)
        except AssertionError:
            self.kill()
            raise

    def _ready(self) -> bool:
        assert self.process.poll() is None, self.said
        return "Ctrl-C stops it" in self.said

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def lucius(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LUCIUS, *arguments],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        done = self.lucius(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def services(self) -> dict[str, int]:
        """Its service processes, by name."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                words = _command_line(entry)
                if "service" in words and _parent(entry) == self.process.pid:
                    found[words[words.index("service") + 1]] = int(entry.name)
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _command_line(entry: Path) -> list[str]:
    try:
        return (entry / "cmdline").read_text().split("\0")
    except OSError:  # gone meanwhile
        return []


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _gone(pid: int) -> bool:
    """No such process, or one that only waits to be reaped."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def started() -> Iterator[list[Dev]]:
    stacks: list[Dev] = []
    yield stacks
    for dev in stacks:
        if dev.process.poll() is None:
            dev.kill()


def test_the_whole_stack_does_a_job_mends_itself_and_stops(started: list[Dev], tmp_path: Path) -> None:
    dev = Dev(tmp_path, "--port", "0")
    started.append(dev)

    job_id = _paste_curl(dev.said)
    assert _paste_curl(dev.said) == job_id
    shown = until(lambda: _ended(dev, job_id), "the pasted job has ended")
    assert shown["status"] == "SUCCEEDED", shown
    assert (tmp_path / ".lucius/blobs/out/contract.json").stat().st_size > 0

    (tmp_path / "letter.txt").write_text("The supplier shall deliver nine lamps. The customer pays in May.")
    done = dev.lucius(
        *("submit", "OCR_EMBEDDING_SIS", "--tenant", "acme", "--input", "letter.txt", "--output", "out.json"),
        *("--prompt", "Who pays?", "--wait"),
    )
    assert done.returncode == 0, done.stderr
    assert "pays in May" in (tmp_path / "out.json").read_text()

    victim = until(dev.services, "services")["ocr"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: dev.services().get("ocr", victim) != victim, "ocr runs again")

    services = until(lambda: found if len(found := dev.services()) == 3 else None, "three services")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(STOPS_WITHIN) == 0, dev.said
    assert all(_gone(pid) for pid in services.values())
    assert "Traceback" not in dev.said


def _paste_curl(said: str) -> str:
    """What the printed curl would do."""
    printed = said[said.index("curl -sS") : said.index("\n\nThen")]
    words = shlex.split(printed.replace("\\\n", " "))
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    request = urllib.request.Request(words[2], words[words.index("-d") + 1].encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 202
        return str(json.load(answer)["jobId"])


def _ended(dev: Dev, job_id: str) -> Any:
    shown = dev.json("jobs", "show", job_id)
    return shown if shown["completed_at"] else None


def test_a_killed_control_plane_comes_back_on_its_folder(started: list[Dev], tmp_path: Path) -> None:
    port = free_port()
    key = "given-key"
    dev = Dev(tmp_path, "--port", str(port), "--data-dir", "d", "--no-services", LUCIUS_DEV_API_KEY=key)
    started.append(dev)
    api = Api(f"http://127.0.0.1:{port}", key)
    command = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")
    job_id = dev.json("--data-dir", "d", *command)["jobId"]
    dev.kill()
    unreachable = dev.lucius("--data-dir", "d", "explain", job_id)
    assert unreachable.returncode == 3
    assert unreachable.stderr.count("\n") == 1

    dev.start()
    assert api.ready()
    (directive,) = api.pull("ocr")
    assert directive["jobId"] == job_id
    assert directive["callback_urls"]["ack"].startswith(f"http://127.0.0.1:{port}/")
    assert "until" in dev.lucius("--data-dir", "d", "explain", job_id).stdout
    assert dev.services() == {}


def test_services_do_not_outlive_a_killed_parent(started: list[Dev], tmp_path: Path) -> None:
    dev = Dev(tmp_path, "--port", "0")
    started.append(dev)
    services = until(lambda: found if len(found := dev.services()) == 3 else None, "three services")
    dev.kill()
    until(lambda: all(_gone(pid) for pid in services.values()), "the services are gone too")
