"""A linter, a parser, and a generated client in strict TypeScript read the published schemas.

Their packages are pinned in typescript_client/package-lock.json and installed there once, with `npm ci`.
"""

import fcntl
import json
import os
import shutil
import subprocess
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support import KEY, REPO, Stack, Zygote

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

FOLDER = REPO / "tests" / "e2e" / "typescript_client"
INSTALL_SECONDS = 300
RUN_SECONDS = 100


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """Install the pinned packages, unless present; without npm, fail in CI and skip elsewhere."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        missing = "needs Node and npm; found none"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    installed = FOLDER / "node_modules"
    lock_file = FOLDER / "package-lock.json"
    stamp, wanted = installed / ".installed", sha256(lock_file.read_bytes()).hexdigest()
    with lock_file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be installing them
        if not stamp.exists() or stamp.read_text() != wanted:
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            run(command, FOLDER, seconds=INSTALL_SECONDS)
            stamp.write_text(wanted)
    return installed


def run(command: list[str], folder: Path, seconds: float = RUN_SECONDS, **env: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def problems(node_modules: Path) -> Any:
    """Return the problems that redocly's `recommended` rules and the AsyncAPI parser find, by document."""
    return json.loads(run(["node", "lint_schemas.mjs"], node_modules.parent))


def test_openapi_passes_the_recommended_rules_of_redocly(problems: Any) -> None:
    assert [problem for problem in problems["openapi"] if problem["severity"] == "error"] == []
    # Health routes take no input, so they refuse none.
    assert {problem["rule"] for problem in problems["openapi"]} <= {"operation-4xx-response"}


def test_asyncapi_passes_the_official_parser(problems: Any) -> None:
    assert [problem for problem in problems["asyncapi"] if problem["severity"] in ("error", "warn")] == []


def test_lock_file_names_no_registry() -> None:
    packages = json.loads((FOLDER / "package-lock.json").read_text())["packages"]
    assert len(packages) > 5
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_generated_typescript_client_compiles_strictly_and_runs_a_job(
    node_modules: Path, forks: Zygote, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("client.ts", "tsconfig.json", "package.json"):
        shutil.copy(FOLDER / name, project)
    (project / "node_modules").symlink_to(node_modules)
    document = str(REPO / "schemas" / "openapi.json")
    run(["node", "node_modules/openapi-typescript/bin/cli.js", document, "-o", "openapi.ts"], project)
    run(["node", "node_modules/typescript/bin/tsc", "--project", "."], project)
    with closing(Stack(forks, tmp_path)) as stack:
        stack.serve()
        command = stack.command()
        said = run(
            ["node", "built/client.js"],
            project,
            LUCIUS_URL=stack.api.base_url,
            LUCIUS_API_KEY=KEY,
            INPUT_REF=command["input_ref"],
            OUTPUT_REF=command["output_ref"],
        )
        told = json.loads(said)
        assert (told["status"], told["attempts"], told["refusal"]) == ("SUCCEEDED", 1, "JOB_NOT_FOUND")
        assert stack.api.get(f"/v1/jobs/{told['job_id']}")["status"] == "SUCCEEDED"
