"""`lucius audit verify`: one line for each break, and a reliable exit code."""

import json
from typing import Any

import pytest

from tests.integration.cli.support import Answer, Asked, Stub, at, job, problem


def audit_view(job_id: str, *breaks: tuple[int, str], **fields: Any) -> dict[str, Any]:
    found = [{"seq": seq, "what": what} for seq, what in breaks]
    return {"jobId": job_id, "valid": not breaks, "events": 6, "breaks": found, **fields}


def test_intact_history_is_reported_in_one_line(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/j-1/audit"] = (200, audit_view("j-1", unsealed=2))
    result = at(stub, "audit", "verify", "j-1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "1 job, 6 events: all unchanged; 2 events from before hash chains were introduced\n"


def test_each_break_is_a_line_and_the_exit_code_is_1(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/j-1/audit"] = (200, audit_view("j-1", (3, "was edited"), (5, "is missing")))
    stub.routes["GET /v1/jobs/j-2/audit"] = (200, audit_view("j-2"))
    result = at(stub, "audit", "verify", "j-1", "j-2")
    assert result.exit_code == 1
    assert result.stdout == "job j-1: event 3 was edited\njob j-1: event 5 is missing\n"
    assert result.stderr == "lucius: the history of 1 of 2 jobs was tampered with\n"


def test_all_option_verifies_every_job_of_the_tenant(stub: Stub) -> None:
    def page(asked: Asked) -> Answer:
        if asked.query.get("cursor") == "c":
            return 200, {"jobs": [job("j-2")], "next_cursor": None}
        return 200, {"jobs": [job("j-1")], "next_cursor": "c"}

    stub.routes["GET /v1/jobs"] = page
    for job_id in ("j-1", "j-2"):
        stub.routes[f"GET /v1/jobs/{job_id}/audit"] = (200, audit_view(job_id))
    result = at(stub, "audit", "verify", "--all", "--tenant", "acme")
    assert result.stdout.startswith("2 jobs, 12 events")
    assert stub.asked[0].query["tenant_id"] == "acme"


@pytest.mark.parametrize(("breaks", "code"), [((), 0), (((1, "was edited"),), 1)])
def test_json_output_has_every_break(stub: Stub, breaks: tuple[tuple[int, str], ...], code: int) -> None:
    stub.routes["GET /v1/jobs/j-1/audit"] = (200, audit_view("j-1", *breaks))
    result = at(stub, "audit", "verify", "j-1", "--json")
    assert result.exit_code == code
    told = json.loads(result.stdout)
    assert (told["valid"], told["jobs"][0]["jobId"], len(told["jobs"][0]["breaks"])) == (not breaks, "j-1", len(breaks))


@pytest.mark.parametrize("said", [(), ("j-1", "--all")])
def test_either_jobs_or_all_must_be_given(stub: Stub, said: tuple[str, ...]) -> None:
    result = at(stub, "audit", "verify", *said)
    assert (result.exit_code, result.stderr) == (2, "lucius: give jobs, or --all\n")


def test_unknown_job_is_refused(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/j-1/audit"] = (404, problem("JOB_NOT_FOUND", "there is no job j-1", 404))
    assert at(stub, "audit", "verify", "j-1").exit_code == 1
