"""A running deployment moves from the embedded engine to Temporal and back; jobs stay on their first engine."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.e2e.support import KEY, REPO, Api, Json, until
from tests.e2e.test_roles import Server
from tests.support.fastpath import fastpath_env
from tests.support.ports import free_port
from tests.support.temporal import TemporalServer

PROTOCOL = """
protocol_id: moved
version: 1
request_type: MOVED
title: Two tasks, and between them a signal and an approval
steps:
  - {step_id: read, step_type: READ, service: read}
  - {step_id: paid, kind: wait, wait: {signal: paid}}
  - {step_id: sign, kind: human_approval, human_approval: {approvers: [dev]}}
  - {step_id: write, step_type: WRITE, service: write}
"""
SERVICES = ("read", "write")


class Deployment:
    """Deployment on one port, folder and ledger: an API and, if the ledger is shared, a Temporal worker."""

    def __init__(self, folder: Path, ledger_url: str, temporal: TemporalServer) -> None:
        self.api = Api(f"http://127.0.0.1:{free_port()}")
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        (folder / "protocols").mkdir()
        (folder / "protocols" / "moved.yaml").write_text(PROTOCOL)
        self._env = {
            **os.environ,
            "LUCIUS_DATA_DIR": str(folder / "data"),
            "LUCIUS_LEDGER_URL": ledger_url,
            "LUCIUS_PROTOCOLS_DIR": str(folder / "protocols"),
            "LUCIUS_DEV_API_KEY": KEY,
            "LUCIUS_ACK_TIMEOUT": "2",
            "LUCIUS_LEASE": "5",
            "LUCIUS_BACKOFF_SCALE": "0.01",
            "LUCIUS_MAX_ATTEMPTS": "9",
            "LUCIUS_LOG_LEVEL": "error",
            "LUCIUS_TEMPORAL_ADDRESS": temporal.address,
            "LUCIUS_TEMPORAL_TASK_QUEUE": f"migration-{uuid.uuid4().hex[:8]}",
        }

    def start(self, engine: str, *, new_jobs: bool = True) -> None:
        env = {
            **self._env,
            **fastpath_env(),
            "LUCIUS_ENGINE": engine,
            "LUCIUS_TEMPORAL_NEW_JOBS": "on" if new_jobs else "off",
        }
        self._spawn(env, "api", "--port", self.api.base_url.rpartition(":")[2])
        if engine == "temporal" and env["LUCIUS_LEDGER_URL"].startswith("postgresql"):
            self._spawn(env, "temporal-worker")
        until(self._up, "it is ready", 60)

    def _spawn(self, env: dict[str, str], *words: str) -> None:
        command = [sys.executable, "-m", "lucius.cli", *words]
        self._processes.append(subprocess.Popen(command, env=env, cwd=REPO, text=True, start_new_session=True))

    def _up(self) -> bool:
        assert all(process.poll() is None for process in self._processes), "a process has ended"
        return self.api.ready()

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(20) for process in self._processes] == [0] * len(self._processes)
        self._processes = []

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def restart(self, engine: str, *, new_jobs: bool = True) -> None:
        self.stop()
        self.start(engine, new_jobs=new_jobs)

    def submit(self) -> str:
        ref = uuid.uuid4().hex
        command = {
            "tenant_id": "acme",
            "request_type": "MOVED",
            "input_ref": f"blob://in/{ref}",
            "output_ref": f"blob://out/{ref}",
            "payload": {},
            "schema_version": "v1",
        }
        return self.api.submit(command)

    def job(self, job_id: str) -> Json:
        return self.api.get(f"/v1/jobs/{job_id}")

    def act(self, job_id: str, what: str, body: Json | None = None) -> int:
        return self.api.call("POST", f"/v1/jobs/{job_id}{what}", body or {})[0]

    def take(self, service: str, job_id: str) -> Json:
        """Return the directive for this job; others pulled meanwhile are left to their deadlines."""
        return until(lambda: next((d for d in self.api.pull(service) if d["jobId"] == job_id), None), "a directive")  # type: ignore[no-any-return]

    def finish(self, job_ids: list[str]) -> None:
        """Act as services and operators until all jobs have ended."""
        until(lambda: self._push(job_ids), "all jobs have ended", 90)

    def _push(self, job_ids: list[str]) -> bool:
        for service in SERVICES:
            for directive in self.api.pull(service, 10):
                self.api.call_back("ack", directive)
                self.api.call_back("result", directive, status="SUCCEEDED")
        live = [job for job in map(self.job, job_ids) if job["completed_at"] is None]
        for job in live:
            waits = {step["stepId"]: step["status"] for step in job["steps"]}
            if job["paused"]:
                self.act(job["jobId"], ":resume")
            elif waits["paid"] == "WAITING":
                self.act(job["jobId"], ":signal", {"name": "paid"})
            elif waits["sign"] == "AWAITING_APPROVAL":
                self.act(job["jobId"], "/steps/sign:approve")
        return not live

    def to(self, job_id: str, state: str) -> None:
        """Bring a job to a state, and leave it there."""
        if state == "untouched":
            return
        directive = self.take("read", job_id)
        if state == "handed over":
            return
        assert self.api.call_back("ack", directive)[0] == 200
        if state == "acked":
            return
        assert self.api.call_back("result", directive, status="SUCCEEDED")[0] == 200
        until(lambda: self._status(job_id, "paid") == "WAITING", "it waits for the signal")
        if state == "paused":
            assert self.act(job_id, ":pause") == 202
        if state in ("waiting", "paused"):
            return
        assert self.act(job_id, ":signal", {"name": "paid"}) == 202
        until(lambda: self._status(job_id, "sign") == "AWAITING_APPROVAL", "it waits for a person")
        if state == "to be approved":
            return
        assert self.act(job_id, "/steps/sign:approve") == 200
        until(lambda: self._status(job_id, "write") != "PENDING", "the last step")

    def _status(self, job_id: str, step_id: str) -> str:
        return str(self.api.step(job_id, step_id)["status"])


STATES = ("untouched", "handed over", "acked", "waiting", "paused", "to be approved", "last step")


@pytest.fixture
def deployment(tmp_path: Path, ledger_url: str, temporal_server: TemporalServer) -> Iterator[Deployment]:
    made = Deployment(tmp_path, ledger_url, temporal_server)
    yield made
    made.kill()


def jobs_in_every_state(deployment: Deployment) -> list[str]:
    """Return a job in each state, those with deadlines last: a directive must be acknowledged within 2 s."""
    made = []
    for state in reversed(STATES):
        job_id = deployment.submit()
        deployment.to(job_id, state)
        made.append(job_id)
    return made


def a_failed_job(deployment: Deployment) -> str:
    job_id = deployment.submit()
    directive = deployment.take("read", job_id)
    assert deployment.api.call_back("result", directive, status="FAILED", failure_class="NON_RETRYABLE")[0] == 200
    until(lambda: deployment.job(job_id)["status"] == "FAILED_FINAL", "it has failed")
    return job_id


def assert_once(api: Api, job_ids: list[str], engine: str) -> None:
    """Assert that each job succeeded, on the given engine, and each of its steps once."""
    for job_id in job_ids:
        job = api.get(f"/v1/jobs/{job_id}")
        assert (job["status"], job["engine"]) == ("SUCCEEDED", engine), job
        events = Counter((event["type"], event["stepId"]) for event in api.events(job_id))
        assert {events["STEP_SUCCEEDED", step["stepId"]] for step in job["steps"]} == {1}, events
        assert events["JOB_SUCCEEDED", None] == events["JOB_ACCEPTED", None] == 1, events


def workflows(temporal: TemporalServer, job_ids: list[str]) -> set[str]:
    """Return those of the jobs that have a workflow."""

    async def known() -> set[str]:
        client = await Client.connect(temporal.address)
        return {found.id async for found in client.list_workflows("WorkflowType = 'LuciusJob'")} & set(job_ids)

    return asyncio.run(known())


@pytest.mark.usefixtures("each_fastpath")
def test_jobs_finish_on_their_first_engine_and_new_ones_run_on_temporal(
    deployment: Deployment, temporal_server: TemporalServer
) -> None:
    deployment.start("embedded")
    old = jobs_in_every_state(deployment)
    held_id = deployment.submit()
    held = deployment.take("read", held_id)
    assert deployment.api.call_back("ack", held)[0] == 200

    deployment.restart("temporal")
    assert deployment.api.call_back("result", held, status="SUCCEEDED")[1]["disposition"] == "APPLIED"
    new = jobs_in_every_state(deployment)
    assert workflows(temporal_server, [*old, held_id]) == set()
    deployment.finish([*old, held_id, *new])
    assert_once(deployment.api, [*old, held_id], "embedded")
    assert_once(deployment.api, new, "temporal")
    assert workflows(temporal_server, [*old, held_id, *new]) == set(new)


def test_failed_job_of_the_embedded_engine_is_retried_on_that_engine(
    deployment: Deployment, temporal_server: TemporalServer
) -> None:
    deployment.start("embedded")
    job_id = a_failed_job(deployment)
    deployment.restart("temporal")
    assert deployment.act(job_id, ":retry", {"reason": "mended"}) == 202
    deployment.finish([job_id])
    assert_once(deployment.api, [job_id], "embedded")
    assert workflows(temporal_server, [job_id]) == set()


def test_embedded_engine_leaves_workflow_jobs_alone_until_temporal_is_back(
    deployment: Deployment, temporal_server: TemporalServer
) -> None:
    deployment.start("temporal")
    workflow_jobs = jobs_in_every_state(deployment)
    held_id = deployment.submit()
    held = deployment.take("read", held_id)
    until(lambda: deployment.api.step(held_id, "read")["status"] == "INITIATED", "the ledger knows")
    workflow_jobs.append(held_id)

    deployment.restart("embedded")
    seen = {job_id: deployment.api.events(job_id) for job_id in workflow_jobs}
    ours = deployment.submit()
    deployment.finish([ours])
    assert_once(deployment.api, [ours], "embedded")
    status, said = deployment.api.call_back("ack", held)
    assert (status, said["code"]) == (503, "NOT_READY")
    assert "LUCIUS_ENGINE" in said["detail"]
    assert deployment.act(held_id, ":cancel") == 503
    time.sleep(4)  # deadlines pass
    assert {job_id: deployment.api.events(job_id) for job_id in workflow_jobs} == seen, (
        "the embedded engine does not drive them"
    )

    deployment.restart("temporal", new_jobs=False)
    late = deployment.submit()
    deployment.finish([*workflow_jobs, late])
    assert_once(deployment.api, workflow_jobs, "temporal")
    assert_once(deployment.api, [late], "embedded")
    assert workflows(temporal_server, [*workflow_jobs, ours, late]) == set(workflow_jobs)


def test_retry_of_a_workflow_job_is_refused_without_temporal(deployment: Deployment) -> None:
    deployment.start("temporal")
    job_id = a_failed_job(deployment)

    deployment.restart("embedded")
    assert deployment.act(job_id, ":retry", {"reason": "mended"}) == 503
    assert deployment.job(job_id)["status"] == "FAILED_FINAL"
    deployment.restart("temporal")
    assert deployment.act(job_id, ":retry", {"reason": "mended"}) == 202
    deployment.finish([job_id])
    assert_once(deployment.api, [job_id], "temporal")


class Fleet:
    """Two APIs and a worker on one PostgreSQL, replaced one by one while jobs come and go."""

    def __init__(self, folder: Path, ledger_url: str, temporal: TemporalServer) -> None:
        self._folder = folder
        self._env = {
            "LUCIUS_LEDGER_URL": ledger_url,
            "LUCIUS_TEMPORAL_ADDRESS": temporal.address,
            "LUCIUS_TEMPORAL_TASK_QUEUE": f"fleet-{uuid.uuid4().hex[:8]}",
            "LUCIUS_LOG_LEVEL": "error",
        }
        self.apis: list[Server] = []
        self._all: list[Server] = []
        self.accepted: list[str] = []
        self.refused: list[object] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._submit), threading.Thread(target=self._serve)]

    def begin(self) -> None:
        self.apis = [self._start("api", engine="embedded") for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def roll(self, engine: str, *, new_jobs: bool = True) -> None:
        """Replace each API; the new one is ready before the old one is stopped."""
        for number in range(len(self.apis)):
            old, self.apis[number] = self.apis[number], self._start("api", engine=engine, new_jobs=new_jobs)
            old.ask_to_stop()
            old.ended(20)
        self.some_time()

    def start_worker(self) -> Server:
        return self._start("temporal-worker", engine="temporal")

    def some_time(self) -> None:
        """Wait until more jobs have been accepted."""
        accepted = len(self.accepted)
        until(lambda: len(self.accepted) > accepted + 5, "jobs are accepted", 60)

    def all_ended(self) -> list[str]:
        """Wait until the jobs accepted so far have ended, and return their ids."""
        so_far = list(self.accepted)
        for job_id in so_far:
            until(partial(self._has_ended, job_id), "it has ended", 90)
        return so_far

    def _has_ended(self, job_id: str) -> bool:
        return self.job(job_id)["completed_at"] is not None

    def job(self, job_id: str) -> Json:
        return self.apis[0].api.get(f"/v1/jobs/{job_id}")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        for server in self._all:
            server.kill()

    def _start(self, role: str, *, engine: str, new_jobs: bool = True) -> Server:
        chosen = {**fastpath_env(), "LUCIUS_ENGINE": engine, "LUCIUS_TEMPORAL_NEW_JOBS": "on" if new_jobs else "off"}
        server = Server(self._folder, role, **self._env, **chosen)
        self._all.append(server)
        return server.await_ready()

    def _submit(self) -> None:
        while not self._over.wait(0.1):
            ref = uuid.uuid4().hex
            command = {
                "tenant_id": "acme",
                "request_type": "OCR_EMBEDDING",
                "input_ref": f"blob://in/{ref}",
                "output_ref": f"blob://out/{ref}",
                "payload": {},
                "schema_version": "v1",
            }
            self.accepted.append(self._ask("POST", "/v1/commands", command)["jobId"])

    def _serve(self) -> None:
        while not self._over.wait(0.02):
            for service in ("ocr", "embedding"):
                path, asked = f"/v1/services/{service}/directives:pull", {"max": 10, "wait_seconds": 0}
                for directive in self._ask("POST", path, asked)["directives"]:
                    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
                    body = {name: directive[name] for name in names}
                    token = directive["callback_token"]
                    self._ask("POST", "/v1/callbacks/ack", body, token)
                    self._ask("POST", "/v1/callbacks/result", {**body, "status": "SUCCEEDED"}, token)

    def _ask(self, method: str, path: str, body: Json, token: str | None = None) -> Json:
        """Ask the APIs in turn until one accepts, as behind a load balancer; note refusals."""
        while True:
            for server in list(self.apis):
                with suppress(OSError):  # this API has just stopped
                    status, answer = server.api.call(method, path, body, token)
                    if status in (200, 202):
                        return answer
                    self.refused.append((path, status, answer))
            assert len(self.refused) < 100, self.refused[:3]
            time.sleep(0.05)


@pytest.fixture
def fleet(tmp_path: Path, emptied_postgres_url: str, temporal_server: TemporalServer) -> Iterator[Fleet]:
    made = Fleet(tmp_path, emptied_postgres_url, temporal_server)
    yield made
    made.end()


def test_rolling_migration_to_temporal_and_back_refuses_no_request(
    fleet: Fleet, temporal_server: TemporalServer
) -> None:
    fleet.begin()
    fleet.roll("temporal", new_jobs=False)
    worker = fleet.start_worker()
    assert workflows(temporal_server, fleet.accepted) == set()
    fleet.roll("temporal")
    fleet.roll("temporal", new_jobs=False)
    fleet.all_ended()
    worker.ask_to_stop()
    worker.ended(20)
    fleet.roll("embedded")
    job_ids = fleet.all_ended()

    engines = [fleet.job(job_id)["engine"] for job_id in job_ids]
    assert engines[0] == engines[-1] == "embedded"
    assert "temporal" in engines
    assert fleet.refused == []
    for job_id, engine in zip(job_ids, engines, strict=True):
        assert_once(fleet.apis[0].api, [job_id], engine)
