"""Every operation of the OpenAPI document, fuzzed against a real server: no 5xx, and answers as documented."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.fuzz_people import People
from tests.e2e.support import KEY, REPO, Api, until
from tests.support.api import command, identity
from tests.support.ports import free_port

EXAMPLES = 80
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_path(REPO / "schemas" / "openapi.json")
OPERATIONS = sorted(
    (path, method) for path, item in SCHEMA.raw_schema["paths"].items() for method in item if method != "parameters"
)

VERSIONS = {
    "GET": range(1, 3),
    "DELETE": range(100, 200),
    ":publish": range(200, 300),
    ":deprecate": range(300, 400),
}


class Target:
    """Running server with jobs in several states, and directives that wait for their callbacks."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.api = Api(base_url)
        self.jobs: list[str] = []
        for number in range(8):
            status, answer = self.api.call("POST", "/v1/commands", command(idempotency_key=f"seed {number}"))
            assert status == 202, answer
            self.jobs.append(answer["jobId"])
        pulled = self.api.call("POST", "/v1/services/ocr/directives:pull", {"max": 6})[1]
        self.directives: list[dict[str, Any]] = pulled["directives"]
        self.done = self.directives.pop()
        self.callback("result", self.done, status="SUCCEEDED")
        self._keep_protocols()
        self.people = People(self.api)

    def _keep_protocols(self) -> None:
        """Create versions to read, drafts to delete and to publish, and published ones to deprecate."""
        steps = [{"step_id": "fuzz", "step_type": "FUZZ", "service": "fuzz"}]
        document = {"protocol_id": "fuzz", "request_type": "FUZZ", "steps": steps}
        for versions in VERSIONS.values():
            for version in versions:
                assert self.api.call("POST", "/v1/protocols", {**document, "version": version})[0] == 201
        for version in VERSIONS[":deprecate"]:
            assert self.api.call("POST", f"/v1/protocols/FUZZ/versions/{version}:publish", {})[0] == 200

    def make_real_version(self, case: Case[Any], pick: int) -> None:
        """Put in an existing version that suits the operation and, mostly, a body that does not prevent it."""
        act = case.path.partition("{version}")[2] or case.method
        versions = VERSIONS.get(act, VERSIONS["GET"])
        case.path_parameters.update(request_type="FUZZ", version=versions[pick % len(versions)])
        if "other" in case.path_parameters:
            case.path_parameters["other"] = versions[-1]
        if isinstance(case.body, dict) and pick % 4:
            case.body = {name: value for name, value in case.body.items() if name == "reason"}

    def callback(self, kind: str, directive: dict[str, Any], **said: Any) -> None:
        body = {**identity(directive), **said}
        status, answer = self.api.call("POST", f"/v1/callbacks/{kind}", body, token=directive["callback_token"])
        assert status == 200, answer

    def make_real(self, case: Case[Any], pick: int) -> str:
        """Put in real ids and tokens, and return the token for the request."""
        directive = [*self.directives, self.done][pick % (len(self.directives) + 1)]
        known = {"job_id": self.jobs[pick % len(self.jobs)], "service": "ocr", "request_type": "OCR"}
        for name in (case.path_parameters or {}).keys() & known.keys():
            case.path_parameters[name] = known[name]
        if "{version}" in case.path:
            self.make_real_version(case, pick)
        self.people.make_real(case, pick)
        for body in _bodies(case):
            if "/v1/callbacks" in case.path:
                body.update(identity(directive), callback_token=directive["callback_token"])
            elif "/v1/commands" in case.path:
                fuzzed = {name: body[name] for name in ("mode", "doc_id", "idempotency_key", "target") if name in body}
                body.update(command(payload={"ocr": body.get("payload")}), **fuzzed)
        return str(directive["callback_token"]) if "/v1/callbacks" in case.path else KEY


def _bodies(case: Case[Any]) -> list[dict[str, Any]]:
    """Return the body, or the items of a batch."""
    if not isinstance(case.body, dict):
        return []
    items = case.body.get("callbacks", case.body.get("commands", [case.body]))
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def impatient(case: Case[Any]) -> None:
    """Shorten long polls."""
    for place, name in ((case.body, "wait_seconds"), (case.query, "wait")):
        seconds = place.get(name) if isinstance(place, dict) else None
        if isinstance(place, dict) and isinstance(seconds, int | float):
            place[name] = min(seconds, 0.001)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    port = free_port()
    env = {
        **os.environ,
        "LUCIUS_DATA_DIR": str(folder),
        "LUCIUS_DEV_API_KEY": KEY,
        "LUCIUS_LEDGER_URL": f"sqlite:///{folder}/ledger.db",
        "LUCIUS_LOG_LEVEL": "error",
    }
    serve = ["-m", "uvicorn", "--factory", "lucius.api.app:create_app", "--port", str(port), "--log-level", "error"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([sys.executable, *serve], env=env, cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: server.poll() is not None or _answers(f"http://127.0.0.1:{port}"), "the server answers")
        yield Target(f"http://127.0.0.1:{port}")
        assert server.poll() is None, "the server is still up"
        assert "Traceback" not in (folder / "log").read_text(), (folder / "log").read_text()
    finally:
        server.terminate()
        server.wait(10)


def _answers(base_url: str) -> bool:
    try:
        return Api(base_url).call("GET", "/readyz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    ("path", "method"), OPERATIONS, ids=[f"{method.upper()} {path}" for path, method in OPERATIONS]
)
def test_random_requests_get_documented_answers_without_5xx(target: Target, path: str, method: str) -> None:
    operation = SCHEMA[path][method.upper()]
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if operation.body or operation.query or operation.path_parameters:
        cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, real=st.booleans(), pick=st.integers(0, 100))
    def check(case: Case[Any], real: bool, pick: int) -> None:
        key = target.make_real(case, pick) if real else KEY
        impatient(case)
        response = case.call(base_url=target.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    check()
    assert any(status < 300 for status in seen), f"only refusals: {seen}"
