"""An async step that blocks the event loop costs no attempt its lease."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.contract import CallbackUrls, Directive
from lucius.worker import Service, StepContext, StepResult, stall_heartbeat
from lucius.worker.attempt import RunningAttempt
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings
from lucius.worker.stall_heartbeat import StallHeartbeat
from tests.integration.worker.published_headers import check_headers
from tests.integration.worker.support import API_KEY, FakeOrchestrator, Item, directive

FAR = "2100-01-01T00:00:00Z"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class ThreadedOrchestrator:
    """A fake orchestrator with its own event loop: the test's loop will be blocked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = FakeOrchestrator()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self.server.start())

    def do(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(10)

    def close(self) -> None:
        self.do(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def beats(self, job: str) -> int:
        """Return the number of heartbeats without a token in the body: only the stall heartbeat sends these here."""
        singly = [item for item in self.of_type("heartbeat", job) if "callback_token" not in item]
        return len(singly)

    def of_type(self, kind: str, job: str) -> list[Item]:
        return [item for item in self.server.of_type(kind) if item["jobId"] == job]


@pytest.fixture
def threaded_orchestrator() -> Iterator[ThreadedOrchestrator]:
    threaded_orchestrator = ThreadedOrchestrator()
    yield threaded_orchestrator
    threaded_orchestrator.close()


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_heartbeat, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(stall_heartbeat, "STALLED_SECONDS", 0.3)


class StubAttempt:
    """The part of an attempt that the stall heartbeat reads."""

    def __init__(self, work: Directive, heard: bool = True) -> None:
        self.directive = work
        self.is_acknowledged = heard
        self.progress = 0.5


def stall_heartbeat_for(
    *running: StubAttempt, counted: list[int] | None = None, base_url: str = "http://elsewhere:1"
) -> StallHeartbeat:
    """Return a StallHeartbeat for these attempts; by default its orchestrator is not the one they call back to."""
    attempts: Any = list(running)
    found: list[RunningAttempt] = attempts
    return StallHeartbeat(base_url, lambda: found, lambda: counted.append(1) if counted is not None else None)


def block_loop(seconds: float) -> None:
    """Block the loop, as a careless step does."""
    time.sleep(seconds)


async def test_leases_are_extended_while_the_loop_is_blocked(threaded_orchestrator: ThreadedOrchestrator) -> None:
    one = StubAttempt(directive(threaded_orchestrator.server.url, 1, lease_seconds=0.6, traceparent=TRACE))
    two = StubAttempt(directive(threaded_orchestrator.server.url, 2, lease_seconds=1.2))
    counted: list[int] = []
    with capture_logs() as lines, stall_heartbeat_for(one, two, counted=counted):
        block_loop(1.5)
    assert threaded_orchestrator.beats("job-1") >= 4, (
        "at every third of its lease, once it is sure that the loop is blocked"
    )
    assert threaded_orchestrator.beats("job-2") >= 2
    assert threaded_orchestrator.beats("job-1") < 10
    assert counted == [1], "one stall, however long"
    (line,) = [line for line in lines if line["event"].startswith("the event loop is blocked")]
    assert [attempt["jobId"] for attempt in line["attempts"]] == ["job-1", "job-2"]
    assert "plain def" in line["advice"]
    (item, *_) = threaded_orchestrator.of_type("heartbeat", "job-1")
    assert (item["lease_id"], item["progress"]) == ("lease-1", 0.5)
    assert "Bearer token-1" in threaded_orchestrator.server.bearers
    assert set(threaded_orchestrator.server.traces) == {TRACE, None}


async def test_heartbeats_of_many_attempts_share_a_request(threaded_orchestrator: ThreadedOrchestrator) -> None:
    """One by one they would take longer than the lease."""
    many = [
        StubAttempt(directive(threaded_orchestrator.server.url, number, lease_seconds=0.6)) for number in range(300)
    ]
    with stall_heartbeat_for(*many, base_url=f"{threaded_orchestrator.server.url}/"):
        block_loop(0.7)
    first, second, *_ = threaded_orchestrator.server.requests
    assert (len(first), len(second)) == (200, 100)
    assert {item["jobId"] for item in first + second} == {f"job-{number}" for number in range(300)}
    assert {(item["type"], item["progress"]) for item in first} == {("heartbeat", 0.5)}
    assert [item["callback_token"] for item in first[:2]] == ["token-0", "token-1"]


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_heartbeats_of_a_blocked_loop_name_their_process(
    threaded_orchestrator: ThreadedOrchestrator, is_elsewhere: bool
) -> None:
    server = threaded_orchestrator.server
    context = {"traceparent": TRACE, "tracestate": "a=1", "correlation_id": "order-7"}
    work: Any = [StubAttempt(directive(server.url, 1, lease_seconds=0.6, **context))]
    headers = {"X-Lucius-Instance": "host-1:77", "User-Agent": "ocr/2 sdk/1"}
    with StallHeartbeat("http://elsewhere:1" if is_elsewhere else server.url, lambda: work, headers=headers):
        block_loop(0.7)
    route = "heartbeat" if is_elsewhere else "batch"
    sent, *_ = server.headers[route]
    assert (sent["x-lucius-instance"], sent["user-agent"]) == ("host-1:77", "ocr/2 sdk/1")
    check_headers(route, sent)


async def test_heartbeat_refused_for_its_headers_is_sent_again_without_the_trace(
    threaded_orchestrator: ThreadedOrchestrator,
) -> None:
    threaded_orchestrator.server.answer = lambda _: {"status": 431 if threaded_orchestrator.server.traces[-1] else 200}
    with (
        capture_logs() as lines,
        stall_heartbeat_for(
            StubAttempt(directive(threaded_orchestrator.server.url, 1, lease_seconds=3, traceparent=TRACE))
        ),
    ):
        block_loop(1.2)
    assert threaded_orchestrator.server.traces[:2] == [TRACE, None]
    assert not [line for line in lines if line["event"].startswith("heartbeat failed")]


async def test_invalid_http_answer_stops_no_other_heartbeat(threaded_orchestrator: ThreadedOrchestrator) -> None:
    async def gibberish(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what?\r\n\r\n")
        writer.close()

    server = threaded_orchestrator.do(asyncio.start_server(gibberish, "127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    odd = StubAttempt(directive(url, 1, lease_seconds=0.6))
    with (
        capture_logs() as lines,
        stall_heartbeat_for(odd, StubAttempt(directive(threaded_orchestrator.server.url, 2, lease_seconds=0.6))),
    ):
        block_loop(1.2)
    server.close()
    assert threaded_orchestrator.beats("job-2") >= 1
    assert any("BadStatusLine" in line.get("reason", "") for line in lines)


async def test_no_heartbeat_is_sent_while_the_loop_runs(threaded_orchestrator: ThreadedOrchestrator) -> None:
    counted: list[int] = []
    with stall_heartbeat_for(
        StubAttempt(directive(threaded_orchestrator.server.url, lease_seconds=0.3)), counted=counted
    ):
        for _ in range(30):
            await asyncio.sleep(0.01)
            block_loop(0.005)
    assert (threaded_orchestrator.server.requests, counted) == ([], [])


async def test_heartbeats_stop_when_the_loop_runs_again_and_resume_with_the_next_stall(
    threaded_orchestrator: ThreadedOrchestrator,
) -> None:
    counted: list[int] = []
    with stall_heartbeat_for(
        StubAttempt(directive(threaded_orchestrator.server.url, lease_seconds=0.6)), counted=counted
    ):
        block_loop(0.6)
        await asyncio.sleep(0.1)
        first = threaded_orchestrator.beats("job-1")
        await asyncio.sleep(0.5)
        assert threaded_orchestrator.beats("job-1") == first >= 1
        block_loop(0.6)
        await asyncio.sleep(0.1)
        assert threaded_orchestrator.beats("job-1") > first
    assert counted == [1, 1]


async def test_stall_without_attempts_sends_and_logs_nothing(threaded_orchestrator: ThreadedOrchestrator) -> None:
    counted: list[int] = []
    with capture_logs() as lines, stall_heartbeat_for(counted=counted):
        block_loop(0.5)
        await asyncio.sleep(0.1)
    assert (threaded_orchestrator.server.requests, counted, lines) == ([], [], [])


async def test_attempt_without_an_ack_gets_a_heartbeat_at_once(threaded_orchestrator: ThreadedOrchestrator) -> None:
    """A step that blocks at once delays its own ACK, whose deadline is shorter than the lease."""
    unheard = StubAttempt(directive(threaded_orchestrator.server.url, 1), heard=False)
    heard = StubAttempt(directive(threaded_orchestrator.server.url, 2))
    with stall_heartbeat_for(unheard, heard):
        block_loop(0.7)
    assert (threaded_orchestrator.beats("job-1"), threaded_orchestrator.beats("job-2")) == (1, 0)


@pytest.mark.parametrize(("how", "said"), [("unreachable", "refused"), ("an error", "500"), ("redirect", "302")])
async def test_refused_heartbeat_stops_no_other_heartbeat(
    threaded_orchestrator: ThreadedOrchestrator, how: str, said: str
) -> None:
    refusal = {"status": 302, "location": "/elsewhere"} if how == "redirect" else {"status": 500}
    threaded_orchestrator.server.answer = lambda item: refusal if item["jobId"] == "job-1" else {"status": 200}
    work = directive(threaded_orchestrator.server.url, 1, lease_seconds=0.6)
    if how == "unreachable":
        away = CallbackUrls(ack="http://127.0.0.1:9/a", result="http://127.0.0.1:9/r", heartbeat="http://127.0.0.1:9/h")
        work = directive(threaded_orchestrator.server.url, 1, lease_seconds=0.6, callback_urls=away)
    with (
        capture_logs() as lines,
        stall_heartbeat_for(
            StubAttempt(work), StubAttempt(directive(threaded_orchestrator.server.url, 2, lease_seconds=0.6))
        ),
    ):
        block_loop(0.7)
    assert threaded_orchestrator.beats("job-2") >= 1
    failed = [line for line in lines if line["event"].startswith("heartbeat failed")]
    assert failed[0]["jobId"] == "job-1"
    assert said in failed[0]["reason"], "and it was not followed elsewhere, with the token"
    assert "token-1" not in str(lines)


async def test_stall_heartbeat_thread_ends_with_its_context() -> None:
    with stall_heartbeat_for():
        assert any(thread.name == "stall-heartbeat" for thread in threading.enumerate())
    for thread in threading.enumerate():
        if thread.name == "stall-heartbeat":
            await asyncio.to_thread(thread.join, 5)
    assert not any(thread.name == "stall-heartbeat" for thread in threading.enumerate())


async def test_service_with_a_blocking_async_step_keeps_its_leases(threaded_orchestrator: ThreadedOrchestrator) -> None:
    """A whole service: two attempts in one process, of which one blocks the loop at once."""
    service = Service("ocr")
    done = asyncio.Event()

    @service.step("BLOCKING")
    async def blocking(ctx: StepContext) -> StepResult:
        ctx.progress(0.3)
        time.sleep(1.2)  # noqa: ASYNC251 - the mistake this is about
        done.set()
        return StepResult("blocked")

    @service.step("PATIENT")
    async def patient(ctx: StepContext) -> StepResult:
        await done.wait()
        return StepResult("waited")

    def offer(number: int, step_type: str) -> None:
        work = directive(
            threaded_orchestrator.server.url, number, step_type=step_type, lease_seconds=0.6, ack_deadline=FAR
        )
        threaded_orchestrator.loop.call_soon_threadsafe(threaded_orchestrator.server.offer, work)

    stop = asyncio.Event()
    settings = WorkerSettings(orchestrator_url=threaded_orchestrator.server.url, api_key=API_KEY, handle_signals=False)
    with capture_logs() as lines:
        running = asyncio.create_task(host([service], settings, stop))
        offer(1, "PATIENT")
        while not threaded_orchestrator.of_type("ack", "job-1"):  # noqa: ASYNC110 - on another loop
            await asyncio.sleep(0.005)
        offer(2, "BLOCKING")
        await asyncio.wait_for(done.wait(), 20)
        while len(threaded_orchestrator.server.of_type("result")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        stop.set()
        await running
    assert {item["result"] for item in threaded_orchestrator.server.of_type("result")} == {"blocked", "waited"}
    assert len(threaded_orchestrator.of_type("heartbeat", "job-1")) >= 2
    assert len(threaded_orchestrator.of_type("heartbeat", "job-2")) >= 3
    assert threaded_orchestrator.of_type("heartbeat", "job-2")[0]["progress"] == 0.3
    assert sum(line["event"].startswith("the event loop is blocked") for line in lines) == 1
