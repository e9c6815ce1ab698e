"""An async step that blocks the loop loses nobody's lease."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.contract import CallbackUrls, Directive
from lucius.worker import Service, StepContext, StepResult, lifeline
from lucius.worker.attempt import Attempt
from lucius.worker.host import host
from lucius.worker.lifeline import Lifeline
from lucius.worker.settings import WorkerSettings
from tests.unit.worker.support import API_KEY, FakeOrchestrator, Item, directive

FAR = "2100-01-01T00:00:00Z"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Beside:
    """A fake orchestrator on a loop of its own: ours is to be blocked."""

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
        """Those with a token of their own in the header: only the lifeline sends singly here."""
        singly = [request for request, bearer in zip(self.server.requests, self.server.bearers, strict=True) if bearer]
        return sum(item["jobId"] == job and item["type"] == "heartbeat" for (item,) in singly)

    def of_type(self, kind: str, job: str) -> list[Item]:
        return [item for item in self.server.of_type(kind) if item["jobId"] == job]


@pytest.fixture
def beside() -> Iterator[Beside]:
    beside = Beside()
    yield beside
    beside.close()


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(lifeline, "STALLED_SECONDS", 0.3)


class Running:
    """As much of an attempt as the lifeline looks at."""

    def __init__(self, work: Directive, heard: bool = True) -> None:
        self.directive = work
        self.heard = heard
        self.progress = 0.5


def watched(*running: Running, counted: list[int] | None = None, base_url: str = "http://elsewhere:1") -> Lifeline:
    """Attempts that call back to another address than our orchestrator's, unless told."""
    attempts: Any = list(running)
    found: list[Attempt] = attempts
    return Lifeline(base_url, lambda: found, lambda: counted.append(1) if counted is not None else None)


def block(seconds: float) -> None:
    """As a careless step does."""
    time.sleep(seconds)


async def test_while_the_loop_is_blocked_everyones_lease_is_kept(beside: Beside) -> None:
    one = Running(directive(beside.server.url, 1, lease_seconds=0.6, traceparent=TRACE))
    two = Running(directive(beside.server.url, 2, lease_seconds=1.2))
    counted: list[int] = []
    with capture_logs() as lines, watched(one, two, counted=counted):
        block(1.5)
    assert beside.beats("job-1") >= 4, "at every third of its lease, once it is sure that the loop is blocked"
    assert beside.beats("job-2") >= 2
    assert beside.beats("job-1") < 10
    assert counted == [1], "one stall, however long"
    (line,) = [line for line in lines if line["event"].startswith("the event loop is blocked")]
    assert [attempt["jobId"] for attempt in line["attempts"]] == ["job-1", "job-2"]
    assert "plain def" in line["advice"]
    (item, *_) = beside.of_type("heartbeat", "job-1")
    assert (item["lease_id"], item["progress"]) == ("lease-1", 0.5)
    assert "Bearer token-1" in beside.server.bearers
    assert set(beside.server.traces) == {TRACE, None}


async def test_many_attempts_share_a_request(beside: Beside) -> None:
    """One by one they would take longer than the lease."""
    many = [Running(directive(beside.server.url, number, lease_seconds=0.6)) for number in range(300)]
    with watched(*many, base_url=f"{beside.server.url}/"):
        block(0.7)
    first, second, *_ = beside.server.requests
    assert (len(first), len(second)) == (200, 100)
    assert {item["jobId"] for item in first + second} == {f"job-{number}" for number in range(300)}
    assert {(item["type"], item["progress"]) for item in first} == {("heartbeat", 0.5)}
    assert [item["callback_token"] for item in first[:2]] == ["token-0", "token-1"]


async def test_an_answer_that_is_no_http_ends_nothing(beside: Beside) -> None:
    async def gibberish(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"what?\r\n\r\n")
        writer.close()

    server = beside.do(asyncio.start_server(gibberish, "127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    odd = Running(directive(url, 1, lease_seconds=0.6))
    with capture_logs() as lines, watched(odd, Running(directive(beside.server.url, 2, lease_seconds=0.6))):
        block(1.2)
    server.close()
    assert beside.beats("job-2") >= 1
    assert any("BadStatusLine" in line.get("reason", "") for line in lines)


async def test_nothing_is_sent_while_the_loop_turns(beside: Beside) -> None:
    counted: list[int] = []
    with watched(Running(directive(beside.server.url, lease_seconds=0.3)), counted=counted):
        for _ in range(30):
            await asyncio.sleep(0.01)
            block(0.005)
    assert (beside.server.requests, counted) == ([], [])


async def test_it_ends_when_the_loop_turns_again_and_begins_anew_with_the_next_stall(beside: Beside) -> None:
    counted: list[int] = []
    with watched(Running(directive(beside.server.url, lease_seconds=0.6)), counted=counted):
        block(0.6)
        await asyncio.sleep(0.1)
        first = beside.beats("job-1")
        await asyncio.sleep(0.5)
        assert beside.beats("job-1") == first >= 1
        block(0.6)
        await asyncio.sleep(0.1)
        assert beside.beats("job-1") > first
    assert counted == [1, 1]


async def test_a_stall_with_nothing_at_work_is_nobodys_business(beside: Beside) -> None:
    counted: list[int] = []
    with capture_logs() as lines, watched(counted=counted):
        block(0.5)
        await asyncio.sleep(0.1)
    assert (beside.server.requests, counted, lines) == ([], [], [])


async def test_an_attempt_nobody_has_heard_of_is_told_of_at_once(beside: Beside) -> None:
    """A step that blocks at once keeps its ACK from leaving, and the ACK's deadline is shorter than the lease."""
    unheard = Running(directive(beside.server.url, 1), heard=False)
    heard = Running(directive(beside.server.url, 2))
    with watched(unheard, heard):
        block(0.7)
    assert (beside.beats("job-1"), beside.beats("job-2")) == (1, 0)


@pytest.mark.parametrize(("how", "said"), [("nobody there", "refused"), ("an error", "500"), ("elsewhere", "302")])
async def test_an_orchestrator_that_does_not_take_a_heartbeat_ends_nothing(beside: Beside, how: str, said: str) -> None:
    refusal = {"status": 302, "location": "/elsewhere"} if how == "elsewhere" else {"status": 500}
    beside.server.answer = lambda item: refusal if item["jobId"] == "job-1" else {"status": 200}
    work = directive(beside.server.url, 1, lease_seconds=0.6)
    if how == "nobody there":
        away = CallbackUrls(ack="http://127.0.0.1:9/a", result="http://127.0.0.1:9/r", heartbeat="http://127.0.0.1:9/h")
        work = directive(beside.server.url, 1, lease_seconds=0.6, callback_urls=away)
    with capture_logs() as lines, watched(Running(work), Running(directive(beside.server.url, 2, lease_seconds=0.6))):
        block(0.7)
    assert beside.beats("job-2") >= 1
    failed = [line for line in lines if line["event"].startswith("heartbeat failed")]
    assert failed[0]["jobId"] == "job-1"
    assert said in failed[0]["reason"], "and it was not followed elsewhere, with the token"
    assert "token-1" not in str(lines)


async def test_its_thread_ends_with_it() -> None:
    with watched():
        assert any(thread.name == "lifeline" for thread in threading.enumerate())
    for thread in threading.enumerate():
        if thread.name == "lifeline":
            await asyncio.to_thread(thread.join, 5)
    assert not any(thread.name == "lifeline" for thread in threading.enumerate())


async def test_a_service_whose_async_step_sleeps_keeps_its_leases(beside: Beside) -> None:
    """The whole of it: two attempts in one process, of which one blocks the loop at once."""
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
        work = directive(beside.server.url, number, step_type=step_type, lease_seconds=0.6, ack_deadline=FAR)
        beside.loop.call_soon_threadsafe(beside.server.offer, work)

    stop = asyncio.Event()
    settings = WorkerSettings(orchestrator_url=beside.server.url, api_key=API_KEY, handle_signals=False)
    with capture_logs() as lines:
        running = asyncio.create_task(host([service], settings, stop))
        offer(1, "PATIENT")
        while not beside.of_type("ack", "job-1"):  # noqa: ASYNC110 - on another loop
            await asyncio.sleep(0.005)
        offer(2, "BLOCKING")
        await asyncio.wait_for(done.wait(), 20)
        while len(beside.server.of_type("result")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        stop.set()
        await running
    assert {item["result"] for item in beside.server.of_type("result")} == {"blocked", "waited"}
    assert len(beside.of_type("heartbeat", "job-1")) >= 2
    assert len(beside.of_type("heartbeat", "job-2")) >= 3
    assert beside.of_type("heartbeat", "job-2")[0]["progress"] == 0.3
    assert sum(line["event"].startswith("the event loop is blocked") for line in lines) == 1
