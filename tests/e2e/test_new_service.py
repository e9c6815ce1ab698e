"""What `lucius new-service` makes is good as it comes: its checks, its tests, the conformance kit, and a real job."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.e2e.support import KEY, Stack, Zygote

BIN = Path(sys.executable).parent
LONGEST = "a" * 63 + "z"


def generate(folder: Path, name: str, *options: str) -> Path:
    lucius("new-service", name, "--dir", str(folder), *options)
    return folder


def lucius(*args: str, cwd: Path | None = None, **env: str) -> str:
    return ran([sys.executable, "-m", "lucius.cli", *args], cwd, env, 30)


def make(project: Path, *targets: str) -> str:
    """The project's own commands, with this environment's tools instead of a new one: no network is needed."""
    done = project / ".venv" / ".done"
    done.parent.mkdir(exist_ok=True)
    done.touch()
    return ran(["make", "--no-print-directory", *targets, f"BIN={BIN}"], project, path_to(project), 170)


def path_to(project: Path) -> dict[str, str]:
    """As if it were installed."""
    return {"PYTHONPATH": str(project / "src")}


def ran(command: list[str], cwd: Path | None, env: dict[str, str], seconds: float) -> str:
    given = os.environ | {"COLUMNS": "200"} | env
    done = subprocess.run(
        command,
        cwd=cwd,
        env=given,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(tmp_path_factory.mktemp("generated") / "invoice-reader", "invoice-reader")


def test_its_own_checks_pass(project: Path) -> None:
    said = make(project, "check")
    assert "no issues found" in said
    assert "protocol.yaml: good (INVOICE_READER version 1, 1 step)" in said


def test_its_own_checks_pass_with_the_longest_names(tmp_path: Path) -> None:
    project = generate(tmp_path / "long", LONGEST, "--step-type", "Z" * 64)
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):
        ran([sys.executable, "-m", *command], project, {}, 60)
    lucius("protocols", "validate", str(project / "protocol.yaml"))


@pytest.mark.timeout(180)
def test_its_own_tests_pass_and_one_of_them_is_the_conformance_kit(project: Path) -> None:
    said = make(project, "test")
    found = re.search(r"=+ (\d+) passed(, \d+ warnings?)? in ", said)
    assert found, said
    own = re.findall(r"def test_\w+", (project / "tests" / "test_service.py").read_text())
    assert int(found[1]) >= len(own) + 20
    assert "skipped" not in said


def test_it_can_be_shown_to_the_kit_alone(project: Path) -> None:
    command = make(project, "--dry-run", "conformance").strip()
    said = ran(["sh", "-c", f"{command} --case ack --case bad-payload"], project, path_to(project), 60)
    assert "invoice-reader keeps the contract: 2 cases" in said


def test_it_does_a_job_of_a_real_server_as_its_readme_says(project: Path, forks: Zygote, tmp_path: Path) -> None:
    with closing(Stack(forks, tmp_path)) as stack:
        stack.serve()
        server = {"LUCIUS_URL": stack.api.base_url, "LUCIUS_API_KEY": KEY}
        lucius("protocols", "create", "protocol.yaml", cwd=project, **server)
        lucius("protocols", "publish", "INVOICE_READER", "1", cwd=project, **server)
        output = tmp_path / "words.json"
        submit = ("submit", "INVOICE_READER", "--tenant", "acme", "--input", "README.md", "--output", str(output))
        with running(project, stack, tmp_path / "service") as service:
            lucius(*submit, "--wait", cwd=project, **server)
            service.terminate()
            assert service.wait(20) == 0
    assert "lucius" in json.loads(output.read_text())


@contextmanager
def running(project: Path, stack: Stack, data: Path) -> Iterator["subprocess.Popen[bytes]"]:
    env = os.environ | {
        "LUCIUS_ORCHESTRATOR_URL": stack.api.base_url,
        "LUCIUS_API_KEY": KEY,
        "LUCIUS_DATA_DIR": str(data),
        **path_to(project),
    }
    command = [sys.executable, "-m", "invoice_reader"]
    service = subprocess.Popen(command, cwd=project, env=env, start_new_session=True)
    try:
        yield service
    finally:
        if service.poll() is None:
            os.killpg(service.pid, signal.SIGKILL)
            service.wait()
