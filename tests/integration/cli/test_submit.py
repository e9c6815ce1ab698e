"""From arguments to a command, and its answer."""

import json
from pathlib import Path

import pytest

from lucius.cli.errors import Misused
from lucius.cli.jobs import read_payload, ref_of
from tests.integration.cli.support import NOW, Stub, at, event, job, problem, stream

ACCEPTED = {"jobId": "j-1", "status": "DISPATCHING", "duplicate": False}
OCR = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")


def test_omitted_options_are_not_sent(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    result = at(stub, *OCR)
    assert (result.exit_code, result.stdout) == (0, "job j-1 is DISPATCHING\n")
    assert stub.asked[0].headers["content-type"] == "application/json"
    assert stub.asked[0].body == {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": "blob://in/a",
        "output_ref": "blob://out/a",
        "payload": {},
        "schema_version": "v1",
    }


def test_all_options_are_sent(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    said = ("--mode", "burst", "--doc-id", "d", "--key", "k", "--correlation-id", "c", "--prompt", "a", "--prompt", "b")
    assert at(stub, *OCR, *said, "--payload", '{"ocr": {"dpi": 72}}').exit_code == 0
    body = stub.asked[0].body
    assert body["payload"] == {"ocr": {"dpi": 72}, "sis": {"prompt_set": ["a", "b"]}}
    assert [body[name] for name in ("mode", "doc_id", "idempotency_key", "correlation_id")] == ["BURST", "d", "k", "c"]


DUPLICATE = ACCEPTED | {"status": "SUCCEEDED", "duplicate": True, "accepted_at": "2026-01-02T03:04:05.678Z"}
SAME_COMMAND = "a duplicate: the same command was accepted at 2026-01-02 03:04:05 UTC; --again runs it again"


def test_duplicate_shows_when_its_job_was_accepted(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, DUPLICATE)
    assert at(stub, *OCR).stdout == f"job j-1 is SUCCEEDED, {SAME_COMMAND}\n"
    assert json.loads(at(stub, *OCR, "--json").stdout) == DUPLICATE


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_duplicate_is_reported_with_wait_and_watch(stub: Stub, how: str) -> None:
    stub.routes["POST /v1/commands"] = (202, DUPLICATE)
    stub.routes["GET /v1/jobs/j-1"] = (200, job())
    stub.routes["STREAM /v1/jobs/j-1/events"] = stream(event(1, "JOB_ACCEPTED"), event(2, "JOB_SUCCEEDED"))
    assert at(stub, *OCR, how).stdout.splitlines()[0] == f"job j-1 is SUCCEEDED, {SAME_COMMAND}"
    told = json.loads(at(stub, *OCR, how, "--json").stdout)
    assert (told["duplicate"], told["accepted_at"]) == (True, NOW)


def _submit_file(stub: Stub, name: str, *more: str) -> str:
    """Submit a local file and return the idempotency key that was sent."""
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    result = at(stub, "submit", "OCR", "--tenant", "acme", "--input", name, "--output", "blob://out/a", *more)
    assert result.exit_code == 0, result.stderr
    key = stub.asked[-1].body["idempotency_key"]
    assert isinstance(key, str)
    return key


def test_key_of_local_file_changes_with_its_content(stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / "a b.pdf"
    file.write_bytes(b"yesterday")
    first = _submit_file(stub, "a b.pdf")
    assert _submit_file(stub, "a b.pdf") == first
    assert _submit_file(stub, file.as_uri()) == first
    in_capitals = _submit_file(stub, file.as_uri().replace("file:", "FILE:"))
    file.write_bytes(b"today")
    assert _submit_file(stub, "a b.pdf") != first
    assert _submit_file(stub, file.as_uri().replace("file:", "FILE:")) != in_capitals


def test_key_of_local_file_changes_with_the_command(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"x")
    first = _submit_file(stub, "a.pdf")
    assert _submit_file(stub, "a.pdf", "--payload", '{"ocr": {"dpi": 72}}') != first
    assert _submit_file(stub, "a.pdf", "--key", "mine") == "mine"


def test_again_sends_a_fresh_key(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"x")
    keys = {_submit_file(stub, "a.pdf", "--again") for _ in range(2)} | {_submit_file(stub, "blob://in/a", "--again")}
    assert len(keys) == 3
    refused = at(stub, *OCR, "--again", "--key", "mine")
    assert refused.exit_code == 2
    assert "--key" in refused.stderr


def test_json_is_alone_on_stdout(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    assert json.loads(at(stub, *OCR, "--json").stdout) == ACCEPTED


def test_wait_polls_until_the_job_has_ended(stub: Stub) -> None:
    answers = [job(status="IN_PROGRESS"), job(status="SUCCEEDED")]
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = lambda asked: (200, answers.pop(0))
    result = at(stub, *OCR, "--wait")
    assert result.exit_code == 0
    assert result.stdout.startswith("job j-1: SUCCEEDED 0.0 s after it was accepted")
    assert all(float(asked.query["wait"]) > 0 for asked in stub.asked[1:])


def test_wait_exits_with_1_if_the_job_did_not_succeed(stub: Stub) -> None:
    failed = job(status="FAILED_FINAL", error={"code": "BOOM", "message": "it broke"})
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = (200, failed)
    result = at(stub, *OCR, "--wait", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "BOOM"
    assert result.stderr == "lucius: job j-1 ended FAILED_FINAL\n"


@pytest.mark.parametrize("how", [("--wait",), ("--wait", "--json"), ("--watch", "--json")])
def test_accepted_job_is_named_if_waiting_for_it_fails(stub: Stub, how: tuple[str, ...]) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = (403, problem("FORBIDDEN_SCOPE", "this needs a key with the scope read", 403))
    result = at(stub, *OCR, *how)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        "job j-1 was accepted; `lucius explain j-1` shows its state",
        "lucius: this needs a key with the scope read [FORBIDDEN_SCOPE]",
    ]


def test_watch_shows_events(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = (200, job())
    stub.routes["STREAM /v1/jobs/j-1/events"] = stream(event(1, "JOB_ACCEPTED"), event(2, "JOB_SUCCEEDED"))
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": [], "next_cursor": None})
    result = at(stub, *OCR, "--watch")
    assert result.exit_code == 0
    assert [line.split("  ")[1] for line in result.stdout.splitlines()[1:3]] == ["JOB_ACCEPTED", "JOB_SUCCEEDED"]


def test_path_becomes_a_file_ref(tmp_path: Path) -> None:
    source = tmp_path / "a b.pdf"
    source.touch()
    assert ref_of("a b.pdf", must_exist=True) == f"file://{tmp_path}/a%20b.pdf"
    assert ref_of("out/") == f"file://{tmp_path}/out/"
    for ref in ("blob://in/a", "https://h/x", "file:///x"):
        assert ref_of(ref, must_exist=True) == ref


def test_missing_input_file_is_refused_before_anything_is_sent(stub: Stub) -> None:
    result = at(stub, "submit", "OCR", "--tenant", "acme", "--input", "nothing.pdf", "--output", "blob://out/a")
    assert result.exit_code == 2
    assert "nothing.pdf does not exist" in result.stderr
    assert stub.asked == []


def test_payload_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"sis": {"prompt_set": ["x"], "top_k": 1}}')
    assert read_payload("@p.json", ["y"]) == {"sis": {"prompt_set": ["y"], "top_k": 1}}


@pytest.mark.parametrize("payload", ["{", "[]", '{"sis": 1}', "@nothing.json"])
def test_invalid_payload_is_refused(payload: str) -> None:
    with pytest.raises(Misused):
        read_payload(payload, [])
