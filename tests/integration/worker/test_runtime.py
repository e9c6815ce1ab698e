import asyncio
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.bus.memory import MemoryConsumer
from lucius.contract import Directive
from lucius.ports.errors import BusError
from lucius.worker import FailureClass, RateLimited, StepFailure, StepResult, StopReason
from lucius.worker.journal import Journal
from tests.integration.worker.bench import Bench, Scripted, fails
from tests.integration.worker.support import Item, until


async def test_an_instant_step_sends_ack_and_result_in_one_request(bench: Bench) -> None:
    bench.start(Scripted(lambda _: StepResult({"pages": 2}, ["file:///a"])))
    await bench.publish(1)
    await bench.result()
    (request,) = bench.orchestrator.requests
    assert [item["type"] for item in request] == ["ack", "result"]
    assert request[1] == {
        "type": "result",
        "callback_token": "token-1",
        "jobId": "job-1",
        "stepId": "ocr",
        "tenant_id": "acme",
        "attempt_no": 1,
        "lease_id": "lease-1",
        "status": "SUCCEEDED",
        "result": {"pages": 2},
        "artifact_refs": ["file:///a"],
    }


async def test_a_long_step_sends_its_ack_at_once(bench: Bench) -> None:
    service = Scripted()
    bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.callbacks))
    assert [item["type"] for item in bench.orchestrator.callbacks] == ["ack"]
    service.gate.set()
    assert (await bench.result())["status"] == "SUCCEEDED"


async def test_redelivered_directive_of_a_running_attempt_is_ignored(bench: Bench) -> None:
    service = Scripted()
    bench.start(service)
    await bench.publish(1, 1, 2)
    await until(lambda: len(service.started) == 2)
    assert [ctx.directive.jobId for ctx in service.started] == ["job-1", "job-2"]


async def test_redelivered_directive_of_a_finished_attempt_sends_the_result_again(bench: Bench) -> None:
    service = Scripted(lambda _: StepResult({"n": 1}))
    bench.start(service)
    await bench.publish(1)
    await bench.result()
    await bench.publish(1)
    await until(lambda: len(bench.results()) == 2)
    assert bench.results()[0] == bench.results()[1]
    assert len(service.started) == 1


async def test_a_new_attempt_of_the_same_step_runs(bench: Bench) -> None:
    service = Scripted(lambda _: StepResult())
    bench.start(service)
    await bench.publish(1)
    await bench.publish(1, attempt_no=2, lease_id="lease-1b")
    await until(lambda: len(bench.results()) == 2)
    assert len(service.started) == 2


async def test_results_survive_a_restart_of_the_service(bench: Bench, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    runtime = bench.start(Scripted(lambda _: StepResult({"n": 1})), journal=journal)
    await bench.publish(1)
    await bench.result()
    runtime.stop()
    assert bench.running is not None
    await bench.running
    journal.close()
    service = Scripted(lambda _: StepResult({"n": 2}))
    bench.start(service, journal=Journal(tmp_path))
    await bench.publish(1)
    await until(lambda: len(bench.results()) == 2)
    assert bench.results()[1]["result"] == {"n": 1}
    assert service.started == []


async def test_a_reported_failure_carries_its_class_code_and_delay(bench: Bench) -> None:
    failure = StepFailure("BUSY", "later", failure_class=FailureClass.RATE_LIMITED, retry_after_seconds=30)
    bench.start(Scripted(fails(failure)))
    await bench.publish(1)
    result = await bench.result()
    assert result["status"] == "FAILED"
    assert result["failure_class"] == "RATE_LIMITED"
    assert result["error"] == {"code": "BUSY", "message": "later"}
    assert result["retry_after_seconds"] == 30
    assert "result" not in result


async def test_unexpected_exception_is_a_retryable_failure_without_secrets(bench: Bench) -> None:
    bench.start(Scripted(fails(KeyError("pages, token-1\nand much more"))))
    await bench.publish(1)
    result = await bench.result()
    assert result["failure_class"] == "RETRYABLE"
    assert result["error"]["code"] == "UNEXPECTED_ERROR"
    assert result["error"]["message"].startswith("KeyError: ")
    assert "token-1" not in result["error"]["message"]


async def test_cancellation_raised_by_a_step_is_unexpected(bench: Bench) -> None:
    bench.start(Scripted(fails(asyncio.CancelledError())))
    await bench.publish(1)
    assert (await bench.result())["error"]["code"] == "UNEXPECTED_ERROR"


@pytest.mark.parametrize("result", [object(), "x" * 300_000])
async def test_result_that_is_no_json_or_too_large_is_not_retried(bench: Bench, result: object) -> None:
    bench.start(Scripted(lambda _: StepResult(result)))
    await bench.publish(1)
    answer = await bench.result()
    assert (answer["failure_class"], answer["error"]["code"]) == ("NON_RETRYABLE", "INVALID_OUTPUT")


async def test_result_refused_as_malformed_becomes_a_failure(bench: Bench) -> None:
    bench.orchestrator.answer = lambda item: {"status": 422 if item.get("status") == "SUCCEEDED" else 200}
    bench.start(Scripted(lambda _: StepResult({"n": 1})))
    await bench.publish(1)
    await until(lambda: len(bench.results()) == 2)
    assert bench.results()[1]["error"]["code"] == "RESULT_REFUSED"
    assert bench.results()[1]["failure_class"] == "NON_RETRYABLE"


async def test_pull_is_limited_to_free_slots(bench: Bench) -> None:
    service = Scripted()
    bench.start(service, concurrency=2)
    await bench.publish(1, 2, 3, 4)
    await until(lambda: len(service.started) == 2)
    await until(lambda: len(bench.orchestrator.callbacks) == 2)
    assert bench.bus.backlog("ocr") == 2
    service.gate.set()
    await until(lambda: len(bench.results()) == 4)


async def test_many_undelivered_results_stop_pulling(bench: Bench) -> None:
    await bench.orchestrator.stop()
    bench.start(Scripted(lambda _: StepResult()), concurrency=10)
    await bench.publish(*range(100))
    await until(lambda: bench.sender.undelivered >= 50 and bool(bench.waits()))
    for _ in range(100):  # time enough to pull the rest, if it did
        await asyncio.sleep(0)
    assert bench.sender.undelivered <= 50 + 2 * 10
    assert bench.bus.backlog("ocr") > 20


async def test_heartbeats_leave_at_a_third_of_the_lease_with_the_progress(bench: Bench) -> None:
    service = Scripted()
    bench.start(service)
    await bench.publish(1, lease_seconds=90.0)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    service.started[0].progress(0.4)
    for count in (1, 2):
        bench.timing.advance(29.9)
        assert len(bench.orchestrator.of_type("heartbeat")) == count - 1
        bench.timing.advance(0.1)
        await until(lambda count=count: len(bench.orchestrator.of_type("heartbeat")) == count)  # type: ignore[misc]
        await bench.sender.wait_until_below(1)
    assert bench.orchestrator.of_type("heartbeat")[0]["progress"] == 0.4
    service.gate.set()
    await bench.result()
    bench.timing.advance(300)
    await bench.sender.wait_until_below(1)
    assert len(bench.orchestrator.of_type("heartbeat")) == 2


async def test_changed_progress_leaves_with_a_heartbeat_at_most_every_two_seconds(bench: Bench) -> None:
    service = Scripted()
    bench.start(service)
    await bench.publish(1, lease_seconds=900.0)
    await until(lambda: bool(bench.orchestrator.of_type("ack")) and bool(service.started))

    def seen() -> list[Any]:
        return [item["progress"] for item in bench.orchestrator.of_type("heartbeat")]

    async def pass_time(seconds: float) -> None:
        bench.timing.advance(seconds)
        await bench.sender.wait_until_below(1)

    await pass_time(10)
    assert seen() == [], "nothing was reported"
    for page in range(1, 21):  # faster than heartbeats may be sent
        service.started[0].progress(page, 20, "page")
        await pass_time(0.5)
    assert seen() == [{"done": done, "total": 20, "unit": "page"} for done in (4, 8, 12, 16, 20)]
    await pass_time(299)
    assert len(seen()) == 5, "it has not changed since"
    await pass_time(1)
    assert len(seen()) == 6, "the lease needs one now"
    service.gate.set()
    await bench.result()


async def test_outdated_progress_is_corrected_before_the_result(bench: Bench) -> None:
    service = Scripted()
    bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")) and bool(service.started))
    service.started[0].progress(7, 20, "page")
    bench.timing.advance(2)
    await until(lambda: bool(bench.orchestrator.of_type("heartbeat")))
    service.started[0].progress(20, 20, "page")
    service.gate.set()
    await bench.result()
    sent = [(item["type"], item.get("progress")) for item in bench.orchestrator.callbacks]
    pages = [("heartbeat", {"done": done, "total": 20, "unit": "page"}) for done in (7, 20)]
    assert sent == [("ack", None), *pages, ("result", None)]


async def test_progress_that_was_never_sent_adds_no_heartbeat_to_the_result(bench: Bench) -> None:
    service = Scripted()
    bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")) and bool(service.started))
    service.started[0].progress(20, 20, "page")
    service.gate.set()
    await bench.result()
    assert bench.orchestrator.of_type("heartbeat") == []


async def test_cancel_request_in_a_heartbeat_answer_reaches_the_step(bench: Bench) -> None:
    bench.orchestrator.answer = lambda item: {
        "status": 200,
        "disposition": "APPLIED",
        "cancel_requested": item["type"] == "heartbeat",
    }
    service = Scripted()
    bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(service.started))
    assert service.started[0].stopping is None
    bench.timing.advance(300)
    await until(lambda: service.started[0].stopping is StopReason.CANCELLED)
    with pytest.raises(StepFailure, match="CANCELLED"):
        service.started[0].raise_if_stopping()
    assert service.stopped == 0


@pytest.mark.parametrize("answer", [{"status": 409, "disposition": "STALE"}, {"status": 200, "disposition": "LATE"}])
async def test_a_fenced_attempt_stops_its_work_and_reports_nothing(bench: Bench, answer: Item) -> None:
    bench.orchestrator.answer = lambda item: answer if item["type"] == "heartbeat" else {"status": 200}
    service = Scripted()
    runtime = bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    bench.timing.advance(300)
    await until(lambda: service.stopped == 1 and not runtime.attempts)
    await bench.sender.wait_until_below(1)
    assert bench.results() == []


async def test_attempt_answered_late_with_a_lease_keeps_running(bench: Bench) -> None:
    late = {"status": 200, "disposition": "LATE", "lease_expires_at": "2026-01-01T00:00:00.000Z"}
    bench.orchestrator.answer = lambda item: late if item["type"] == "heartbeat" else {"status": 200}
    service = Scripted()
    runtime = bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    bench.timing.advance(300)
    await until(lambda: bool(bench.orchestrator.of_type("heartbeat")))
    await bench.sender.wait_until_below(1)
    assert (service.stopped, len(runtime.attempts)) == (0, 1)


async def test_step_continues_during_an_orchestrator_outage(bench: Bench) -> None:
    port = bench.orchestrator.port
    service = Scripted()
    bench.start(service)
    await bench.publish(1)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    await bench.orchestrator.stop()
    bench.timing.advance(300)
    await until(lambda: 0.25 in bench.waits())
    service.gate.set()
    await until(lambda: bench.sender.undelivered == 2)
    await bench.orchestrator.start(port)
    while not bench.results():
        bench.timing.advance(1)
        await asyncio.sleep(0)
    assert service.stopped == 0
    assert (await bench.result())["status"] == "SUCCEEDED"


async def test_stop_finishes_running_attempts_and_pulls_no_more(bench: Bench) -> None:
    service = Scripted()
    runtime = bench.start(service, concurrency=1)
    await bench.publish(1, 2)
    await until(lambda: bool(service.started))
    runtime.stop()
    service.gate.set()
    assert bench.running is not None
    await bench.running
    await bench.sender.wait_until_below(1)
    assert [item["status"] for item in bench.results()] == ["SUCCEEDED"]
    assert bench.bus.backlog("ocr") == 1


@pytest.mark.parametrize("how", ["grace is over", "stopped twice"])
async def test_attempt_unfinished_after_the_grace_period_is_reported_as_stopping(bench: Bench, how: str) -> None:
    service = Scripted()
    runtime = bench.start(service, grace=10)
    await bench.publish(1)
    await until(lambda: bool(service.started))
    runtime.stop()
    await until(lambda: 10 in bench.timing.pauses)
    assert service.stopped == 0
    if how == "stopped twice":
        runtime.stop()
    else:
        bench.timing.advance(10)
    assert bench.running is not None
    await bench.running
    result = await bench.result()
    assert (result["failure_class"], result["error"]["code"]) == ("TRANSIENT", "SERVICE_STOPPING")


async def test_unavailable_bus_is_asked_again_later(bench: Bench) -> None:
    bench.bus.down = True
    runtime = bench.start(Scripted(lambda _: StepResult()))
    await until(lambda: bench.pauses() == [0.25])
    assert not runtime.is_ready
    bench.timing.advance(0.25)
    await until(lambda: bench.pauses() == [0.25, 0.5])
    bench.bus.down = False
    await bench.publish(1)
    bench.timing.advance(0.5)
    await bench.result()
    assert runtime.is_ready


async def test_a_service_is_ready_only_while_its_bus_answers(bench: Bench) -> None:
    runtime = bench.start(Scripted(lambda _: StepResult()))
    assert not runtime.is_ready
    await bench.publish(1)
    await until(lambda: runtime.is_ready)
    bench.bus.down = True
    await until(lambda: not runtime.is_ready)


async def test_bus_that_refuses_the_service_ends_the_runtime(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> list[Directive]:
        raise BusError("wrong key")

    monkeypatch.setattr(MemoryConsumer, "pull", refuse)
    bench.start(Scripted())
    assert bench.running is not None
    with pytest.raises(BusError, match="wrong key"):
        await bench.running


@pytest.mark.parametrize(
    "changes", [{"lease_id": ""}, {"callback_token": ""}, {"attempt_no": 0}, {"lease_seconds": 0.0}]
)
async def test_invalid_directive_is_ignored(bench: Bench, changes: dict[str, Any]) -> None:
    service = Scripted(lambda _: StepResult())
    bench.start(service)
    await bench.publish(1, **changes)
    await bench.publish(2)
    assert (await bench.result())["jobId"] == "job-2"
    assert len(service.started) == 1


class Seconds(float):
    """A library's own number type, which JSON does not know."""


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RateLimited("BUSY", "later", retry_after_seconds=Seconds(3)), "BUSY"),
        (GeneratorExit("odd"), "UNEXPECTED_ERROR"),
        (SystemExit(3), "UNEXPECTED_ERROR"),
    ],
)
async def test_step_ends_with_a_result_whatever_it_raises(bench: Bench, raised: BaseException, code: str) -> None:
    runtime = bench.start(Scripted(fails(raised)))
    await bench.publish(1)
    assert (await bench.result())["error"]["code"] == code
    await until(lambda: not runtime.attempts)


async def test_heartbeat_interval_counts_from_the_request(bench: Bench) -> None:
    """A slow orchestrator gets the next heartbeat as soon as it has answered."""
    service = Scripted()
    bench.start(service)
    await bench.publish(1, lease_seconds=6.0)
    await until(lambda: bool(bench.orchestrator.of_type("ack")))
    await bench.sender.wait_until_below(1)
    slow = asyncio.Event()
    bench.orchestrator.before_answering = slow.wait
    bench.timing.advance(2.0)
    await until(lambda: len(bench.orchestrator.of_type("heartbeat")) == 1)
    bench.timing.advance(2.0)
    assert bench.sender.undelivered == 1, "one at a time"
    slow.set()
    await until(lambda: len(bench.orchestrator.of_type("heartbeat")) == 2)
    service.gate.set()
    await bench.result()
