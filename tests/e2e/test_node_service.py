"""The Node example passes its own tests and the conformance kit, and does a job of a real server."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.support import KEY, REPO, Stack, Zygote

FOLDER = REPO / "examples" / "node-service"
PAGE = REPO / "docs" / "how-to" / "write-a-service-without-sdk.md"
NEEDED = (18, 17)


@pytest.fixture(scope="module")
def node() -> str:
    """Return the path of Node; without it, fail in CI and skip elsewhere."""
    found = shutil.which("node")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout if found else ""
    numbers = re.match(r"v(\d+)\.(\d+)", version)
    if found and numbers and (int(numbers[1]), int(numbers[2])) >= NEEDED:
        return found
    missing = f"needs Node {NEEDED[0]}.{NEEDED[1]} or newer; found {version.strip() or 'none'}"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def test_node_example_passes_its_own_tests(node: str) -> None:
    done = subprocess.run([node, "--test"], cwd=FOLDER, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("node")
def test_node_example_passes_the_conformance_kit_by_the_documented_command(tmp_path: Path) -> None:
    (command,) = re.findall(r"^lucius conformance .*(?:\\\n.*)*", PAGE.read_text(), re.MULTILINE)
    report = tmp_path / "report.json"
    words = shlex.split(command.replace("\\\n", " "))[1:]
    done = subprocess.run(
        [sys.executable, "-m", "lucius.cli", *words, "--report", str(report)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {case["id"]: case["outcome"] for case in json.loads(report.read_text())["cases"]}
    assert len(outcomes) >= 20
    assert set(outcomes.values()) == {"PASS"}, done.stdout


def test_node_example_completes_a_job_of_a_real_server(node: str, forks: Zygote, tmp_path: Path) -> None:
    protocols = tmp_path / "protocols"
    protocols.mkdir()
    shutil.copy(FOLDER / "protocol.yaml", protocols)
    with closing(Stack(forks, tmp_path, LUCIUS_PROTOCOLS_DIR=str(protocols))) as stack:
        stack.serve()
        env = os.environ | {
            "LUCIUS_ORCHESTRATOR_URL": stack.api.base_url,
            "LUCIUS_API_KEY": KEY,
            "LUCIUS_DATA_DIR": str(tmp_path / "service"),
            "LUCIUS_BLOB_ROOT": str(tmp_path),
        }
        service = subprocess.Popen([node, "service.mjs"], cwd=FOLDER, env=env, start_new_session=True)
        try:
            command = stack.command(1, "WORDCOUNT", payload={"wordcount": {"min_length": 4}})
            job = stack.api.get(f"/v1/jobs/{stack.api.submit(command)}?wait=30")
            assert (job["status"], job["attempts_total"]) == ("SUCCEEDED", 1), job
            service.terminate()
            assert service.wait(20) == 0
        finally:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGKILL)
                service.wait()
        text = (tmp_path / "in" / "1.txt").read_text()
        counts = json.loads((tmp_path / "out" / "1.out").read_text())
    assert job["steps"][0]["result"] == counts
    assert counts["words"] == len([word for word in text.split() if len(word) >= 4])
    assert counts["bytes"] == len(text)
