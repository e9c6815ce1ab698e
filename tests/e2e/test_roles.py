"""API and engine in one process or apart: their readiness checks, and how they stop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import need_postgres
from tests.e2e.support import KEY, REPO, Api, Json, until
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer

SOON = 8.0
SECRET = "a-secret-that-all-replicas-share"


class Server:
    """Process of `lucius <role>`."""

    def __init__(self, folder: Path, role: str, *args: str, **env: str) -> None:
        self.port = free_port()
        self.api = Api(f"http://127.0.0.1:{self.port}")
        port = "--health-port" if role == "reconciler" else "--port"
        given = {
            "LUCIUS_DATA_DIR": str(folder),
            "LUCIUS_DEV_API_KEY": KEY,
            "LUCIUS_TOKEN_SECRET": SECRET,
            "LUCIUS_LOG_LEVEL": "warning",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lucius.cli", role, port, str(self.port), *args],
            env={**os.environ, **given, **env},
            cwd=REPO,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def await_ready(self) -> "Server":
        until(lambda: self.api.ready() or self.process.poll() is not None, "the server is ready", 60)
        assert self.process.poll() is None, self.process.communicate()[0]
        return self

    def checks(self) -> tuple[int, dict[str, Json]]:
        status, said = self.api.call("GET", "/readyz")
        return status, said["checks"]

    def is_unready(self) -> bool:
        return self.checks()[0] == 503

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self, within: float = SOON) -> str:
        """Return its output, once it has ended with exit code 0."""
        said, _ = self.process.communicate(timeout=within)
        assert self.process.returncode == 0, said
        return said

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@contextmanager
def started(folder: Path, role: str, *args: str, **env: str) -> Iterator[Server]:
    server = Server(folder, role, *args, **env)
    try:
        yield server.await_ready()
    finally:
        server.kill()


def a_command(number: int) -> Json:
    return {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": f"blob://in/{number}.pdf",
        "output_ref": f"blob://out/{number}.json",
        "payload": {},
        "schema_version": "v1",
    }


class HalfSent:
    """Submission whose second half is sent by `finish`."""

    def __init__(self, port: int, number: int) -> None:
        body = json.dumps(a_command(number)).encode()
        head = (
            f"POST /v1/commands HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._rest = body[20:]
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._connection.sendall(head.encode() + body[:20])

    def finish(self) -> str:
        self._connection.sendall(self._rest)
        answer = b""
        with self._connection:
            while chunk := self._connection.recv(65_536):
                answer += chunk
        return answer.decode()


class TestDrain:
    def test_drain_reports_unready_then_finishes_requests_in_flight_and_loses_nothing(self, tmp_path: Path) -> None:
        with started(tmp_path, "api", LUCIUS_DRAIN_DELAY="1.5") as server:
            in_flight = HalfSent(server.port, 1)
            asked = time.monotonic()
            server.ask_to_stop()
            until(server.is_unready, "it says that it stops", SOON)
            while time.monotonic() < asked + 0.8:
                status, checks = server.checks()
                assert (status, checks["draining"]["ok"]) == (503, False)
            assert server.api.get("/healthz") == {"status": "ok"}
            late = server.api.submit(a_command(2))  # a balancer needs a moment to notice
            until(lambda: not _connects(server.port), "it takes no more requests", SOON)
            answer = in_flight.finish()
            assert answer.startswith("HTTP/1.1 202"), answer
            server.ended()
        with started(tmp_path, "api") as server:
            taken = {directive["jobId"] for directive in server.api.pull("ocr", 10)}
            assert taken == {late, json.loads(answer.partition("\r\n\r\n")[2])["jobId"]}

    def test_drain_does_not_wait_for_an_endless_request(self, tmp_path: Path) -> None:
        with started(tmp_path, "api", LUCIUS_DRAIN_SECONDS="1") as server:
            stuck = HalfSent(server.port, 1)
            asked = time.monotonic()
            server.ask_to_stop()
            server.ended()
            assert 0.9 < time.monotonic() - asked < SOON
            del stuck

    def test_second_signal_ends_the_drain_at_once(self, tmp_path: Path) -> None:
        with started(tmp_path, "api", LUCIUS_DRAIN_DELAY="60", LUCIUS_DRAIN_SECONDS="60") as server:
            stuck = HalfSent(server.port, 1)
            server.ask_to_stop()
            until(server.is_unready, "it says that it stops", SOON)
            server.ask_to_stop()
            server.ended()
            del stuck


def _connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("how", ["option", "environment"])
def test_api_without_engine_refuses_to_start_on_sqlite(tmp_path: Path, how: str) -> None:
    args, env = (("--no-engine",), {}) if how == "option" else ((), {"LUCIUS_API_ENGINE": "off"})
    server = Server(tmp_path, "api", *args, **env)
    said, _ = server.process.communicate(timeout=60)
    assert server.process.returncode == 2, said
    assert "a sqlite ledger belongs to one process" in " ".join(said.split())
    assert not (tmp_path / "ledger.db").exists()


class TestSeparateProcesses:
    """On PostgreSQL, one process takes requests and another drives the jobs."""

    def test_api_accepts_jobs_and_the_reconciler_drives_them(self, tmp_path: Path, postgres_url: str) -> None:
        env = {"LUCIUS_LEDGER_URL": postgres_url, "LUCIUS_ACK_TIMEOUT": "1", "LUCIUS_BACKOFF_SCALE": "0"}
        with started(tmp_path, "api", "--no-engine", **env) as front:
            status, checks = front.checks()
            assert status == 200, "what is accepted waits"
            assert checks["engine"]["ok"] is False, "no engine drives it yet"
            assert "lucius reconciler" in checks["engine"]["detail"]
            job_id = front.api.submit(a_command(1))
            (first,) = front.api.pull("ocr")
            time.sleep(1.5)
            assert front.api.step(job_id, "ocr")["attempt_no"] == 1, "no engine handles the deadline"
            with started(tmp_path, "reconciler", **env) as back:
                status, checks = back.checks()
                assert (status, {check["ok"] for check in checks.values()}) == (200, {True})
                assert back.api.call("GET", "/v1/jobs")[0] == 404, "it has no API"
                until(lambda: front.checks()[1]["engine"]["ok"], "the API knows that an engine drives it")
                second = until(lambda: front.api.pull("ocr"), "the unacknowledged directive is handed over again")[0]
                assert (second["jobId"], second["attempt_no"]) == (job_id, 2)
                assert front.api.call_back("result", first, status="SUCCEEDED")[0] == 409
                assert front.api.call_back("result", second, status="SUCCEEDED")[0] == 200
                assert front.api.get(f"/v1/jobs/{job_id}")["status"] == "SUCCEEDED"
                back.ask_to_stop()
                back.ended()
            assert front.checks()[0] == 200
            front.ask_to_stop()
            front.ended()

    def test_attempt_gets_a_fresh_deadline_if_no_api_was_running(
        self, tmp_path: Path, postgres: PostgresServer, postgres_url: str
    ) -> None:
        """No API runs for longer than the ACK timeout, while a reconciler handles deadlines."""
        env = {"LUCIUS_LEDGER_URL": postgres_url, "LUCIUS_ACK_TIMEOUT": "31"}
        events = f"SELECT body FROM {postgres_url.rpartition('=')[2]}.events"
        with started(tmp_path, "reconciler", **env):
            with started(tmp_path, "api", "--no-engine", **env) as front:
                job_id = front.api.submit(a_command(1))
                (directive,) = front.api.pull("ocr")
                front.kill()
            until(lambda: "DEADLINE_EXTENDED" in str(postgres.query(events)), "the deadline passes", 60)
            with started(tmp_path, "api", "--no-engine", **env) as front:
                for kind, said in (("ack", {}), ("result", {"status": "SUCCEEDED"})):
                    directive["callback_urls"][kind] = f"{front.api.base_url}/v1/callbacks/{kind}"  # another port now
                    status, answer = front.api.call_back(kind, directive, **said)
                    assert (status, answer["disposition"]) == (200, "APPLIED")
                assert front.api.step(job_id, "ocr")["attempt_no"] == 1

    def test_api_and_reconciler_are_unready_during_a_database_outage(self, tmp_path: Path) -> None:
        need_postgres()
        database = PostgresServer().start()
        env = {"LUCIUS_LEDGER_URL": database.url("apart")}
        try:
            with (
                started(tmp_path, "api", "--no-engine", **env) as front,
                started(tmp_path, "reconciler", **env) as back,
            ):
                database.stop(crash=True)
                for server in (front, back):
                    until(server.is_unready, "it notices", SOON)
                    asked = time.monotonic()
                    assert server.checks()[1]["ledger"]["ok"] is False
                    assert time.monotonic() - asked < 3, "the check is answered soon"
                    assert server.api.get("/healthz") == {"status": "ok"}, "a restart would not help"
                database.start()
                for server in (front, back):
                    until(server.api.ready, "it is ready again", 30)
        finally:
            database.remove()

    def test_reconciler_without_a_probe_port_stops_cleanly(self, tmp_path: Path, postgres_url: str) -> None:
        env = {"LUCIUS_LEDGER_URL": postgres_url}
        with started(tmp_path, "api", "--no-engine", **env) as front:
            command = [sys.executable, "-m", "lucius.cli", "reconciler", "--data-dir", str(tmp_path)]
            back = subprocess.Popen(command, env={**os.environ, **env}, cwd=REPO)
            try:
                until(lambda: front.checks()[1]["engine"]["ok"], "it ticks", 30)
                back.terminate()
                assert back.wait(SOON) == 0
            finally:
                back.kill()
