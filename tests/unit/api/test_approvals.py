"""Who may approve, how many must, and what becomes of the job."""

from typing import Any

import pytest

from tests.support.api import Api
from tests.unit.api.conftest import key_entry
from tests.unit.api.kinds import Serve, approval, break_, do, events, protocol, statuses, task

SIGNED = protocol("SIGNED", approval("sign", "finance", "board", timeout_ms=36_000_000), task("pay"))
TWO = protocol("TWO", approval("sign", "finance", quorum=2), task("pay"))
FOUR_EYES = protocol("FOUR_EYES", approval("sign", "finance", four_eyes=True), task("pay"))
REJECTABLE = protocol(
    "REJECTABLE",
    {**approval("sign", "finance"), "on_failure": "explain"},
    task("pay", on_success="SUCCEED"),
    task("explain"),
)
EACH = protocol(
    "EACH",
    {
        "step_id": "all",
        "kind": "map",
        "map": {"items": "input.invoices", "steps": [approval("sign", "finance", prompt="Pay ${item}?")]},
    },
    input_schema={"type": "object", "properties": {"invoices": {"type": "array"}}},
)

KEYS = [
    key_entry("ada", "approve", "read", tenants=("acme",), groups=("finance",)),
    key_entry("bob", "approve", "submit", tenants=("*",), groups=("finance", "audit")),
    key_entry("eve", "approve", tenants=("*",), groups=("sales",)),
    key_entry("board", "approve", tenants=("acme",)),
    key_entry("clerk", "operate", "read", "submit", tenants=("*",), groups=("finance",)),
    key_entry("abroad", "approve", tenants=("globex",), groups=("finance",)),
]


async def asked(serve: Serve, document: dict[str, Any], **command: Any) -> tuple[Api, str, str]:
    """A server where the job waits for the approval: with the job's id and the step's path."""
    api = await serve(document, config={"api_keys": KEYS})
    job_id = await api.submit(request_type=document["request_type"], **command)
    return api, job_id, f"/v1/jobs/{job_id}/steps/sign"


async def test_a_member_of_a_group_approves_and_the_job_goes_on(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    waiting = await api.job(job_id)
    assert waiting["status"] == "WAITING_APPROVAL"
    assert waiting["blocked_on"]["reason"] == "APPROVAL"
    message = "waiting for approval by finance or board since 08:00:00 UTC, times out at 18:00:00 UTC"
    assert waiting["blocked_on"]["message"] == message
    assert await api.jobs("status=WAITING_APPROVAL&blocked_on=APPROVAL") == [job_id]
    answer = (await api.post(f"{sign}:approve", {"comment": "fine by me"}, key="ada")).ok()
    assert answer["status"] in ("IN_PROGRESS", "DISPATCHING")
    step = await api.step(job_id, "sign")
    (vote,) = step["votes"]
    assert (vote["by"], vote["approves"], vote["comment"]) == ("ada", True, "fine by me")
    assert step["status"] == "SUCCEEDED"
    assert await events(api, job_id, "STEP_APPROVED") == [{"by": "ada", "comment": "fine by me"}]
    await do(api, "pay")
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


async def test_a_person_may_be_named_instead_of_a_group(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    (await api.post(f"{sign}:approve", key="board")).ok()
    assert (await statuses(api, job_id))["sign"] == "SUCCEEDED"


async def test_a_quorum_counts_different_people(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, TWO)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    assert "1 of 2 given" in (await api.job(job_id))["blocked_on"]["message"]
    (await api.post(f"{sign}:approve", key="ada")).problem(409, "ALREADY_VOTED")
    (await api.post(f"{sign}:reject", key="ada")).problem(409, "ALREADY_VOTED")
    assert (await statuses(api, job_id))["sign"] == "AWAITING_APPROVAL"
    (await api.post(f"{sign}:approve", key="bob")).ok()
    assert (await statuses(api, job_id))["sign"] == "SUCCEEDED"


async def test_one_rejection_is_enough(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, TWO)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    answer = (await api.post(f"{sign}:reject", {"comment": "too expensive"}, key="bob")).ok()
    assert (answer["status"], answer["error"]["code"]) == ("FAILED_FINAL", "REJECTED")
    assert "rejected by bob: too expensive" in answer["error"]["message"]
    assert await events(api, job_id, "STEP_REJECTED") == [{"by": "bob", "comment": "too expensive"}]


async def test_a_rejection_takes_the_path_that_the_protocol_has_for_it(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, REJECTABLE)
    (await api.post(f"{sign}:reject", key="ada")).ok()
    await do(api, "explain")
    job = await api.job(job_id)
    assert job["status"] == "SUCCEEDED"
    assert await statuses(api, job_id) == {"sign": "FAILED_FINAL", "pay": "SKIPPED", "explain": "SUCCEEDED"}


async def test_nobody_deciding_in_time_fails_the_step(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    assert await api.sweep(after=36_001) == 1
    assert (await api.job(job_id))["error"]["code"] == "APPROVAL_TIMEOUT"
    (await api.post(f"{sign}:approve", key="ada")).problem(409, "APPROVAL_ENDED")


async def test_a_vote_after_the_end_is_refused(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    (await api.post(f"{sign}:reject", key="bob")).problem(409, "APPROVAL_ENDED")
    assert [vote["by"] for vote in (await api.step(job_id, "sign"))["votes"]] == ["ada"]


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [
        ("eve", 403, "NOT_AN_APPROVER"),
        ("clerk", 403, "FORBIDDEN_SCOPE"),
        ("abroad", 404, "JOB_NOT_FOUND"),
        ("nobody", 401, "UNAUTHENTICATED"),
    ],
)
async def test_whoever_may_not_vote_is_told_so(serve: Serve, key: str, status: int, code: str) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    for act in ("approve", "reject"):
        (await api.post(f"{sign}:{act}", key=key)).problem(status, code)
    assert (await api.step(job_id, "sign"))["votes"] == []


async def test_with_four_eyes_whoever_submitted_does_not_approve(serve: Serve) -> None:
    api = await serve(FOUR_EYES, config={"api_keys": KEYS})
    command = api.command(request_type="FOUR_EYES")
    job_id = (await api.post("/v1/commands", command, key="bob")).ok(202)["jobId"]
    problem = (await api.post(f"/v1/jobs/{job_id}/steps/sign:approve", key="bob")).problem(403, "NOT_AN_APPROVER")
    assert "submitted this job" in problem["detail"]
    (await api.post(f"/v1/jobs/{job_id}/steps/sign:approve", key="ada")).ok()


async def test_votes_are_taken_in_a_pause_and_counted_after_it(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
    assert (await api.post(f"{sign}:approve", key="ada")).ok()["status"] == "PAUSED"
    (await api.post(f"/v1/jobs/{job_id}:resume")).ok(202)
    await api.sweep()
    assert (await statuses(api, job_id))["sign"] == "SUCCEEDED"


async def test_each_item_of_a_map_is_approved_on_its_own(serve: Serve) -> None:
    api, job_id, _ = await asked(serve, EACH, payload={"invoices": ["A-1", "A-2"]})
    assert (await api.step(job_id, "sign.1"))["result"] == {"prompt": "Pay A-2?"}
    (await api.post(f"/v1/jobs/{job_id}/steps/sign.1:approve", key="ada")).ok()
    assert await statuses(api, job_id) == {
        "all": "PROCESSING",
        "sign.0": "AWAITING_APPROVAL",
        "sign.1": "SUCCEEDED",
    }
    (await api.post(f"/v1/jobs/{job_id}/steps/sign.0:approve", key="bob")).ok()
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


@pytest.mark.parametrize("step", ["sign", "sign.2", "sign.x", "all", "pay", "%2e%2e", "nowhere"])
async def test_what_is_no_approval_that_was_asked_for_is_not_found(serve: Serve, step: str) -> None:
    api, job_id, _ = await asked(serve, EACH, payload={"invoices": ["A-1", "A-2"]})
    (await api.post(f"/v1/jobs/{job_id}/steps/{step}:approve", key="ada")).problem(404, "STEP_NOT_FOUND")


async def test_the_dev_key_stands_for_every_group(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    (await api.post(f"{sign}:approve")).ok()
    assert [vote["by"] for vote in (await api.step(job_id, "sign"))["votes"]] == ["dev"]


async def test_a_new_run_asks_anew(serve: Serve) -> None:
    api, job_id, sign = await asked(serve, SIGNED)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    await break_(api, "pay")
    (await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "sign"})).ok(202)
    step = await api.step(job_id, "sign")
    assert (step["status"], step["votes"]) == ("AWAITING_APPROVAL", [])
    (await api.post(f"{sign}:approve", key="ada")).ok()
