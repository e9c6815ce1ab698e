"""A job is named by its id or a prefix of it."""

from typing import Any

import pytest

from tests.integration.cli.support import Answer, Asked, Stub, at, job, problem
from tests.integration.cli.test_audit import audit_view
from tests.integration.cli.test_review import item, outcome

FIRST = "01a1ef38-0da2-783b-99f4-e66c1d491de3"
SECOND = "01a1ef38-0da2-7aaa-99f4-e66c1d491de3"


def _serve(stub: Stub, *ids: str) -> None:
    def listed(asked: Asked) -> Answer:
        found = [one for one in ids if one.startswith(asked.query["id_prefix"])]
        return 200, {"jobs": [job(one) for one in found], "next_cursor": None}

    stub.routes["GET /v1/jobs"] = listed
    for one in ids:
        stub.routes[f"GET /v1/jobs/{one}"] = (200, job(one, output={"pages": 7}))
        stub.routes[f"GET /v1/jobs/{one}/steps"] = (200, {"steps": []})
        stub.routes[f"GET /v1/jobs/{one}/events"] = (200, {"events": [], "next_cursor": None})
        stub.routes[f"STREAM /v1/jobs/{one}/events"] = b"event: end\ndata: {}\n\n"
        stub.routes[f"GET /v1/jobs/{one}/audit"] = (200, audit_view(one))
        for act in (":cancel", ":pause", ":resume", ":retry", ":signal", "/steps/sign:approve", "/steps/sign:reject"):
            stub.routes[f"POST /v1/jobs/{one}{act}"] = (200, job(one))


COMMANDS = [
    ("jobs", "show", "JOB"),
    ("jobs", "output", "JOB"),
    ("jobs", "watch", "JOB"),
    ("jobs", "cancel", "JOB"),
    ("jobs", "pause", "JOB"),
    ("jobs", "resume", "JOB"),
    ("jobs", "signal", "JOB", "paid"),
    ("jobs", "retry", "JOB"),
    ("explain", "JOB"),
    ("approve", "JOB", "sign"),
    ("reject", "JOB", "sign"),
    ("audit", "verify", "JOB"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_accepts_a_unique_prefix(stub: Stub, command: tuple[str, ...]) -> None:
    _serve(stub, FIRST)
    result = at(stub, *(FIRST[:13] if word == "JOB" else word for word in command))
    assert result.exit_code == 0, result.stderr
    assert stub.asked[1].path.startswith(f"/v1/jobs/{FIRST}")


def test_review_items_are_listed_by_a_prefix_of_their_job(stub: Stub) -> None:
    _serve(stub, FIRST)
    stub.routes["GET /v1/review"] = (200, {"items": [], "next_cursor": None})
    assert at(stub, "review", "list", "--job", FIRST[:13]).exit_code == 0
    assert stub.asked[-1].query["jobId"] == FIRST


ACTS = [
    ("retry", "--reason", "x"),
    ("skip", "--reason", "x", "--result", "null"),
    ("compensate", "--reason", "x"),
    ("adopt", "--reason", "x"),
    ("discard", "--reason", "x"),
]


def _serve_items(stub: Stub, *items: dict[str, Any]) -> None:
    _serve(stub, FIRST)

    def listed(asked: Asked) -> Answer:
        wanted = {"OPEN"} if asked.query["status"] == "OPEN" else {one["status"] for one in items}
        found = [one for one in items if one["jobId"] == asked.query["jobId"] and one["status"] in wanted]
        return 200, {"items": found[: int(asked.query["limit"])], "next_cursor": None}

    stub.routes["GET /v1/review"] = listed
    for one in items:
        path = f"/v1/review/{one['review_id']}"
        stub.routes[f"GET {path}"] = (200, {**one, "job_status": "FAILED_FINAL", "job_error": None, "acts": []})
        stub.routes |= {f"POST {path}:{act}": (200, outcome(one["review_id"])) for act, *_ in ACTS}


@pytest.mark.parametrize("given", [FIRST[:13], FIRST, f"{FIRST[:13]}~run1"])
def test_review_item_is_shown_by_a_prefix_of_its_id(stub: Stub, given: str) -> None:
    _serve_items(stub, item(f"{FIRST}~run1"))
    result = at(stub, "review", "show", given)
    assert result.exit_code == 0, result.stderr
    assert stub.asked[-1].path == f"/v1/review/{FIRST}~run1"


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act[0])
def test_every_act_on_a_review_item_takes_a_prefix(stub: Stub, act: tuple[str, ...]) -> None:
    _serve_items(stub, item(f"{FIRST}~run1"))
    name, *options = act
    result = at(stub, "review", name, FIRST[:13], *options)
    assert result.exit_code == 0, result.stderr
    assert stub.asked[-1].path == f"/v1/review/{FIRST}~run1:{name}"


def test_acts_on_several_review_items_take_prefixes(stub: Stub) -> None:
    _serve_items(stub, item(f"{FIRST}~run1"))
    stub.routes["POST /v1/review:act"] = (200, {"results": [], "applied": 0, "refused": 0})
    assert at(stub, "review", "discard", FIRST[:13], "j-2~run1", "--reason", "x", "--yes").exit_code == 0
    assert stub.asked[-1].body["ids"] == [f"{FIRST}~run1", "j-2~run1"]


def test_only_open_review_item_of_a_job_is_meant(stub: Stub) -> None:
    _serve_items(stub, item(f"{FIRST}~run2"), item(f"{FIRST}~run1", status="REPROCESSED"))
    assert at(stub, "review", "show", FIRST[:13]).exit_code == 0
    assert stub.asked[-1].path == f"/v1/review/{FIRST}~run2"


def test_open_review_item_behind_many_closed_ones_is_meant(stub: Stub) -> None:
    closed = [item(f"{FIRST}~run{number}", status="REPROCESSED") for number in range(20, 1, -1)]
    _serve_items(stub, *closed, item(f"{FIRST}~run1"))
    assert at(stub, "review", "show", FIRST[:13]).exit_code == 0
    assert stub.asked[-1].path == f"/v1/review/{FIRST}~run1"


def test_job_with_several_review_items_is_refused_with_the_candidates(stub: Stub) -> None:
    _serve_items(stub, item(f"{FIRST}~run1"), item(f"{FIRST}~ocr~2~l-2"))
    result = at(stub, "review", "discard", FIRST[:13], "--reason", "x")
    assert result.exit_code == 2
    assert f"{FIRST}~run1, {FIRST}~ocr~2~l-2" in result.stderr
    assert [asked.method for asked in stub.asked] == ["GET", "GET"]


def test_job_without_review_items_is_refused(stub: Stub) -> None:
    _serve_items(stub)
    result = at(stub, "review", "show", FIRST[:13])
    assert (result.exit_code, result.stderr) == (2, f"lucius: job {FIRST} has no review items\n")


@pytest.mark.parametrize("given", ["01A1EF38-0DA2-7B", "01a1ef380da27b"])
def test_prefix_is_accepted_without_dashes_and_in_capitals(stub: Stub, given: str) -> None:
    _serve(stub)
    assert at(stub, "explain", given).exit_code == 2
    assert stub.asked[0].query["id_prefix"] == "01a1ef38-0da2-7b"


def test_ambiguous_prefix_is_refused_with_the_candidates(stub: Stub) -> None:
    _serve(stub, FIRST, SECOND)
    result = at(stub, "jobs", "cancel", "01a1ef38-0da2")
    assert result.exit_code == 2
    assert FIRST in result.stderr
    assert SECOND in result.stderr
    assert [asked.method for asked in stub.asked] == ["GET"]


@pytest.mark.parametrize(("given", "said"), [("01a1", "at least 8 characters"), ("ffffffff", "no job id begins")])
def test_prefix_that_names_no_job_is_refused(stub: Stub, given: str, said: str) -> None:
    _serve(stub, FIRST)
    result = at(stub, "explain", given)
    assert result.exit_code == 2
    assert said in result.stderr


def test_prefix_with_a_key_without_read_scope_is_refused_with_a_hint(stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (403, problem("FORBIDDEN_SCOPE", "this needs a key with the scope read", 403))
    result = at(stub, "jobs", "cancel", "01a1ef38-0da2")
    assert (result.exit_code, result.stderr) == (
        1,
        "lucius: this needs a key with the scope read [FORBIDDEN_SCOPE]; or give the whole job id\n",
    )
    assert [asked.method for asked in stub.asked] == ["GET"]


def test_whole_id_is_not_looked_up_first(stub: Stub) -> None:
    _serve(stub, FIRST)
    assert at(stub, "explain", FIRST).exit_code == 0
    assert [asked.path for asked in stub.asked] == [f"/v1/jobs/{FIRST}"]


def test_text_that_cannot_be_an_id_is_sent_unchanged(stub: Stub) -> None:
    stub.routes["GET /v1/jobs/nope"] = (404, problem("JOB_NOT_FOUND", "there is no job nope", 404))
    result = at(stub, "explain", "nope")
    assert (result.exit_code, result.stderr) == (1, "lucius: there is no job nope [JOB_NOT_FOUND]\n")
