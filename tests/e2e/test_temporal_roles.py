"""`lucius temporal-worker` as a process: how it starts, reports its health, and stops."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support import REPO, Json, until
from tests.e2e.test_roles import SOON, Server, _connects, a_command, started
from tests.support.fastpath import fastpath_env
from tests.support.ports import free_port
from tests.support.temporal import TemporalServer


@pytest.fixture
def own_temporal() -> Iterator[TemporalServer]:
    """Yield a Temporal server that can be stopped, and keeps its data."""
    server = TemporalServer(durable=True).start()
    yield server
    server.remove()


def env_of(temporal: TemporalServer, ledger: str, queue: str = "lucius", **more: str) -> dict[str, str]:
    return {
        "LUCIUS_ENGINE": "temporal",
        "LUCIUS_TEMPORAL_ADDRESS": temporal.address,
        "LUCIUS_TEMPORAL_TASK_QUEUE": queue,
        "LUCIUS_LEDGER_URL": ledger,
        **fastpath_env(),
        **more,
    }


def run_ocr(front: Server, number: int) -> None:
    """Run a job of one step from submission to success."""
    job_id = front.api.submit(a_command(number))
    (directive,) = until(lambda: front.api.pull("ocr"), "the directive is given out")
    assert directive["jobId"] == job_id
    assert front.api.call_back("result", directive, status="SUCCEEDED")[0] == 200
    until(lambda: _succeeded(front, job_id), "the job has succeeded")


def _succeeded(front: Server, job_id: str) -> Json | None:
    job = front.api.get(f"/v1/jobs/{job_id}")
    return job if job["status"] == "SUCCEEDED" else None


class TestRefusals:
    @pytest.mark.parametrize(
        ("env", "reason"),
        [
            ({}, "LUCIUS_ENGINE is embedded: set LUCIUS_ENGINE=temporal"),
            ({"LUCIUS_ENGINE": "temporal"}, "the one that hosts the API works for Temporal, too"),
            (
                {"LUCIUS_ENGINE": "temporal", "LUCIUS_TEMPORAL_CA_FILE": "missing.pem"},
                "LUCIUS_TEMPORAL_CA_FILE: there is no file",
            ),
            (
                {"LUCIUS_ENGINE": "temporal", "LUCIUS_TEMPORAL_METRICS": "here"},
                "LUCIUS_TEMPORAL_METRICS must be an IP address and a port",
            ),
        ],
    )
    def test_misconfigured_worker_refuses_to_start_with_its_reason(
        self, tmp_path: Path, env: dict[str, str], reason: str
    ) -> None:
        server = Server(tmp_path, "temporal-worker", **env)
        said, _ = server.process.communicate(timeout=60)
        assert server.process.returncode == 2, said
        assert reason in " ".join(said.split())
        assert "Traceback" not in said
        assert not (tmp_path / "ledger.db").exists()


class TestSeparateProcesses:
    """On PostgreSQL, one process takes requests and another runs the workflows."""

    def test_job_waits_for_a_worker_and_the_worker_reports_health_and_metrics(
        self, tmp_path: Path, postgres_url: str, temporal_server: TemporalServer
    ) -> None:
        metrics = free_port()
        env = env_of(temporal_server, postgres_url, "apart")
        with started(tmp_path, "api", **env) as front:
            waiting = front.api.submit(a_command(1))
            assert front.api.pull("ocr") == [], "no worker runs its workflow"
            env["LUCIUS_TEMPORAL_METRICS"] = f"127.0.0.1:{metrics}"
            with started(tmp_path, "temporal-worker", **env) as worker:
                status, checks = worker.checks()
                assert (status, {check["ok"] for check in checks.values()}) == (200, {True})
                assert worker.api.call("GET", "/v1/jobs")[0] == 404, "it has no API"
                (directive,) = until(lambda: front.api.pull("ocr"), "the job goes on", SOON)
                assert directive["jobId"] == waiting
                assert front.api.call_back("result", directive, status="SUCCEEDED")[0] == 200
                until(lambda: _succeeded(front, waiting), "the job has succeeded", SOON)
                assert "lucius_" in _text(worker.port)
                until(lambda: "temporal_workflow_completed_total" in _text(metrics), "the SDK's own, too", SOON)
                worker.ask_to_stop()
                assert "Traceback" not in worker.ended()

    def test_drained_worker_leaves_its_jobs_to_the_next(
        self, tmp_path: Path, postgres_url: str, temporal_server: TemporalServer
    ) -> None:
        env = env_of(temporal_server, postgres_url, "drains")
        with started(tmp_path, "api", **env) as front:
            with started(tmp_path, "temporal-worker", **env) as first:
                job_id = front.api.submit(a_command(1))
                (directive,) = until(lambda: front.api.pull("ocr"), "the directive is given out")
                first.ask_to_stop()
                assert "Traceback" not in first.ended()
            assert front.api.call_back("result", directive, status="SUCCEEDED")[0] == 200, "Temporal keeps it"
            with started(tmp_path, "temporal-worker", **env):
                until(lambda: _succeeded(front, job_id), "the next worker applies it", 30)

    def test_worker_is_unready_during_a_temporal_outage_and_continues_after_it(
        self, tmp_path: Path, postgres_url: str, own_temporal: TemporalServer
    ) -> None:
        env = env_of(own_temporal, postgres_url)
        with started(tmp_path, "api", **env) as front, started(tmp_path, "temporal-worker", **env) as worker:
            run_ocr(front, 1)
            own_temporal.stop(crash=True)
            until(worker.is_unready, "it notices", SOON)
            detail = worker.checks()[1]["loops"]["detail"]
            assert detail == "temporal: Temporal does not answer: see the log for the reason"
            assert worker.api.get("/healthz") == {"status": "ok"}, "a restart would not help"
            own_temporal.start()
            until(worker.api.ready, "it is ready again", 30)
            run_ocr(front, 2)
            own_temporal.stop(crash=True)
            worker.ask_to_stop()
            worker.ended(15)

    def test_worker_may_start_before_temporal(self, tmp_path: Path, postgres_url: str) -> None:
        temporal = TemporalServer()
        env = env_of(temporal, postgres_url)
        worker = Server(tmp_path, "temporal-worker", **env)
        try:
            until(lambda: _connects(worker.port), "it is up", 30)
            assert worker.is_unready()
            temporal.start()
            until(worker.api.ready, "it is ready", 30)
        finally:
            worker.kill()
            temporal.remove()

    def test_worker_without_a_probe_port_works_and_stops_cleanly(
        self, tmp_path: Path, postgres_url: str, temporal_server: TemporalServer
    ) -> None:
        env = env_of(temporal_server, postgres_url, "no-port")
        with started(tmp_path, "api", **env) as front:
            command = [sys.executable, "-m", "lucius.cli", "temporal-worker", "--data-dir", str(tmp_path)]
            worker = subprocess.Popen(command, env={**os.environ, **env}, cwd=REPO)
            try:
                run_ocr(front, 1)
                worker.terminate()
                assert worker.wait(SOON) == 0
            finally:
                worker.kill()


def _text(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
