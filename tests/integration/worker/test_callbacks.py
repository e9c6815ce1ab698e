import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web

from lucius.contract import CallbackUrls
from lucius.worker.callbacks import CallbackRefused, CallbackSender, Delivered, Delivery, GaveUp
from lucius.worker.transport import Transport
from tests.integration.worker.support import FakeOrchestrator, Item, ManualTiming, directive, until


@pytest.fixture
async def sender(orchestrator: FakeOrchestrator, timing: ManualTiming) -> AsyncIterator[CallbackSender]:
    async with Transport() as transport:
        sender = CallbackSender(orchestrator.url, transport, timing, late_window=100)
        running = asyncio.create_task(sender.run())
        yield sender
        assert not running.done()
        running.cancel()


async def test_callbacks_of_one_tick_leave_as_one_request_in_order(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    got: list[Delivery] = []
    for number in (1, 2):
        work = directive(orchestrator.url, number)
        sender.ack(work, got.append)
        sender.result(work, b'{"status":"SUCCEEDED"}', got.append)
    await sender.wait_until_below(1)
    (request,) = orchestrator.requests
    assert [(item["type"], item["callback_token"]) for item in request] == [
        ("ack", "token-1"),
        ("result", "token-1"),
        ("ack", "token-2"),
        ("result", "token-2"),
    ]
    assert got == [Delivered("APPLIED")] * 4


async def test_callbacks_made_during_a_request_form_the_next_batch(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    work = directive(orchestrator.url)
    sender.ack(work, lambda _: sender.heartbeat(work, 0.5, lambda _: None))
    await sender.wait_until_below(1)
    assert [[item["type"] for item in request] for request in orchestrator.requests] == [["ack"], ["heartbeat"]]
    assert orchestrator.callbacks[1]["progress"] == 0.5


async def test_a_batch_is_bounded(sender: CallbackSender, orchestrator: FakeOrchestrator) -> None:
    for number in range(450):
        sender.ack(directive(orchestrator.url, number), lambda _: None)
    await sender.wait_until_below(1)
    assert [len(request) for request in orchestrator.requests] == [200, 200, 50]


async def test_large_results_are_spread_over_several_batches(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    for number in range(3):
        sender.result(directive(orchestrator.url, number), b'{"x":"%s"}' % (b"y" * 200_000), lambda _: None)
    await sender.wait_until_below(1)
    assert [len(request) for request in orchestrator.requests] == [2, 1]


async def test_callbacks_to_another_orchestrator_are_sent_singly(orchestrator: FakeOrchestrator) -> None:
    async with Transport() as transport:
        sender = CallbackSender("http://orchestrator.example", transport, ManualTiming())
        running = asyncio.create_task(sender.run())
        work = directive(orchestrator.url)
        sender.ack(work, lambda _: None)
        sender.result(work, b'{"status":"SUCCEEDED"}', lambda _: None)
        await sender.wait_until_below(1)
        running.cancel()
    assert [[item["type"] for item in request] for request in orchestrator.requests] == [["ack"], ["result"]]
    assert orchestrator.bearers == ["Bearer token-1"] * 2


@pytest.mark.parametrize(
    ("trace", "sent"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nX: y", False),
        ("mine", False),
        (None, False),
    ],
)
async def test_single_callback_carries_a_valid_trace_only(
    orchestrator: FakeOrchestrator, trace: str | None, sent: bool
) -> None:
    async with Transport() as transport:
        sender = CallbackSender("http://orchestrator.example", transport, ManualTiming())
        running = asyncio.create_task(sender.run())
        sender.ack(directive(orchestrator.url, traceparent=trace), lambda _: None)
        await sender.wait_until_below(1)
        running.cancel()
    assert orchestrator.traces == [trace if sent else None]


async def test_batch_for_one_job_carries_its_trace_and_a_batch_for_several_none(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    mine = directive(orchestrator.url, traceparent=trace, tracestate="a=1", correlation_id="order-7")
    sender.ack(mine, lambda _: None)
    sender.result(mine, b'{"status":"SUCCEEDED"}', lambda _: None)
    await sender.wait_until_below(1)
    sender.ack(mine, lambda _: None)
    sender.ack(directive(orchestrator.url, jobId="another", traceparent=trace), lambda _: None)
    await sender.wait_until_below(1)
    assert [len(request) for request in orchestrator.requests] == [2, 2]
    assert orchestrator.traces == [trace, None]
    assert orchestrator.contexts == [("a=1", "order-7"), (None, None)]


async def test_batch_refused_for_its_headers_is_sent_again_without_the_trace(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    orchestrator.whole_answers.append(web.json_response({"code": "HEADERS_TOO_LARGE"}, status=431))
    seen: list[Delivery] = []
    sender.ack(directive(orchestrator.url, traceparent=trace), seen.append)
    await sender.wait_until_below(1)
    assert seen == [Delivered("APPLIED")]
    assert orchestrator.traces == [trace, None]
    assert [len(request) for request in orchestrator.requests] == [0, 1]


@pytest.mark.parametrize("code", ["HEADERS_TOO_LARGE", ""])
async def test_single_callback_refused_for_its_headers_is_sent_again_without_the_trace(
    orchestrator: FakeOrchestrator, code: str
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answers = iter([{"status": 431, "code": code}, {"status": 200, "disposition": "APPLIED"}])
    orchestrator.answer = lambda _: next(answers)
    seen: list[Delivery] = []
    async with Transport() as transport:
        sender = CallbackSender("http://orchestrator.example", transport, ManualTiming())
        running = asyncio.create_task(sender.run())
        sender.ack(directive(orchestrator.url, traceparent=trace), seen.append)
        async with asyncio.timeout(10):
            await sender.wait_until_below(1)
        running.cancel()
    assert seen == [Delivered("APPLIED")]
    assert orchestrator.traces == [trace, None]


async def test_callbacks_are_delivered_in_order_after_an_outage(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    port = orchestrator.port
    work = directive(orchestrator.url)
    await orchestrator.stop()
    sender.ack(work, lambda _: None)
    sender.result(work, b'{"status":"SUCCEEDED"}', lambda _: None)
    for failures in range(1, 4):
        await until(lambda failures=failures: len(timing.pauses) == failures)  # type: ignore[misc]
        if failures == 3:
            await orchestrator.start(port)
        timing.advance(timing.pauses[-1])
    await sender.wait_until_below(1)
    assert timing.pauses == [0.25, 0.5, 1.0]
    assert [item["type"] for item in orchestrator.callbacks] == ["ack", "result"]


async def test_end_pause_retries_at_once(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    port = orchestrator.port
    await orchestrator.stop()
    sender.ack(directive(orchestrator.url), lambda _: None)
    await until(lambda: timing.waiting == 1)
    await orchestrator.start(port)
    sender.end_pause()
    await sender.wait_until_below(1)
    assert [item["type"] for item in orchestrator.callbacks] == ["ack"]


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_honoured(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming, status: int
) -> None:
    orchestrator.whole_answers.append(web.Response(status=status, headers={"Retry-After": "7"}))
    sender.result(directive(orchestrator.url), b'{"status":"SUCCEEDED"}', lambda _: None)
    await until(lambda: timing.waiting == 1)
    assert timing.pauses == [7.0]
    timing.advance(7)
    await sender.wait_until_below(1)
    assert len(orchestrator.callbacks) == 1


async def test_failed_item_is_sent_again_alone(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    def once_busy(item: Item) -> Item:
        first = len(orchestrator.requests) == 1
        return {"status": 500, "code": "INTERNAL"} if item["jobId"] == "job-2" and first else {"status": 200}

    orchestrator.answer = once_busy
    for number in (1, 2, 3):
        sender.ack(directive(orchestrator.url, number), lambda _: None)
    await until(lambda: timing.waiting == 1)
    assert sender.undelivered == 1
    timing.advance(1)
    await sender.wait_until_below(1)
    assert [item["jobId"] for item in orchestrator.requests[1]] == ["job-2"]


@pytest.mark.parametrize("status", [401, 403, 404, 409])
async def test_refusal_is_final(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming, status: int
) -> None:
    got: list[Delivery] = []
    orchestrator.answer = lambda _: {"status": status, "code": "STALE_ATTEMPT", "disposition": "STALE"}
    sender.result(directive(orchestrator.url), b'{"status":"SUCCEEDED"}', got.append)
    await sender.wait_until_below(1)
    assert got == [CallbackRefused(status, "STALE_ATTEMPT")]
    assert timing.pauses == []


@pytest.mark.parametrize("status", [400, 404, 413, 500])
async def test_a_batch_refused_as_a_whole_is_sent_singly(
    sender: CallbackSender, orchestrator: FakeOrchestrator, status: int
) -> None:
    orchestrator.whole_answers.append(web.Response(status=status))
    for number in (1, 2):
        sender.ack(directive(orchestrator.url, number), lambda _: None)
    await sender.wait_until_below(1)
    assert sorted(item["jobId"] for item in orchestrator.callbacks) == ["job-1", "job-2"]
    assert [len(request) for request in orchestrator.requests] == [0, 1, 1]


@pytest.mark.parametrize("answer", ["<html>hello</html>", '{"results": []}'])
async def test_answer_that_is_not_the_orchestrators_is_retried(
    sender: CallbackSender, orchestrator: FakeOrchestrator, answer: str
) -> None:
    orchestrator.whole_answers.append(web.Response(text=answer))
    sender.ack(directive(orchestrator.url), lambda _: None)
    await sender.wait_until_below(1)
    assert len(orchestrator.callbacks) == 1


@pytest.mark.parametrize(
    ("kind", "worth_seconds"),
    [("ack", 30), ("heartbeat", 60), ("result", 160)],
)
async def test_callback_is_given_up_once_its_deadline_is_over(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming, kind: str, worth_seconds: float
) -> None:
    got: list[Delivery] = []
    work = directive(orchestrator.url, lease_seconds=60.0)
    await orchestrator.stop()
    if kind == "ack":
        sender.ack(work, got.append)
    elif kind == "heartbeat":
        sender.heartbeat(work, None, got.append)
    else:
        sender.result(work, b'{"status":"SUCCEEDED"}', got.append)
    while not got:
        await until(lambda: bool(got) or timing.waiting == 1)
        assert timing.now() <= worth_seconds
        if not got:
            timing.advance(timing.pauses[-1])
    assert isinstance(got[0], GaveUp)
    assert timing.now() > worth_seconds - 31
    await orchestrator.start(orchestrator.port)
    sender.result(directive(orchestrator.url, 2), b'{"status":"SUCCEEDED"}', lambda _: None)
    while not orchestrator.callbacks:
        timing.advance(30)
        await asyncio.sleep(0)
    await sender.wait_until_below(1)
    assert [item["callback_token"] for item in orchestrator.callbacks] == ["token-2"]


async def test_a_callback_whose_deadline_is_past_is_still_tried_once(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    timing.advance(1000)  # the service's clock may be ahead of the orchestrator's
    sender.ack(directive(orchestrator.url), lambda _: None)
    await sender.wait_until_below(1)
    assert len(orchestrator.callbacks) == 1


async def test_callback_url_with_another_path_on_the_orchestrators_host_is_called_itself(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    there = f"{orchestrator.url}/v1/callbacks/ack"
    urls = CallbackUrls(ack=there, result=f"{there}?of=client", heartbeat=there)
    work = directive(orchestrator.url, callback_urls=urls)
    sender.ack(work, lambda _: None)
    await sender.wait_until_below(1)
    sender.result(work, b'{"status":"SUCCEEDED"}', lambda _: None)
    await sender.wait_until_below(1)
    assert orchestrator.bearers == ["Bearer token-1"] * 2, "a batch has a token, too"


async def test_heartbeat_is_not_delayed_by_an_ack_to_an_unreachable_url(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    """A client may ask for the ACK; if it does not accept it, the heartbeat still shows that the work was picked up."""
    nobody = "http://127.0.0.1:9/ack"
    ours = f"{orchestrator.url}/v1/callbacks"
    urls = CallbackUrls(ack=nobody, result=f"{ours}/result", heartbeat=f"{ours}/heartbeat")
    work = directive(orchestrator.url, callback_urls=urls)
    sender.ack(work, lambda _: None)
    await until(lambda: timing.waiting == 1)
    got: list[Delivery] = []
    sender.heartbeat(work, None, got.append)
    await until(lambda: bool(got))
    assert got == [Delivered("APPLIED")]


async def test_unanswered_results_do_not_exhaust_the_connections(
    orchestrator: FakeOrchestrator, sender: CallbackSender
) -> None:
    """They may go to another path of the orchestrator's own host, behind one gateway."""
    gate = asyncio.Event()
    orchestrator.before_answering_singly = gate.wait
    ours = f"{orchestrator.url}/v1/callbacks"
    urls = CallbackUrls(ack=f"{ours}/ack", result=f"{ours}/result?of=client", heartbeat=f"{ours}/heartbeat")
    for number in range(40):
        sender.result(directive(orchestrator.url, number, callback_urls=urls), b'{"a":1}', lambda _: None)
    await until(lambda: orchestrator.hanging >= 16)
    got: list[Delivery] = []
    sender.heartbeat(directive(orchestrator.url, 99), None, got.append)
    await until(lambda: bool(got))
    assert got == [Delivered("APPLIED")]
    gate.set()


async def test_failing_callback_handler_does_not_affect_others(
    sender: CallbackSender, orchestrator: FakeOrchestrator
) -> None:
    def fail(_: Delivery) -> None:
        raise RuntimeError("odd")

    got: list[Delivery] = []
    sender.ack(directive(orchestrator.url, 1), fail)
    sender.ack(directive(orchestrator.url, 2), got.append)
    await sender.wait_until_below(1)
    assert got == [Delivered("APPLIED")]


async def test_short_lease_outside_the_batch_shortens_the_pause(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    orchestrator.whole_answers.append(web.Response(status=503, headers={"Retry-After": "120"}))
    for number in range(200):
        sender.result(directive(orchestrator.url, number), b'{"status":"SUCCEEDED"}', lambda _: None)
    sender.heartbeat(directive(orchestrator.url, 200, lease_seconds=6.0), None, lambda _: None)
    await until(lambda: bool(timing.pauses))
    assert timing.pauses == [2.0]


async def test_result_with_an_expired_lease_honours_retry_after(
    sender: CallbackSender, orchestrator: FakeOrchestrator, timing: ManualTiming
) -> None:
    for _ in range(2):
        orchestrator.whole_answers.append(web.Response(status=503, headers={"Retry-After": "20"}))
    sender.result(directive(orchestrator.url, lease_seconds=1.5), b'{"status":"SUCCEEDED"}', lambda _: None)
    await until(lambda: timing.pauses == [0.5])
    timing.advance(2.0)
    await until(lambda: timing.pauses == [0.5, 20])


@asynccontextmanager
async def sending_to_another_orchestrator(timing: ManualTiming) -> AsyncIterator[CallbackSender]:
    """Yield a sender whose orchestrator is not the one that the test's directives call back to."""
    async with Transport() as transport:
        sender = CallbackSender("http://orchestrator.example", transport, timing, late_window=100)
        running = asyncio.create_task(sender.run())
        yield sender
        assert not running.done()
        running.cancel()


async def test_single_callback_is_delivered_once(orchestrator: FakeOrchestrator, timing: ManualTiming) -> None:
    got: list[Delivery] = []
    async with sending_to_another_orchestrator(timing) as sender:
        sender.result(directive(orchestrator.url), b'{"status":"SUCCEEDED"}', got.append)
        await sender.wait_until_below(1)
        timing.advance(1000)
        await sender.wait_until_below(1)
    assert got == [Delivered("APPLIED")]
    assert len(orchestrator.callbacks) == 1


@pytest.mark.parametrize("answer", [{"message": "no route"}, {}])
async def test_gateway_404_is_retried(orchestrator: FakeOrchestrator, timing: ManualTiming, answer: Item) -> None:
    got: list[Delivery] = []
    orchestrator.answer = lambda _: {**answer, "status": 404}
    async with sending_to_another_orchestrator(timing) as sender:
        sender.result(directive(orchestrator.url), b'{"status":"SUCCEEDED"}', got.append)
        await until(lambda: timing.waiting == 1)
        assert got == []
        orchestrator.answer = lambda _: {"status": 200, "disposition": "APPLIED"}
        timing.advance(1)
        await sender.wait_until_below(1)
    assert got == [Delivered("APPLIED")]


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
async def test_invalid_callback_host_affects_its_own_attempt_only(
    orchestrator: FakeOrchestrator, sender: CallbackSender, host: str
) -> None:
    odd = CallbackUrls(ack=f"http://{host}/a", result=f"http://{host}/r", heartbeat=f"http://{host}/h")
    got: list[Delivery] = []
    sender.result(directive(orchestrator.url, 1, callback_urls=odd), b'{"status":"SUCCEEDED"}', got.append)
    sender.ack(directive(orchestrator.url, 2), got.append)
    await sender.wait_until_below(1)
    assert sorted(got, key=str) == [CallbackRefused(421, "BAD_CALLBACK_URL"), Delivered("APPLIED")]


async def test_certificate_error_is_retried(
    orchestrator: FakeOrchestrator, sender: CallbackSender, timing: ManualTiming, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*_: object, **__: object) -> None:
        raise aiohttp.ClientConnectorCertificateError(Mock(), ssl.CertificateError("it has expired"))

    got: list[Delivery] = []
    with monkeypatch.context() as patched:
        patched.setattr(aiohttp.ClientSession, "post", expired)
        sender.result(directive(orchestrator.url), b'{"status":"SUCCEEDED"}', got.append)
        await until(lambda: timing.waiting == 1)
    timing.advance(1)
    await sender.wait_until_below(1)
    assert got == [Delivered("APPLIED")]


async def test_silent_callback_url_delays_no_other_callback(
    orchestrator: FakeOrchestrator, sender: CallbackSender
) -> None:
    async def silence(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    got: list[Delivery] = []
    sender.ack(directive(url, 1), got.append)
    sender.ack(directive(orchestrator.url, 2), got.append)
    await until(lambda: bool(got))
    sender.heartbeat(directive(orchestrator.url, 2), None, got.append)
    await until(lambda: len(got) == 2)
    assert got == [Delivered("APPLIED")] * 2
    assert sender.undelivered == 1
    server.close()


@pytest.mark.parametrize(("lease", "longest"), [(60.0, 10.0), (900.0, 30.0)])
async def test_retry_pauses_are_bounded_by_the_lease(
    orchestrator: FakeOrchestrator, sender: CallbackSender, timing: ManualTiming, lease: float, longest: float
) -> None:
    port = orchestrator.port
    await orchestrator.stop()
    sender.result(directive(orchestrator.url, lease_seconds=lease), b'{"status":"SUCCEEDED"}', lambda _: None)
    while timing.now() < lease:
        seen = len(timing.pauses)
        await until(lambda seen=seen: len(timing.pauses) > seen)  # type: ignore[misc]
        assert timing.pauses[-1] <= longest
        timing.advance(timing.pauses[-1])
    assert max(timing.pauses) == longest
    await orchestrator.start(port)


async def test_new_short_lease_ends_a_long_pause(
    orchestrator: FakeOrchestrator, sender: CallbackSender, timing: ManualTiming
) -> None:
    orchestrator.whole_answers.append(web.Response(status=503, headers={"Retry-After": "120"}))
    sender.result(directive(orchestrator.url, 1), b'{"status":"SUCCEEDED"}', lambda _: None)
    await until(lambda: timing.pauses == [120])
    sender.heartbeat(directive(orchestrator.url, 2, lease_seconds=6.0), None, lambda _: None)
    await sender.wait_until_below(1)
    assert [item["type"] for item in orchestrator.callbacks] == ["result", "heartbeat"]
