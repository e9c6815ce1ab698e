"""Permitted approvers, quorum, and the effect on the job."""

from typing import Any

import pytest

from tests.integration.api.conftest import key_entry
from tests.integration.api.protocols import Serve, approval, complete_step, events, fail_step, protocol, statuses, task
from tests.support.api import Api

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


async def waiting_for_approval(serve: Serve, document: dict[str, Any], **command: Any) -> tuple[Api, str, str]:
    """Return a server with a job that waits for approval, the job's id and the step's path."""
    api = await serve(document, config={"api_keys": KEYS})
    job_id = await api.submit(request_type=document["request_type"], **command)
    return api, job_id, f"/v1/jobs/{job_id}/steps/sign"


async def test_approval_by_a_group_member_continues_the_job(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
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
    await complete_step(api, "pay")
    assert (await api.job(job_id))["status"] == "SUCCEEDED"


async def test_named_key_may_approve_without_a_group(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
    (await api.post(f"{sign}:approve", key="board")).ok()
    assert (await statuses(api, job_id))["sign"] == "SUCCEEDED"


async def test_quorum_counts_different_approvers(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, TWO)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    assert "1 of 2 given" in (await api.job(job_id))["blocked_on"]["message"]
    (await api.post(f"{sign}:approve", key="ada")).problem(409, "ALREADY_VOTED")
    (await api.post(f"{sign}:reject", key="ada")).problem(409, "ALREADY_VOTED")
    assert (await statuses(api, job_id))["sign"] == "AWAITING_APPROVAL"
    (await api.post(f"{sign}:approve", key="bob")).ok()
    assert (await statuses(api, job_id))["sign"] == "SUCCEEDED"


async def test_single_rejection_fails_the_job(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, TWO)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    answer = (await api.post(f"{sign}:reject", {"comment": "too expensive"}, key="bob")).ok()
    assert (answer["status"], answer["error"]["code"]) == ("FAILED_FINAL", "REJECTED")
    assert "rejected by bob: too expensive" in answer["error"]["message"]
    assert await events(api, job_id, "STEP_REJECTED") == [{"by": "bob", "comment": "too expensive"}]


async def test_rejection_takes_the_failure_path_of_the_protocol(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, REJECTABLE)
    (await api.post(f"{sign}:reject", key="ada")).ok()
    await complete_step(api, "explain")
    job = await api.job(job_id)
    assert job["status"] == "SUCCEEDED"
    assert await statuses(api, job_id) == {"sign": "FAILED_FINAL", "pay": "SKIPPED", "explain": "SUCCEEDED"}


async def test_approval_without_votes_times_out(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
    assert await api.sweep(after=36_001) == 1
    assert (await api.job(job_id))["error"]["code"] == "APPROVAL_TIMEOUT"
    (await api.post(f"{sign}:approve", key="ada")).problem(409, "APPROVAL_ENDED")


async def test_vote_after_the_decision_is_refused(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
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
async def test_vote_without_permission_is_refused_with_its_reason(
    serve: Serve, key: str, status: int, code: str
) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
    for act in ("approve", "reject"):
        (await api.post(f"{sign}:{act}", key=key)).problem(status, code)
    assert (await api.step(job_id, "sign"))["votes"] == []


async def test_four_eyes_refuses_approval_by_the_submitter(serve: Serve) -> None:
    api = await serve(FOUR_EYES, config={"api_keys": KEYS})
    command = api.command(request_type="FOUR_EYES")
    job_id = (await api.post("/v1/commands", command, key="bob")).ok(202)["jobId"]
    problem = (await api.post(f"/v1/jobs/{job_id}/steps/sign:approve", key="bob")).problem(403, "NOT_AN_APPROVER")
    assert "submitted this job" in problem["detail"]
    (await api.post(f"/v1/jobs/{job_id}/steps/sign:approve", key="ada")).ok()


async def test_vote_during_a_pause_counts_after_resume(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
    (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
    assert (await api.post(f"{sign}:approve", key="ada")).ok()["status"] == "PAUSED"
    (await api.post(f"/v1/jobs/{job_id}:resume")).ok(202)
    await api.sweep()
    assert (await statuses(api, job_id))["sign"] == "SUCCEEDED"


async def test_map_items_are_approved_separately(serve: Serve) -> None:
    api, job_id, _ = await waiting_for_approval(serve, EACH, payload={"invoices": ["A-1", "A-2"]})
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
async def test_step_without_a_pending_approval_is_not_found(serve: Serve, step: str) -> None:
    api, job_id, _ = await waiting_for_approval(serve, EACH, payload={"invoices": ["A-1", "A-2"]})
    (await api.post(f"/v1/jobs/{job_id}/steps/{step}:approve", key="ada")).problem(404, "STEP_NOT_FOUND")


async def test_dev_key_approves_for_every_group(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
    (await api.post(f"{sign}:approve")).ok()
    assert [vote["by"] for vote in (await api.step(job_id, "sign"))["votes"]] == ["dev"]


async def test_new_run_needs_new_votes(serve: Serve) -> None:
    api, job_id, sign = await waiting_for_approval(serve, SIGNED)
    (await api.post(f"{sign}:approve", key="ada")).ok()
    await fail_step(api, "pay")
    (await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "sign"})).ok(202)
    step = await api.step(job_id, "sign")
    assert (step["status"], step["votes"]) == ("AWAITING_APPROVAL", [])
    (await api.post(f"{sign}:approve", key="ada")).ok()
