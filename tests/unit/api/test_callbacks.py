"""ACK, heartbeat and RESULT over HTTP: every disposition, and what is kept of what services say."""

from typing import Any

import pytest

from lucius.core.decision import Defaults
from lucius.service.callbacks import MAX_EXTRA_BYTES, MAX_RESULT_BYTES
from tests.support.api import Api
from tests.unit.api.conftest import Start

Directive = dict[str, Any]


@pytest.fixture
async def directive(api: Api) -> Directive:
    await api.submit()
    return await api.pull_one()


async def superseded(api: Api, directive: Directive) -> Directive:
    """The attempt times out and another takes its place."""
    await api.sweep(after=31)
    await api.sweep(after=61)
    second = await api.pull_one()
    assert (second["attempt_no"], second["jobId"]) == (2, directive["jobId"])
    return second


async def test_each_callback_is_applied_in_turn(api: Api, directive: Directive) -> None:
    job_id = directive["jobId"]
    ack = (await api.callback("ack", directive)).ok()
    assert ack == {"disposition": "APPLIED", "lease_expires_at": "2027-01-15T08:15:00.000Z", "cancel_requested": False}
    assert (await api.step(job_id))["status"] == "PROCESSING"
    api.clock.advance(60)
    beat = (await api.callback("heartbeat", directive, progress=0.25)).ok()
    assert (beat["disposition"], beat["lease_expires_at"]) == ("APPLIED", "2027-01-15T08:16:00.000Z")
    assert (await api.step(job_id))["progress"] == 0.25
    done = (await api.succeed(directive, result={"a": 1}, artifact_refs=["file:///x"])).ok()
    assert done == {"disposition": "APPLIED", "lease_expires_at": None, "cancel_requested": False}
    step = await api.step(job_id)
    assert (step["status"], step["result"], step["artifact_refs"]) == ("SUCCEEDED", {"a": 1}, ["file:///x"])


async def test_a_result_says_enough_alone(api: Api, directive: Directive) -> None:
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"
    assert (await api.job(directive["jobId"]))["status"] == "SUCCEEDED"


async def test_what_was_said_already_is_a_duplicate(api: Api, directive: Directive) -> None:
    (await api.callback("ack", directive)).ok()
    assert (await api.callback("ack", directive)).ok()["disposition"] == "DUPLICATE"
    (await api.succeed(directive, result={"a": 1, "b": 2})).ok()
    assert (await api.succeed(directive, result={"b": 2, "a": 1})).ok()["disposition"] == "DUPLICATE"
    assert (await api.callback("ack", directive)).ok()["disposition"] == "DUPLICATE"


async def test_what_contradicts_the_end_is_late_and_changes_nothing(api: Api, directive: Directive) -> None:
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


async def test_a_fenced_attempt_is_stale_and_its_success_is_kept(api: Api, directive: Directive) -> None:
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


async def test_a_success_after_a_timeout_still_counts_before_the_retry(api: Api, directive: Directive) -> None:
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
async def test_failures_in_all_their_words(
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


async def test_a_service_can_ask_for_time(start: Start) -> None:
    api = await start(defaults=Defaults(backoff_scale=0))
    job_id = await api.submit()
    (await api.fail(await api.pull_one(), failure_class="RATE_LIMITED", retry_after_seconds=90)).ok()
    assert (await api.step(job_id))["retry_at"] == "2027-01-15T08:01:30.000Z"


async def test_fields_we_do_not_know_are_kept(api: Api, directive: Directive) -> None:
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
    pytest.param("ack", {"attempt_no": "1"}, "/attempt_no", id="attempt in quotes"),
    pytest.param("ack", {"lease_id": None}, "/lease_id", id="lease missing"),
]


@pytest.mark.parametrize(("kind", "said", "pointer"), BAD)
async def test_a_callback_that_does_not_follow_the_contract_changes_nothing(
    api: Api, directive: Directive, kind: str, said: dict[str, Any], pointer: str
) -> None:
    before = await api.event_types(directive["jobId"])
    problem = (await api.callback(kind, directive, **said)).problem(422, "INVALID_CALLBACK")
    assert problem["errors"][0]["pointer"] == pointer
    assert await api.event_types(directive["jobId"]) == before
    assert (await api.callback("ack", directive)).ok()["disposition"] == "APPLIED"


@pytest.mark.parametrize("result", [nested(99), "x" * (MAX_RESULT_BYTES - 2), 10**300, 1.5e308, "☃\u0000", {"": None}])
async def test_what_just_fits_is_kept_as_it_is(api: Api, directive: Directive, result: Any) -> None:
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
async def test_a_result_that_no_job_can_carry_fails_the_step_for_good_and_says_why(
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


async def test_a_result_too_large_to_be_read_ends_the_attempt_too(api: Api, directive: Directive) -> None:
    (await api.succeed(directive, result="x" * 2_000_000)).problem(413, "BODY_TOO_LARGE")
    job = await api.job(directive["jobId"])
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "RESULT_TOO_LARGE")
    assert "too large to be read" in job["error"]["message"]


async def test_a_heartbeat_too_large_to_be_read_changes_nothing(api: Api, directive: Directive) -> None:
    (await api.callback("heartbeat", directive, more="x" * 2_000_000)).problem(413, "BODY_TOO_LARGE")
    assert (await api.succeed(directive)).ok()["disposition"] == "APPLIED"


async def test_results_go_to_later_steps_as_inputs(api: Api) -> None:
    await api.submit(request_type="OCR_EMBEDDING_SIS", payload={"sis": {"prompt_set": ["?"]}})
    for service, sees in (("ocr", []), ("embedding", ["ocr"]), ("sis", ["ocr", "embedding"])):
        directive = await api.pull_one(service)
        assert directive["inputs"] == {
            step: {"result": {"by": step}, "artifact_refs": [f"file:///{step}"]} for step in sees
        }
        assert directive["last_step"] is (service == "sis")
        (await api.succeed(directive, result={"by": service}, artifact_refs=[f"file:///{service}"])).ok()


async def test_a_failure_is_kept_without_secrets(api: Api) -> None:
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
