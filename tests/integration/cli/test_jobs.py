"""Listing, showing, watching, cancelling, explaining."""

import json
from typing import Any

import pytest

from tests.integration.cli.support import Answer, Asked, Stub, at, attempt, event, job, step, stream


def test_listing_continues_with_the_next_page(stub: Stub) -> None:
    def page(asked: Asked) -> Answer:
        if asked.query.get("cursor") == "c":
            return 200, {"jobs": [job("j-3")], "next_cursor": None}
        return 200, {"jobs": [job("j-1"), job("j-2")], "next_cursor": "c"}

    stub.routes["GET /v1/jobs"] = page
    result = at(stub, "jobs", "list", "--all", "--json")
    assert [found["jobId"] for found in json.loads(result.stdout)["jobs"]] == ["j-1", "j-2", "j-3"]


def test_listing_stops_at_its_limit(stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job("j-1"), job("j-2")], "next_cursor": "c"})
    result = at(stub, "jobs", "list", "--limit", "2")
    assert [asked.query["limit"] for asked in stub.asked] == ["2"]
    assert "--all for more" in result.stderr


def test_filters_are_sent(stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [], "next_cursor": None})
    said = ["--tenant", "acme", "--status", "in_progress", "--request-type", "OCR", "--blocked-on", "ACK"]
    said += ["--doc-id", "d1", "--correlation-id", "c1", "--target", "deal/7", "--error-code", "E"]
    said += ["--completed-after", "2027-01-15T08:00:00Z", "--completed-before", "2027-01-16T08:00:00Z"]
    result = at(stub, "jobs", "list", *said)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no jobs\n")
    expected = {"tenant_id": "acme", "status": "IN_PROGRESS", "request_type": "OCR", "blocked_on": "ACK"}
    expected |= {"doc_id": "d1", "correlation_id": "c1", "target": "deal/7", "error_code": "E"}
    expected |= {"completed_after": "2027-01-15T08:00:00Z", "completed_before": "2027-01-16T08:00:00Z"}
    assert stub.asked[0].query == expected | {"limit": "20"}


def test_table_has_a_line_for_each_job_with_its_reason(stub: Stub) -> None:
    blocked = {"reason": "ACK", "message": "waits for ocr [x]", "since": "2026-01-02T03:04:05Z", "until": None}
    waiting = job("01890000-0000-7000-8000-000000000001", "IN_PROGRESS", blocked_on=blocked)
    failed = job("j-2", "FAILED_FINAL", error={"code": "BOOM", "message": "it broke"})
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [waiting, failed], "next_cursor": None})
    lines = at(stub, "jobs", "list").stdout.splitlines()
    assert lines[0].split() == ["JOB", "TENANT", "TYPE", "STATUS", "STEP", "AGE", "WHY"]
    assert lines[1].startswith("01890000-0000-7000-8000-000000000001  acme    OCR   IN_PROGRESS")
    assert "waits for ocr [x]" in lines[1]
    assert "it broke" in lines[2]


def test_show_prints_every_attempt_and_event(stub: Stub) -> None:
    attempts = [
        attempt(1, "LEASE_EXPIRED", error={"code": "LEASE_EXPIRED", "message": "fell silent"}),
        attempt(2),
    ]
    stub.routes["GET /v1/jobs/j-1"] = (200, job(attempts_total=2))
    stub.routes["GET /v1/jobs/j-1/steps"] = (200, {"steps": [step(attempt_no=2, attempts=attempts)]})
    said = [event(1, "JOB_ACCEPTED"), event(2, "CALLBACK_ACK", data={"disposition": "STALE"})]
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": said, "next_cursor": None})
    shown = at(stub, "jobs", "show", "j-1").stdout
    assert "LEASE_EXPIRED" in shown
    assert "fell silent" in shown
    assert "2 events: JOB_ACCEPTED, CALLBACK_ACK STALE" in shown
    as_json = json.loads(at(stub, "jobs", "show", "j-1", "--json").stdout)
    assert [found["attempt_no"] for found in as_json["steps"][0]["attempts"]] == [1, 2]
    assert len(as_json["events"]) == 2


def test_show_keeps_unknown_fields_in_json(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/j-1"] = (200, job(brand_new="field"))
    stub.routes["GET /v1/jobs/j-1/steps"] = (200, {"steps": []})
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": [], "next_cursor": None})
    assert json.loads(at(stub, "jobs", "show", "j-1", "--json").stdout)["brand_new"] == "field"


def test_watch_resumes_after_the_last_event_when_the_stream_breaks(stub: Stub) -> None:
    streams = [
        stream(event(1, "JOB_ACCEPTED"), ended=False),
        stream(event(2, "STEP_DISPATCHED", stepId="ocr", attempt_no=1), event(3, "JOB_FAILED_FINAL")),
    ]
    states = [job(status="IN_PROGRESS"), job(status="IN_PROGRESS")]
    failed = job(status="FAILED_FINAL", error={"code": "BOOM", "message": "it broke"})
    stub.routes["GET /v1/jobs/j-1"] = lambda asked: (200, states.pop(0) if states else failed)
    stub.routes["STREAM /v1/jobs/j-1/events"] = lambda asked: streams.pop(0)
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": [], "next_cursor": None})
    result = at(stub, "jobs", "watch", "j-1")
    assert result.exit_code == 1
    told = [line.split("  ")[1].strip() for line in result.stdout.splitlines()[:3]]
    assert told == ["JOB_ACCEPTED", "STEP_DISPATCHED", "JOB_FAILED_FINAL"]
    assert "it broke [BOOM]" in result.stdout
    resumed = [asked.headers["last-event-id"] for asked in stub.asked if "last-event-id" in asked.headers]
    assert resumed == ["0", "1"]


def test_cancel_sends_the_reason(stub: Stub) -> None:
    stub.routes["POST /v1/jobs/j-1:cancel"] = (202, job(status="CANCELLED"))
    result = at(stub, "jobs", "cancel", "j-1", "--reason", "a mistake")
    assert stub.asked[0].body == {"reason": "a mistake"}
    assert result.stdout.startswith("job j-1: CANCELLED")


def test_explain_is_one_sentence(stub: Stub) -> None:
    blocked = {"reason": "RETRY", "message": "step ocr waits for its retry", "since": "2026-01-02T03:04:05Z"}
    stub.routes["GET /v1/jobs/j-1"] = (200, job(status="IN_PROGRESS", blocked_on=blocked))
    assert at(stub, "explain", "j-1").stdout == "IN_PROGRESS: step ocr waits for its retry.\n"
    told = json.loads(at(stub, "explain", "j-1", "--json").stdout)
    assert (told["status"], told["blocked_on"]["reason"]) == ("IN_PROGRESS", "RETRY")


def test_explain_names_the_reported_output(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/j-1"] = (200, job(reported_output_ref="blob://out/a"))
    assert at(stub, "explain", "j-1").stdout.endswith("; its output is blob://out/a\n")


@pytest.mark.parametrize(
    "fields", [{"output": {"output_ref": "blob://out/a"}}, {"steps": [step(artifact_refs=["blob://out/a"])]}]
)
def test_unreported_output_is_not_named(stub: Stub, fields: dict[str, Any]) -> None:
    stub.routes["GET /v1/jobs/j-1"] = (200, job(**fields))
    stub.routes["GET /v1/jobs/j-1/steps"] = (200, {"steps": []})
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": [], "next_cursor": None})
    assert at(stub, "explain", "j-1").stdout.endswith("; no output was reported\n")
    assert "none was reported; requested at blob://out/a" in at(stub, "jobs", "show", "j-1").stdout


def test_explain_describes_the_end_of_a_job(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/j-1"] = (200, job(attempts_total=2))
    expected = "SUCCEEDED 0.0 s after it was accepted, with 2 attempts at 1 step; no output was reported\n"
    assert at(stub, "explain", "j-1").stdout == expected
    failed = job(status="FAILED_FINAL", error={"code": "BOOM", "message": "it broke"})
    stub.routes["GET /v1/jobs/j-1"] = (200, failed)
    assert at(stub, "explain", "j-1").stdout == "FAILED_FINAL 0.0 s after it was accepted: it broke [BOOM]\n"


def test_unusual_job_id_is_sent_as_one_path_segment(stub: Stub) -> None:
    at(stub, "explain", "a/../b?c")
    assert stub.asked[0].path == "/v1/jobs/a/../b?c"
    assert stub.asked[0].query == {}
