"""ACK, heartbeat and RESULT over HTTP: every disposition, and what is stored of callbacks."""

from typing import Any

import pytest

from lucius.core.model.decision import Defaults
from lucius.usecases.callbacks.apply import MAX_EXTRA_BYTES, MAX_RESULT_BYTES
from tests.integration.api.conftest import Start
from tests.support.api import Api

Directive = dict[str, Any]


@pytest.fixture
async def directive(api: Api) -> Directive:
    await api.submit()
    return await api.pull_one()


async def superseded(api: Api, directive: Directive) -> Directive:
    """Let the attempt time out and another replace it; return the new directive."""
    await api.sweep(after=31)
    await api.sweep(after=61)
    second = await api.pull_one()
    assert (second["attempt_no"], second["jobId"]) == (2, directive["jobId"])
    return second


async def test_ack_heartbeat_and_result_are_applied_in_order(api: Api, directive: Directive) -> None:
    job_id = directive["jobId"]
    ack = (await api.callback("ack", directive)).ok()
    assert ack == {"disposition": "APPLIED", "lease_expires_at": "2027-01-15T08:15:00.000Z", "cancel_requested": False}
    assert (await api.step(job_id))["status"] == "PROCESSING"
    api.clock.advance(60)
    beat = (await api.callback("heartbeat", directive, progress=0.25)).ok()
    assert (beat["disposition"], beat["lease_expires_at"]) == ("APPLIED", "2027-01-15T08:16:00.000Z")
    step = await api.step(job_id)
    assert (step["progress"], step["progress_counts"]) == (0.25, None)
    done = (await api.succeed(directive, result={"a": 1}, artifact_refs=["file:///x"])).ok()
    assert done == {"disposition": "APPLIED", "lease_expires_at": None, "cancel_requested": False}
    step = await api.step(job_id)
    assert (step["status"], step["result"], step["artifact_refs"]) == ("SUCCEEDED", {"a": 1}, ["file:///x"])


async def test_progress_counts_are_shown_for_step_and_attempt(api: Api, directive: Directive) -> None:
    said = {"done": 7, "total": 20, "unit": "page\x1b[2J"}
    (await api.callback("heartbeat", directive, progress=said)).ok()
    step = await api.step(directive["jobId"])
    counts = {"done": 7, "total": 20, "unit": "page[2J"}
    assert (step["progress"], step["progress_counts"]) == (0.35, counts)
    (with_attempts,) = (await api.get(f"/v1/jobs/{directive['jobId']}/steps")).ok()["steps"]
    assert with_attempts["attempts"][0]["progress_counts"] == counts
    job = (await api.get(f"/v1/jobs/{directive['jobId']}")).ok()
    assert "page[2J 7 of 20" in job["blocked_on"]["message"]


async def test_total_below_done_is_dropped_and_the_heartbeat_applied(api: Api, directive: Directive) -> None:
    answer = (await api.callback("heartbeat", directive, progress={"done": 30, "total": 20})).ok()
    assert answer["disposition"] == "APPLIED"
    step = await api.step(directive["jobId"])
    assert (step["progress"], step["progress_counts"]) == (None, {"done": 30, "total": None, "unit": ""})
    job = (await api.get(f"/v1/jobs/{directive['jobId']}")).ok()
    assert ", 30 done)" in job["blocked_on"]["message"]


@pytest.mark.parametrize("said", [0, 1])
async def test_integer_progress_is_accepted(api: Api, directive: Directive, said: int) -> None:
    (await api.callback("heartbeat", directive, progress=said)).ok()
    assert (await api.step(directive["jobId"]))["progress"] == said


async def test_result_without_an_ack_is_applied(api: Api, directive: Directive) -> None:
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"
    assert (await api.job(directive["jobId"]))["status"] == "SUCCEEDED"


async def test_repeated_callback_is_a_duplicate(api: Api, directive: Directive) -> None:
    (await api.callback("ack", directive)).ok()
    assert (await api.callback("ack", directive)).ok()["disposition"] == "DUPLICATE"
    (await api.succeed(directive, result={"a": 1, "b": 2})).ok()
    assert (await api.succeed(directive, result={"b": 2, "a": 1})).ok()["disposition"] == "DUPLICATE"
    assert (await api.callback("ack", directive)).ok()["disposition"] == "DUPLICATE"


async def test_callback_contradicting_the_end_is_late_and_changes_nothing(api: Api, directive: Directive) -> None:
    (await api.succeed(directive, result=1)).ok()
    before = await api.job(directive["jobId"])
    for answer in (
        await api.succeed(directive, result=2),
        await api.fail(directive),
        await api.callback("heartbeat", directive),
    ):
        assert answer.ok()["disposition"] == "LATE"
    after = await api.job(directive["jobId"])
    assert (after["status"], after["steps"][0]["result"]) == (before["status"], 1)
    assert (await api.event_types(directive["jobId"])).count("CALLBACK_RESULT") == 3


async def test_callback_of_a_fenced_attempt_is_stale_and_its_success_is_kept(api: Api, directive: Directive) -> None:
    second = await superseded(api, directive)
    said: dict[str, dict[str, Any]] = {
        "ack": {},
        "heartbeat": {},
        "result": {"status": "SUCCEEDED", "result": {"old": True}},
    }
    for kind, more in said.items():
        problem = (await api.callback(kind, directive, **more)).problem(409, "STALE_CALLBACK")
        assert (problem["disposition"], problem["jobId"]) == ("STALE", directive["jobId"])
    step = await api.step(directive["jobId"])
    assert (step["status"], step["attempt_no"], step["result"]) == ("INITIATED", 2, None)
    first, _ = (await api.get(f"/v1/jobs/{directive['jobId']}/attempts")).ok()["attempts"]
    assert (first["outcome"], first["quarantined"]["result"]) == ("ACK_TIMEOUT", {"old": True})
    assert (await api.succeed(second)).ok()["disposition"] == "APPLIED"


async def test_success_after_a_timeout_counts_until_the_retry(api: Api, directive: Directive) -> None:
    (await api.callback("ack", directive)).ok()
    await api.sweep(after=901)
    assert (await api.step(directive["jobId"]))["status"] == "FAILED_RETRY"
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"
    assert (await api.job(directive["jobId"]))["status"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("said", "status", "failure_class"),
    [
        ({"status": "FAILED"}, "FAILED_RETRY", "RETRYABLE"),
        ({"status": "FAILED_RETRY"}, "FAILED_RETRY", "RETRYABLE"),
        ({"status": "FAILED_FINAL"}, "FAILED_FINAL", "NON_RETRYABLE"),
        ({"status": "FAILED", "failure_class": "NON_RETRYABLE"}, "FAILED_FINAL", "NON_RETRYABLE"),
        ({"status": "FAILED", "failure_class": "rate_limited"}, "FAILED_RETRY", "RATE_LIMITED"),
        ({"status": "FAILED", "failure_class": "NEVER_HEARD_OF"}, "FAILED_RETRY", "RETRYABLE"),
        ({"status": "FAILED", "error": None}, "FAILED_RETRY", "RETRYABLE"),
    ],
)
async def test_failure_statuses_and_classes_are_understood(
    api: Api, directive: Directive, said: dict[str, Any], status: str, failure_class: str
) -> None:
    assert (await api.fail(directive, **said)).ok()["disposition"] == "APPLIED"
    job = await api.job(directive["jobId"])
    (step,) = job["steps"]
    assert step["status"] == status
    assert step["last_error"]["code"] == ("UNSPECIFIED" if said.get("error", "") is None else "BROKEN")
    (attempt,) = (await api.get(f"/v1/jobs/{job['jobId']}/attempts")).ok()["attempts"]
    assert (attempt["outcome"], attempt["failure_class"]) == ("FAILED", failure_class)
    assert job["status"] == ("FAILED_FINAL" if status == "FAILED_FINAL" else "IN_PROGRESS")


async def test_service_can_set_the_retry_delay(start: Start) -> None:
    api = await start(defaults=Defaults(backoff_scale=0))
    job_id = await api.submit()
    (await api.fail(await api.pull_one(), failure_class="RATE_LIMITED", retry_after_seconds=90)).ok()
    assert (await api.step(job_id))["retry_at"] == "2027-01-15T08:01:30.000Z"


async def test_unknown_fields_are_kept(api: Api, directive: Directive) -> None:
    extra: dict[str, Any] = {
        "ACKED": True,
        "started_at": "2027-01-15T08:00:00Z",
        "logs_ref": "blob://logs/1",
        "nested": {"a": [1]},
    }
    (await api.callback("ack", directive, **extra)).ok()
    (await api.succeed(directive, **extra)).ok()
    events = (await api.get(f"/v1/jobs/{directive['jobId']}/events")).ok()["events"]
    assert [event["data"]["extra"] for event in events if event["type"].startswith("CALLBACK_")] == [extra, extra]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


BAD: list[Any] = [
    pytest.param("result", {}, "/status", id="no status"),
    pytest.param("result", {"status": "DONE"}, "/status", id="unknown status"),
    pytest.param("result", {"status": "SUCCEEDED", "artifact_refs": [1]}, "/artifact_refs/0", id="ref a number"),
    pytest.param("result", {"status": "FAILED", "error": {}}, "/error/code", id="error without a code"),
    pytest.param("result", {"status": "FAILED", "retry_after_seconds": -1}, "/retry_after_seconds", id="negative"),
    pytest.param("ack", {"more": "x" * MAX_EXTRA_BYTES}, "", id="extra fields too large"),
    pytest.param("ack", {"more": nested(300)}, "", id="extra fields too deep"),
    pytest.param("heartbeat", {"progress": 1.5}, "/progress", id="progress beyond the end"),
    pytest.param("heartbeat", {"progress": "half"}, "/progress", id="progress in words"),
    pytest.param("heartbeat", {"progress": {"total": 3}}, "/progress/done", id="counts without done"),
    pytest.param("heartbeat", {"progress": {"done": -1}}, "/progress/done", id="negative count"),
    pytest.param("heartbeat", {"progress": {"done": 1, "unit": "x" * 33}}, "/progress/unit", id="long unit"),
    pytest.param("ack", {"attempt_no": "1"}, "/attempt_no", id="attempt in quotes"),
    pytest.param("ack", {"lease_id": None}, "/lease_id", id="lease missing"),
]


@pytest.mark.parametrize(("kind", "said", "pointer"), BAD)
async def test_invalid_callback_changes_nothing(
    api: Api, directive: Directive, kind: str, said: dict[str, Any], pointer: str
) -> None:
    before = await api.event_types(directive["jobId"])
    problem = (await api.callback(kind, directive, **said)).problem(422, "INVALID_CALLBACK")
    assert problem["errors"][0]["pointer"] == pointer
    assert await api.event_types(directive["jobId"]) == before
    assert (await api.callback("ack", directive)).ok()["disposition"] == "APPLIED"


async def test_unknown_result_status_is_refused_naming_the_valid_ones(api: Api, directive: Directive) -> None:
    problem = (await api.callback("result", directive, status="SUCCEDED")).problem(422, "INVALID_CALLBACK")
    statuses = "SUCCEEDED, FAILED, FAILED_RETRY, FAILED_FINAL"
    expected = f"Invalid enum value 'SUCCEDED'; it can be {statuses}; did you mean SUCCEEDED?"
    assert problem["errors"] == [{"pointer": "/status", "message": expected}]


@pytest.mark.parametrize("result", [nested(99), "x" * (MAX_RESULT_BYTES - 2), 10**300, 1.5e308, "☃\u0000", {"": None}])
async def test_result_at_the_limit_is_kept_unchanged(api: Api, directive: Directive, result: Any) -> None:
    (await api.succeed(directive, result=result)).ok()
    assert (await api.step(directive["jobId"]))["result"] == result


@pytest.mark.parametrize(
    ("result", "code", "says"),
    [
        ("x" * MAX_RESULT_BYTES, "RESULT_TOO_LARGE", "may have 262144 bytes of JSON and has 262146"),
        (nested(101), "RESULT_TOO_DEEP", "may be nested 100 levels deep"),
    ],
    ids=["large", "deep"],
)
async def test_oversized_result_fails_the_step_permanently_with_the_reason(
    api: Api, directive: Directive, result: Any, code: str, says: str
) -> None:
    assert (await api.succeed(directive, result=result, logs_ref="blob://l/1")).ok()["disposition"] == "APPLIED"
    job = await api.job(directive["jobId"])
    (step,) = job["steps"]
    assert (job["status"], step["status"], step["result"]) == ("FAILED_FINAL", "FAILED_FINAL", None)
    assert step["last_error"]["code"] == code
    assert says in step["last_error"]["message"]
    (attempt,) = (await api.get(f"/v1/jobs/{job['jobId']}/attempts")).ok()["attempts"]
    assert attempt["failure_class"] == "NON_RETRYABLE"
    assert (await api.succeed(directive, result=result)).ok()["disposition"] == "DUPLICATE"


async def test_unreadably_large_result_ends_the_attempt(api: Api, directive: Directive) -> None:
    (await api.succeed(directive, result="x" * 2_000_000)).problem(413, "BODY_TOO_LARGE")
    job = await api.job(directive["jobId"])
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "RESULT_TOO_LARGE")
    assert "too large to be read" in job["error"]["message"]


async def test_unreadably_large_heartbeat_changes_nothing(api: Api, directive: Directive) -> None:
    (await api.callback("heartbeat", directive, more="x" * 2_000_000)).problem(413, "BODY_TOO_LARGE")
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"


async def test_results_are_inputs_of_later_steps(api: Api) -> None:
    await api.submit(request_type="OCR_EMBEDDING_SIS", payload={"sis": {"prompt_set": ["?"]}})
    for service, sees in (("ocr", []), ("embedding", ["ocr"]), ("sis", ["ocr", "embedding"])):
        directive = await api.pull_one(service)
        assert directive["inputs"] == {
            step: {"result": {"by": step}, "artifact_refs": [f"file:///{step}"]} for step in sees
        }
        assert directive["last_step"] is (service == "sis")
        (await api.succeed(directive, result={"by": service}, artifact_refs=[f"file:///{service}"])).ok()


async def test_failure_message_is_stored_without_secrets(api: Api) -> None:
    job_id = await api.submit()
    directive = await api.pull_one()
    error = {"code": "BROKEN", "message": "no route to https://ada:pw@db/x?sig=1 with token=abc " + "x" * 2_000}
    (await api.fail(directive, failure_class="NON_RETRYABLE", error=error)).ok()
    message = (await api.job(job_id))["error"]["message"]
    assert "no route to https://[…]@db/x?[…] with token=[…] xxx" in message
    assert len(message) < 1_200
    events = str((await api.get(f"/v1/jobs/{job_id}/events")).ok())
    assert "ada:pw" not in events
    assert "abc " not in events
