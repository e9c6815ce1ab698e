"""The examples against a real server: a service needs only HTTP, and a new one needs no code in Lucius."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.support import KEY, REPO, Stack, Zygote, until

EXAMPLES = REPO / "examples"
PROTOCOL = """
protocol_id: upper
version: 1
request_type: UPPER
title: Capitals
steps:
  - step_id: upper
    step_type: UPPER
    service: upper
"""


@pytest.fixture
def stack(forks: Zygote, tmp_path: Path) -> Iterator[Stack]:
    protocols = tmp_path / "protocols"
    protocols.mkdir()
    with closing(Stack(forks, tmp_path, LUCIUS_PROTOCOLS_DIR=str(protocols))) as stack:
        stack.serve()
        yield stack


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_service_finishes_a_job(stack: Stack) -> None:
    job_id = stack.api.submit(stack.command())
    env = os.environ | {"BASE_URL": stack.api.base_url, "API_KEY": KEY, "SERVICE": "ocr"}
    done = subprocess.run(
        [str(EXAMPLES / "service_with_curl.sh")], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    job = stack.api.get(f"/v1/jobs/{job_id}")
    assert (job["status"], job["attempts_total"]) == ("SUCCEEDED", 1)
    (step,) = job["steps"]
    assert step["progress_counts"] == {"done": 0, "total": 1, "unit": "file"}
    artifact = stack.data_dir / "workspace" / "lucius" / "acme" / job_id / "ocr" / "1" / "output.txt"
    assert step["artifact_refs"] == [artifact.as_uri()]
    assert artifact.read_text() == f"made with curl for {job_id}/ocr/1\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_several_curl_services_share_the_jobs(stack: Stack) -> None:
    jobs = [stack.api.submit(stack.command(number)) for number in range(3)]
    env = os.environ | {"BASE_URL": stack.api.base_url, "API_KEY": KEY, "SERVICE": "ocr"}
    command = [str(EXAMPLES / "service_with_curl.sh")]
    services = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) for _ in jobs]
    try:
        said = b"".join(service.communicate(timeout=60)[0] for service in services)
    finally:
        for service in services:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGKILL)
    assert all(f"got {job_id}/ocr/1".encode() in said for job_id in jobs)
    assert {stack.api.get(f"/v1/jobs/{job_id}")["status"] for job_id in jobs} == {"SUCCEEDED"}


def test_smallest_sdk_service_finishes_a_job_of_its_own_protocol(stack: Stack) -> None:
    protocol = stack.folder / "protocols" / "upper.yaml"
    protocol.write_text(PROTOCOL)
    until(lambda: stack.api.call("GET", "/v1/protocols/UPPER")[0] == 200, "the new file is in force")
    server = {"LUCIUS_ORCHESTRATOR_URL": stack.api.base_url, "LUCIUS_API_KEY": KEY}
    env = os.environ | server | {"LUCIUS_BLOB_ROOT": str(stack.folder)}
    service = subprocess.Popen([sys.executable, str(EXAMPLES / "service_upper.py")], env=env, start_new_session=True)
    try:
        command = stack.command(1, "UPPER")
        job_id = stack.api.submit(command)
        job = stack.api.get(f"/v1/jobs/{job_id}?wait=30")
        assert job["status"] == "SUCCEEDED", job
        service.terminate()
        assert service.wait(20) == 0
    finally:
        if service.poll() is None:
            os.killpg(service.pid, signal.SIGKILL)
            service.wait()
    assert (stack.folder / "out" / "1.out").read_text() == (stack.folder / "in" / "1.txt").read_text().upper()
