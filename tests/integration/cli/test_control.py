"""Pausing, resuming, signalling, retrying; approving and rejecting."""

import json
from pathlib import Path

import pytest

from tests.integration.cli.support import Stub, at, job, problem


@pytest.mark.parametrize(
    ("said", "path", "body"),
    [
        (("jobs", "pause", "j-1", "--reason", "month end"), "/v1/jobs/j-1:pause", {"reason": "month end"}),
        (("jobs", "resume", "j-1"), "/v1/jobs/j-1:resume", {"reason": ""}),
        (("jobs", "signal", "j-1", "released"), "/v1/jobs/j-1:signal", {"name": "released", "reason": ""}),
        (
            ("jobs", "signal", "j-1", "released", "--payload", '{"by": "customs"}', "--reason", "papers"),
            "/v1/jobs/j-1:signal",
            {"name": "released", "payload": {"by": "customs"}, "reason": "papers"},
        ),
        (("jobs", "retry", "j-1", "--reason", "mended"), "/v1/jobs/j-1:retry", {"reason": "mended"}),
        (("jobs", "retry", "j-1", "--from-step", "ocr"), "/v1/jobs/j-1:retry", {"reason": "", "from_step": "ocr"}),
        (("approve", "j-1", "sign"), "/v1/jobs/j-1/steps/sign:approve", {"comment": ""}),
        (("approve", "j-1", "sign.3", "-m", "fine"), "/v1/jobs/j-1/steps/sign.3:approve", {"comment": "fine"}),
        (("reject", "j-1", "sign", "--comment", "no"), "/v1/jobs/j-1/steps/sign:reject", {"comment": "no"}),
    ],
)
def test_command_sends_its_request_and_prints_the_job(
    stub: Stub, said: tuple[str, ...], path: str, body: dict[str, object]
) -> None:
    blocked = {"reason": "HANDOVER", "message": "step ocr waits", "since": "2026-01-02T03:04:05Z"}
    answer = job(status="IN_PROGRESS", blocked_on=blocked)
    stub.routes[f"POST {path}"] = (202, answer)
    result = at(stub, *said)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "job j-1: IN_PROGRESS: step ocr waits.\n"
    assert stub.asked[0].body == body
    assert json.loads(at(stub, *said, "--json").stdout) == answer


def test_payload_can_be_in_a_file(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "said.json").write_text("[1, 2]")
    stub.routes["POST /v1/jobs/j-1:signal"] = (202, job())
    assert at(stub, "jobs", "signal", "j-1", "go", "--payload", "@said.json").exit_code == 0
    assert stub.asked[0].body["payload"] == [1, 2]


@pytest.mark.parametrize(
    ("payload", "says"), [("yes", "--payload is not JSON"), ("@nowhere", "can't read --payload from nowhere")]
)
def test_invalid_payload_is_misuse(stub: Stub, payload: str, says: str) -> None:
    result = at(stub, "jobs", "signal", "j-1", "go", "--payload", payload)
    assert result.exit_code == 2
    assert says in result.stderr
    assert stub.asked == []


def test_refusal_is_one_line(stub: Stub) -> None:
    refused = problem("NOT_AN_APPROVER", "eve is none of those who may approve sign: finance", 403)
    stub.routes["POST /v1/jobs/j-1/steps/sign:approve"] = (403, refused)
    result = at(stub, "approve", "j-1", "sign")
    assert result.exit_code == 1
    assert result.stderr == "lucius: eve is none of those who may approve sign: finance [NOT_AN_APPROVER]\n"
