"""The kit as a pytest plugin, run in separate processes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lucius.conformance.cases import all_cases
from tests.integration.conformance_kit.support import RIGHT, wrong

OWN = """
import sys

def test_of_my_own():
    assert not [name for name in sys.modules if name.startswith("lucius.conformance.") and "plugin" not in name]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_own.py").write_text(OWN)
    return tmp_path


def run_pytest(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with this plugin only, by its packaged name: other plugins are slow to load."""
    command = [sys.executable, "-m", "pytest", "-p", "lucius-conformance", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_plugin_without_a_command_adds_and_imports_nothing(project: Path) -> None:
    done = run_pytest(project)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "conformance::" not in done.stdout


def test_each_case_is_a_test(project: Path) -> None:
    done = run_pytest(project, "--collect-only", "-q", "--lucius-service-command", shlex.join(RIGHT))
    found = [line for line in done.stdout.splitlines() if line.startswith("conformance::")]
    assert found == [f"conformance::{case.id}" for case in all_cases()]
    assert f"{len(found) + 1} tests collected" in done.stdout


def test_cases_pass_fail_warn_and_skip_like_tests(project: Path) -> None:
    given = ["--lucius-service-command", shlex.join(wrong("no-output")), "-rsf"]
    done = run_pytest(project, *given, "-k", "result or bad-payload")
    assert done.returncode == 0, done.stdout
    assert "ConformanceWarning: result: last_step was true" in done.stdout
    assert "SKIPPED" in done.stdout
    strict = run_pytest(project, *given, "-k", "result", "--lucius-strict", "true")
    assert "FAILED conformance::result" in strict.stdout


def test_failure_shows_the_expectation_and_the_last_lines_of_the_service(project: Path) -> None:
    done = run_pytest(project, "--lucius-service-command", shlex.join(wrong("invalid-result")), "-k", "result")
    assert done.returncode == 1
    assert "expected callbacks that fit the contract" in done.stdout
    assert "read docs/how-to/conformance.md#result" in done.stdout
    assert "| --- " in done.stdout
    assert "Traceback" not in done.stdout


def test_options_can_be_set_in_the_ini_file(project: Path) -> None:
    lines = ["[pytest]", f"lucius_service_command = {shlex.join(RIGHT)}", 'lucius_bad_payload = {"seconds": []}']
    (project / "pytest.ini").write_text("\n".join([*lines, "lucius_env =", "    A=1", ""]))
    done = run_pytest(project, "-k", "bad-payload")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_python_in_the_command_is_the_interpreter_that_runs_pytest(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    command = "python -m lucius.conformance.faulty_service"
    done = run_pytest(project, "--lucius-service-command", command, "-k", "refused-key")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_misuse_names_the_option_of_the_plugin(project: Path) -> None:
    done = run_pytest(project, "--lucius-service-command", "x", "--lucius-payload", "{")
    assert done.returncode == 4
    assert "--lucius-payload is not JSON" in done.stderr
    done = run_pytest(project, "--lucius-service-command", "x", "--lucius-bus", "redis://localhost")
    assert "--lucius-service is required" in done.stderr
