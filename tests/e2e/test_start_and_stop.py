"""A server that cannot start prints the reason and fails; a stopped one ends soon and loses nothing."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.support import KEY, REPO, Api, Json, Stack, Zygote, until
from tests.support.ports import free_port

STOPS_WITHIN = 8.0
COMMANDS = {
    "lucius": ("-m", "lucius.cli", "api", "--port"),
    "uvicorn": ("-m", "uvicorn", "--factory", "lucius.api.app:create_app", "--log-level", "warning", "--port"),
}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return COMMANDS[request.param]


@contextmanager
def server(command: tuple[str, ...], data_dir: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Run the server's command."""
    env = os.environ | {
        "LUCIUS_DATA_DIR": str(data_dir),
        "LUCIUS_DEV_API_KEY": KEY,
        "LUCIUS_ORCHESTRATOR_URL": f"http://127.0.0.1:{port}",
    }
    started = subprocess.Popen(
        [sys.executable, *command, str(port)],
        env=env,
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def refusal(command: tuple[str, ...], data_dir: Path) -> str:
    """Return the output of a server that fails to start."""
    with server(command, data_dir, free_port()) as started:
        said, _ = started.communicate(timeout=60)
        assert started.returncode not in (0, None), said
        return " ".join(said.split())


class TestRefusesToStart:
    def test_server_refuses_to_start_on_a_ledger_open_in_another_process(
        self, forks: Zygote, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        stack = Stack(forks, tmp_path)
        stack.serve()
        said = refusal(command, stack.data_dir)
        assert f"open in process {stack.server.pid}" in said
        assert "only one process may write it" in said
        assert stack.api.submit(stack.command())
        stack.close()

    def test_server_refuses_to_start_on_a_damaged_file(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        ledger = tmp_path / "ledger.db"
        ledger.write_bytes(b"this was a ledger once" * 1000)
        before = ledger.read_bytes()
        said = refusal(command, tmp_path)
        assert "damaged or not a SQLite file" in said
        assert str(ledger) in said
        assert ledger.read_bytes() == before

    def test_server_refuses_to_start_on_a_ledger_of_a_newer_version(
        self, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        with sqlite3.connect(tmp_path / "ledger.db") as connection:
            connection.execute("PRAGMA user_version = 999")
        said = refusal(command, tmp_path)
        assert "schema version 999" in said
        assert "newer Lucius" in said

    def test_server_refuses_to_start_on_a_foreign_database(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        with sqlite3.connect(tmp_path / "ledger.db") as connection:
            connection.execute("CREATE TABLE theirs (x)")
        assert "not a Lucius ledger" in refusal(command, tmp_path)


class Waiter(threading.Thread):
    """Thread that keeps a connection open until the server closes it."""

    def __init__(self, port: int, request: str) -> None:
        super().__init__(daemon=True)
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._connection.sendall(request.encode())
        self.received = b""
        self.start()

    def run(self) -> None:
        with self._connection:
            while chunk := self._connection.recv(65_536):
                self.received += chunk


def waiters(port: int, job_id: str) -> Iterator[Waiter]:
    who = f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    yield Waiter(port, f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\n{who}Accept: text/event-stream\r\n\r\n")
    yield Waiter(port, f"GET /v1/jobs/{job_id}?wait=60 HTTP/1.1\r\n{who}\r\n")
    body = json.dumps({"max": 1, "wait_seconds": 60})
    head = f"{who}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    yield Waiter(port, f"POST /v1/services/sis/directives:pull HTTP/1.1\r\n{head}{body}")


def a_command(number: int) -> Json:
    return {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": f"blob://in/{number}.txt",
        "output_ref": f"blob://out/{number}.out",
        "payload": {},
        "schema_version": "v1",
    }


def test_stopped_server_ends_soon_and_loses_nothing(tmp_path: Path, command: tuple[str, ...]) -> None:
    port = free_port()
    api = Api(f"http://127.0.0.1:{port}")
    with server(command, tmp_path, port) as started:
        until(api.ready, "the server is ready", 60)
        accepted = [api.submit(a_command(number)) for number in range(20)]
        waiting = list(waiters(port, accepted[0]))
        until(lambda: b"JOB_ACCEPTED" in waiting[0].received, "the stream has begun")
        asked = time.monotonic()
        started.terminate()
        said, _ = started.communicate(timeout=STOPS_WITHIN)
        assert started.returncode in (0, -signal.SIGTERM), said
        assert time.monotonic() - asked < STOPS_WITHIN
    for waiter in waiting:
        waiter.join(5)
        assert not waiter.is_alive()
    assert b'"jobId"' in waiting[1].received, "the request that waited for the job got an answer"
    with server(command, tmp_path, port):
        until(api.ready, "the server is ready again", 60)
        assert {directive["jobId"] for directive in api.pull("ocr", 100)} == set(accepted)
