"""The shipped services, and the example of the how-to, pass every case of the conformance kit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "service_upper.py"
LUCIUS = f"{sys.executable} -P -m lucius.cli"

# The contract does not depend on the models, and loading them for every case takes time.
LIGHT = ("--env", "LUCIUS_OCR_ENGINE=off", "--env", "LUCIUS_EMBEDDING_MODEL=hash")

SERVICES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any] | None]] = {
    "upper": (f"{sys.executable} {EXAMPLE}", "UPPER", {}, None),
    "ocr": (f"{LUCIUS} service ocr", "OCR", {}, {"pages": "all of them"}),
    "embedding": (f"{LUCIUS} service embedding", "EMBEDDING", {"chunk_size": 200}, {"chunk_size": -1}),
    "sis": (f"{LUCIUS} service sis", "SIS", {"prompt_set": ["What is this?"]}, {"prompt_set": []}),
}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_shipped_service_passes_the_conformance_kit(service: str, tmp_path: Path) -> None:
    command, step_type, payload, bad_payload = SERVICES[service]
    bad = [] if bad_payload is None else ["--bad-payload", json.dumps(bad_payload)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lucius.cli", "conformance", "--json", "--side-by-side", "6"),
            *("--service-command", command, "--service", service, "--step-type", step_type),
            *("--payload", json.dumps(payload), *bad, *LIGHT, "--keep", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {case["id"]: case["outcome"] for case in json.loads(done.stdout)["cases"]}
    passing = {"PASS"} if bad else {"PASS", "SKIPPED"}
    assert set(outcomes.values()) == passing, outcomes
