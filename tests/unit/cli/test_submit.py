"""From arguments to a command, and what comes back."""

import json
from pathlib import Path

import pytest

from lucius.cli.errors import Misused
from lucius.cli.jobs import read_payload, ref_of
from tests.unit.cli.support import Stub, at, event, job, stream

ACCEPTED = {"jobId": "j-1", "status": "DISPATCHING", "duplicate": False}
OCR = ("submit", "OCR", "--tenant", "acme", "--input", "blob://in/a", "--output", "blob://out/a")


def test_what_is_left_out_is_not_sent(stub: Stub) -> None:
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


def test_everything_that_is_said_is_sent(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    said = ("--mode", "burst", "--doc-id", "d", "--key", "k", "--correlation-id", "c", "--prompt", "a", "--prompt", "b")
    assert at(stub, *OCR, *said, "--payload", '{"ocr": {"dpi": 72}}').exit_code == 0
    body = stub.asked[0].body
    assert body["payload"] == {"ocr": {"dpi": 72}, "sis": {"prompt_set": ["a", "b"]}}
    assert [body[name] for name in ("mode", "doc_id", "idempotency_key", "correlation_id")] == ["BURST", "d", "k", "c"]


def test_a_duplicate_is_called_one(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED | {"duplicate": True})
    assert at(stub, *OCR).stdout == "job j-1 is DISPATCHING, which was accepted before\n"


def test_json_is_all_there_is_on_stdout(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    assert json.loads(at(stub, *OCR, "--json").stdout) == ACCEPTED


def test_wait_asks_until_the_job_has_ended(stub: Stub) -> None:
    answers = [job(status="IN_PROGRESS"), job(status="SUCCEEDED")]
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = lambda asked: (200, answers.pop(0))
    result = at(stub, *OCR, "--wait")
    assert result.exit_code == 0
    assert result.stdout.startswith("job j-1: SUCCEEDED 0.0 s after it was accepted")
    assert all(float(asked.query["wait"]) > 0 for asked in stub.asked[1:])


def test_wait_ends_with_1_if_the_job_did_not_succeed(stub: Stub) -> None:
    failed = job(status="FAILED_FINAL", error={"code": "BOOM", "message": "it broke"})
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = (200, failed)
    result = at(stub, *OCR, "--wait", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "BOOM"
    assert result.stderr == "lucius: job j-1 ended FAILED_FINAL\n"


def test_watch_shows_events(stub: Stub) -> None:
    stub.routes["POST /v1/commands"] = (202, ACCEPTED)
    stub.routes["GET /v1/jobs/j-1"] = (200, job())
    stub.routes["STREAM /v1/jobs/j-1/events"] = stream(event(1, "JOB_ACCEPTED"), event(2, "JOB_SUCCEEDED"))
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": [], "next_cursor": None})
    result = at(stub, *OCR, "--watch")
    assert result.exit_code == 0
    assert [line.split("  ")[1] for line in result.stdout.splitlines()[1:3]] == ["JOB_ACCEPTED", "JOB_SUCCEEDED"]


def test_a_path_becomes_a_file_ref(tmp_path: Path) -> None:
    source = tmp_path / "a b.pdf"
    source.touch()
    assert ref_of("a b.pdf", must_exist=True) == f"file://{tmp_path}/a%20b.pdf"
    assert ref_of("out/") == f"file://{tmp_path}/out/"
    for ref in ("blob://in/a", "https://h/x", "file:///x"):
        assert ref_of(ref, must_exist=True) == ref


def test_an_input_path_that_leads_nowhere_is_refused_before_anything_is_sent(stub: Stub) -> None:
    result = at(stub, "submit", "OCR", "--tenant", "acme", "--input", "nothing.pdf", "--output", "blob://out/a")
    assert result.exit_code == 2
    assert "there is no file nothing.pdf" in result.stderr
    assert stub.asked == []


def test_a_payload_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"sis": {"prompt_set": ["x"], "top_k": 1}}')
    assert read_payload("@p.json", ["y"]) == {"sis": {"prompt_set": ["y"], "top_k": 1}}


@pytest.mark.parametrize("payload", ["{", "[]", '{"sis": 1}', "@nothing.json"])
def test_a_payload_that_is_none_is_refused(payload: str) -> None:
    with pytest.raises(Misused):
        read_payload(payload, [])
