"""`lucius dev` starts the whole stack with one command and leaves nothing behind."""

import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.support import Api, until
from tests.support.ports import free_port
from tests.support.tls import Authority

LUCIUS = (sys.executable, "-m", "lucius.cli")
STOPS_WITHIN = 8.0


class Dev:
    """`lucius dev` in its own folder."""

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

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """Run `lucius …` in a second process until the block ends."""
        with open(self.folder / "beside.out", "w") as output:
            process = subprocess.Popen(
                [*LUCIUS, *arguments], cwd=self.folder, env=self._env, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def json(self, *arguments: str) -> Any:
        done = self.lucius(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def services(self) -> dict[str, int]:
        """Return the pids of its service processes, by name."""
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
    except OSError:  # the process has ended meanwhile
        return []


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _gone(pid: int) -> bool:
    """Return True if the process does not exist or is a zombie."""
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


@pytest.fixture
def https_document(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the ref of a document on a TLS server, and the CA to trust for it."""
    authority = Authority(tmp_path / "tls")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.server, authority.server_key)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "memo.txt").write_text("The meeting is on Friday.")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_port}/memo.txt", authority.ca
        server.shutdown()


def test_dev_runs_a_job_restarts_a_killed_service_and_stops_cleanly(
    started: list[Dev], tmp_path: Path, https_document: tuple[str, Path]
) -> None:
    ref, authority = https_document
    config = tmp_path / "config.yaml"
    config.write_text(f"refs: {{hosts: ['{urlsplit(ref).netloc}']}}\n")
    settings = {
        "LUCIUS_CONFIG": str(config),
        "LUCIUS_HTTPS_ALLOW_PRIVATE": "1",
        "LUCIUS_OCR_ENGINE": "off",
    }  # its scan takes long
    dev = Dev(tmp_path, "--port", "0", SSL_CERT_FILE=str(authority), **settings)
    started.append(dev)

    job_id = _paste_curl(dev.said)
    assert _paste_curl(dev.said) == job_id
    shown = until(lambda: _ended(dev, job_id), "the pasted job has ended", 90)
    assert shown["status"] == "SUCCEEDED", shown
    assert "1,240 euros" in (tmp_path / ".lucius/blobs/out/contract.json").read_text()
    folder = tmp_path / ".lucius"
    assert [path for path in (folder, *folder.rglob("*")) if path.exists() and path.stat().st_mode & 0o077] == []

    missing = (
        "submit",
        "OCR",
        "--tenant",
        "acme",
        "--input",
        "blob://in/missing.pdf",
        "--output",
        "blob://out/missing",
    )
    assert dev.lucius(*missing, "--wait").returncode != 0
    (failed,) = dev.json("jobs", "list", "--status", "FAILED_FINAL")["jobs"]
    assert failed["error"]["code"] == "INPUT_NOT_FOUND"

    fetched = dev.lucius(
        *("submit", "OCR", "--tenant", "acme", "--input", ref, "--output", "blob://out/memo", "--wait")
    )
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / ".lucius/blobs/out/memo").read_text() == "The meeting is on Friday."

    (tmp_path / "document.txt").write_text("The supplier shall deliver nine lamps. The customer pays in May.")
    done = dev.lucius(
        *("submit", "OCR_EMBEDDING_SIS", "--tenant", "acme", "--input", "document.txt", "--output", "out.json"),
        *("--prompt", "Who pays?", "--wait"),
    )
    assert done.returncode == 0, done.stderr
    assert "pays in May" in (tmp_path / "out.json").read_text()
    _assert_files_of_lucius_are_out_of_reach(dev)

    victim = until(dev.services, "services")["ocr"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: dev.services().get("ocr", victim) != victim, "ocr runs again")

    services = until(lambda: found if len(found := dev.services()) == 3 else None, "three services")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(STOPS_WITHIN) == 0, dev.said
    assert all(_gone(pid) for pid in services.values())
    assert "Traceback" not in dev.said


def _assert_files_of_lucius_are_out_of_reach(dev: Dev) -> None:
    """Assert that `file:` refs stay below the folder and off the server's files, even through links."""
    secret = dev.folder / ".lucius" / "token.secret"
    before = secret.read_bytes()
    (dev.folder / "innocent.txt").symlink_to(secret)
    for number, (given, output) in enumerate([("/etc/passwd", "o"), (str(secret), "o"), ("document.txt", str(secret))]):
        refused = dev.lucius("submit", "OCR", "--tenant", f"t{number}", "--input", given, "--output", output)
        assert refused.returncode != 0
        assert "FORBIDDEN_REF" in refused.stderr + refused.stdout
    for given, output in (("innocent.txt", "o.txt"), ("document.txt", "innocent.txt")):
        job_id = dev.json("submit", "OCR", "--tenant", "eve", "--input", given, "--output", output)["jobId"]
        shown = until(partial(_ended, dev, job_id), "the attack has ended")
        assert (shown["status"], shown["error"]["code"]) == ("FAILED_FINAL", "FORBIDDEN_REF"), shown
    assert secret.read_bytes() == before
    assert not (dev.folder / "o.txt").exists()


def _paste_curl(said: str) -> str:
    """Send the printed curl request, and return the job's id."""
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


def test_restarted_control_plane_continues_with_its_data_folder(started: list[Dev], tmp_path: Path) -> None:
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


def test_service_started_with_the_printed_command_reaches_its_documents(started: list[Dev], tmp_path: Path) -> None:
    dev = Dev(tmp_path, "--port", "0", "--no-services")
    started.append(dev)
    assert "start them with `lucius service ocr`" in dev.said
    (tmp_path / "document.txt").write_text("Dear reader, a pump costs 12 euros.\n")
    with dev.running("service", "ocr"):
        for ref in ("blob://in/contract.pdf", "document.txt"):
            done = dev.lucius("submit", "OCR", "--tenant", "acme", "--input", ref, "--output", f"{ref}.out", "--wait")
            assert done.returncode == 0, done.stderr


def test_services_do_not_outlive_a_killed_parent(started: list[Dev], tmp_path: Path) -> None:
    dev = Dev(tmp_path, "--port", "0")
    started.append(dev)
    services = until(lambda: found if len(found := dev.services()) == 3 else None, "three services")
    dev.kill()
    until(lambda: all(_gone(pid) for pid in services.values()), "the services are gone too")
