"""Calls and webhooks from the outbox to a real server and back, with the real core."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from lucius.adapters.bus.memory import MemoryBus
from lucius.adapters.http.caller import HttpCaller
from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Cancel, HandedOver, Input, Pause, Resume, Retry
from lucius.core.model.statuses import FailureClass, JobStatus, StepStatus
from lucius.core.protocol.definition import Call, ErrorRule, Guard, Map, Notify, RetryPolicy, StepSpec
from lucius.engine.embedded.relay import Relay
from lucius.engine.outbound import calls
from lucius.engine.outbound.host_queue import RequestTarget, Waiting
from lucius.ports.errors import LedgerCorrupt, LedgerDown, LedgerFull
from lucius.ports.http import HttpResponse, Outgoing, Slot
from tests.support.engine import WEBHOOK_SECRET, Engine
from tests.support.peer import Handler, Peer, always, in_turn, ok, peer

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = 1_000


@pytest.fixture
async def server() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


def call(url: str, step_id: str = "call", *, body: Any = None, **fields: Any) -> StepSpec:
    """Return an external_call step. Fields of the call go to the call, the rest to the step."""
    own = {name: fields.pop(name) for name in ("method", "headers", "result", "errors", "guard") if name in fields}
    return StepSpec(step_id=step_id, kind="external_call", external_call=Call(url=url, body=body, **own), **fields)


def problem(status: int, code: str) -> Handler:
    body = {"type": "about:blank", "title": "No", "detail": "not this way", "code": code}
    return always(status, body, Content_Type="application/problem+json")


class TestCall:
    async def test_call_is_rendered_from_the_input_and_its_answer_is_the_result(self, server: Peer) -> None:
        engine = Engine()
        server.answer = always(201, {"id": "ch_1", "amount": 12})
        spec = call(
            server.url + "/charges/${input.account}",
            headers={"Authorization": "Bearer ${secrets.API_KEY}"},
            body={"amount": "${input.amount}", "job": "${job.id}"},
        )
        async with engine.running():
            await engine.submit(spec, payload={"account": "a7", "amount": 12}, traceparent=TRACE)
            job = await engine.ended()
        assert job.status is JobStatus.SUCCEEDED
        step = await engine.step("call")
        assert step.result == {"id": "ch_1", "amount": 12}
        (seen,) = server.seen
        assert (seen.method, seen.path, seen.json) == ("POST", "/charges/a7", {"amount": 12, "job": "job-1"})
        assert seen.headers["idempotency-key"] == step.idempotency_key
        assert seen.headers["authorization"] == "Bearer s3cr3t-value"
        assert seen.headers["traceparent"] == TRACE

    async def test_a_result_expression_sees_the_answer_and_the_job(self, server: Peer) -> None:
        engine = Engine()
        server.answer = always(200, {"price": 4}, X_Request_Id="r-1")
        first = call(server.url, "first", result="response.body.price")
        seen = "response.headers['x-request-id'], input.n"
        second = call(server.url, result=f"[steps.first.result + response.body.price, {seen}]")
        async with engine.running():
            await engine.submit(first, second, payload={"n": 3})
            await engine.ended()
        assert (await engine.step("call")).result == [8, "r-1", 3]

    async def test_call_inside_a_map_has_an_idempotency_key_per_item(self, server: Peer) -> None:
        engine = Engine()
        server.answer = always(200, {"half": 2})
        inner = call(server.url + "/${item}", result="item + string(response.body.half) + string(item_index)")
        spec = StepSpec(step_id="all", kind="map", map=Map(items="input.list", steps=(inner,)))
        async with engine.running():
            await engine.submit(spec, payload={"list": ["a", "b", "c"]})
            job = await engine.ended()
        assert job.status is JobStatus.SUCCEEDED
        assert [(await engine.step(f"call.{i}")).result for i in range(3)] == ["a20", "b21", "c22"]
        assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 3

    @pytest.mark.parametrize(
        ("answer", "code", "failure_class", "again"),
        [
            (always(503), "HTTP_503", "TRANSIENT", True),
            (always(500), "HTTP_500", "RETRYABLE", True),
            (always(409), "HTTP_409", "RETRYABLE", True),
            (always(424), "HTTP_424", "DEPENDENCY_FAILED", True),
            (always(429), "HTTP_429", "RATE_LIMITED", True),
            (always(404), "HTTP_404", "NON_RETRYABLE", False),
            (always(302, None, Location="/x"), "HTTP_302", "NON_RETRYABLE", False),
            (always(409, {"code": "TRANSITION_FORBIDDEN"}), "TRANSITION_FORBIDDEN", "NON_RETRYABLE", False),
            (always(409, text="TRANSITION_FORBIDDEN"), "HTTP_409", "RETRYABLE", True),
            (problem(409, "TRANSITION_FORBIDDEN"), "TRANSITION_FORBIDDEN", "NON_RETRYABLE", False),
            (problem(422, "not a code!"), "HTTP_422", "NON_RETRYABLE", False),
            (problem(503, "PARTIAL_SIDE_EFFECT"), "PARTIAL_SIDE_EFFECT", "COMPENSATION_REQUIRED", False),
        ],
    )
    async def test_answer_that_is_not_2xx_fails_with_the_documented_code_and_class(
        self, server: Peer, answer: Handler, code: str, failure_class: str, again: bool
    ) -> None:
        engine = Engine()
        server.answer = answer
        async with engine.running():
            await engine.submit(call(server.url))
            step = await engine.until("call", "FAILED_RETRY" if again else "FAILED_FINAL")
        assert step.last_error is not None
        assert (step.last_error.code, step.attempt.failure_class) == (code, failure_class)
        assert "was answered with" in step.last_error.message
        assert len(server.seen) == 1

    async def test_title_and_detail_of_a_problem_document_are_in_the_error_message(self, server: Peer) -> None:
        engine = Engine()
        server.answer = problem(409, "TRANSITION_FORBIDDEN")
        async with engine.running():
            await engine.submit(call(server.url))
            step = await engine.until("call", "FAILED_FINAL")
        assert step.last_error is not None
        assert step.last_error.message == "POST was answered with 409: No: not this way"

    async def test_error_rules_of_the_protocol_override_status_codes_and_success(self, server: Peer) -> None:
        rules = (
            ErrorRule(when="response.body.fault.kind == 'x'", failure_class=FailureClass.TRANSIENT, code="NEVER"),
            ErrorRule(when="response.status == 404", failure_class=FailureClass.RETRYABLE, code="NOT_YET"),
            ErrorRule(when="response.body.ok == false", failure_class=FailureClass.NON_RETRYABLE, code="SAYS_NO"),
            ErrorRule(when="true", failure_class=FailureClass.TRANSIENT, code="ANYTHING_ELSE"),
        )
        engine = Engine()
        server.answer = in_turn(always(404, text="nothing"), always(200, {"ok": False}))
        async with engine.running():
            await engine.submit(call(server.url, errors=rules))
            step = await engine.until("call", "FAILED_RETRY")
            assert step.last_error is not None
            assert (step.last_error.code, step.attempt.failure_class) == ("NOT_YET", "RETRYABLE")
            await engine.tried_again("call")
            step = await engine.until("call", "FAILED_FINAL")
        assert step.last_error is not None
        assert step.last_error.code == "SAYS_NO"

    async def test_error_rule_over_a_missing_member_does_not_match(self, server: Peer) -> None:
        rule = ErrorRule(when="response.body.error.code == 'X'", failure_class=FailureClass.NON_RETRYABLE)
        engine = Engine()
        async with engine.running():
            await engine.submit(call(server.url, errors=(rule,)))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED

    async def test_result_expression_that_cannot_be_evaluated_fails_the_job(self, server: Peer) -> None:
        engine = Engine()
        async with engine.running():
            await engine.submit(call(server.url, result="response.body.missing.more"))
            job = await engine.ended()
        assert job.error is not None
        assert (job.status, job.error.code) == (JobStatus.FAILED_FINAL, "EXPRESSION_FAILED")

    async def test_oversized_result_fails_the_job_with_result_too_large(self, server: Peer) -> None:
        engine = Engine()
        server.answer = always(200, {"text": "x" * 200_000})
        async with engine.running():
            await engine.submit(call(server.url, result="[response.body.text, response.body.text]"))
            job = await engine.ended()
        assert job.error is not None
        assert job.error.code == "RESULT_TOO_LARGE"

    async def test_unreachable_host_is_transient_and_the_event_records_that_nothing_was_sent(self) -> None:
        engine = Engine()
        async with engine.running():
            await engine.submit(call("http://127.0.0.1:1/"))
            step = await engine.until("call", "FAILED_RETRY")
        assert step.last_error is not None
        assert (step.last_error.code, step.attempt.failure_class) == ("CONNECTION_FAILED", "TRANSIENT")
        (event,) = await engine.events("CALLBACK_RESULT")
        assert event.data["extra"] == {"sent": False}

    async def test_not_safe_call_is_retried_only_if_nothing_was_sent(self, server: Peer) -> None:
        never = Engine()
        async with never.running():
            await never.submit(call("http://127.0.0.1:1/", retry_safety="NOT_SAFE_TO_RETRY"))
            assert (await never.until("call", "FAILED_RETRY")).tries == 1
        perhaps = Engine()
        server.answer = always(503)
        async with perhaps.running():
            await perhaps.submit(call(server.url, retry_safety="NOT_SAFE_TO_RETRY"))
            assert (await perhaps.until("call", "FAILED_FINAL")).tries == 1

    @pytest.mark.parametrize(
        ("url", "code"),
        [
            ("https://elsewhere.example.com/", "HOST_NOT_ALLOWED"),
            ("http://127.0.0.1:8080/v1/commands", "SELF_CALL"),
            ("not a url", "BAD_URL"),
            ("http://127.0.0.1:9/${secrets.NOBODY}", "UNKNOWN_SECRET"),
        ],
    )
    async def test_call_forbidden_by_policy_fails_finally_with_its_reason_code(self, url: str, code: str) -> None:
        engine = Engine()
        async with engine.running():
            await engine.submit(call(url))
            job = await engine.ended()
        assert job.error is not None
        assert (job.status, job.error.code) == (JobStatus.FAILED_FINAL, code)
        assert (await engine.step("call")).attempt.attempt_no == 1

    async def test_unexpected_exception_fails_the_attempt_and_no_other_call(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted: list[str] = []
        engine, send = Engine(on_failure=counted.append), HttpCaller.send

        async def breaking(caller: HttpCaller, outgoing: Outgoing) -> HttpResponse:
            if outgoing.url.endswith("/bad"):
                raise KeyError("surprise")
            return await send(caller, outgoing)

        monkeypatch.setattr(HttpCaller, "send", breaking)
        async with engine.running():
            await engine.submit(call(f"{server.url}/bad"), job_id="bad")
            await engine.submit(call(server.url), job_id="good")
            step = await engine.until("call", "FAILED_RETRY", "bad")
            assert (await engine.ended("good")).status is JobStatus.SUCCEEDED
        assert step.last_error is not None
        assert (step.last_error.code, step.last_error.message) == ("CALL_FAILED", "the call failed (KeyError)")
        assert (step.attempt.failure_class, counted) == ("TRANSIENT", ["calls"])

    async def test_header_values_are_rendered_as_json(self, server: Peer) -> None:
        engine = Engine()
        wanted = {f"X-{name}": f"${{input.{name}}}" for name in ("flag", "list", "map", "text", "none")}
        payload = {"flag": True, "list": [1, "a"], "map": {"k": False}, "text": "True", "none": None}
        async with engine.running():
            await engine.submit(call(server.url, headers=wanted), payload=payload)
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        sent = {name: server.seen[0].headers[name.lower()] for name in wanted}
        assert list(sent.values()) == ["true", '[1,"a"]', '{"k":false}', "True", "null"]

    async def test_another_attempt_sends_the_same_request_with_the_same_key(self, server: Peer) -> None:
        engine = Engine()
        server.answer = in_turn(always(503), ok)
        async with engine.running():
            await engine.submit(call(server.url, body={"at": "${input.x}"}), payload={"x": "1"})
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        first, second = server.seen
        assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])


class TestSecrets:
    async def test_secret_reference_in_the_job_input_is_not_resolved(self, server: Peer) -> None:
        engine = Engine()
        spec = call(
            server.url, headers={"X-Key": "${secrets.API_KEY}"}, body={"all": "${input}", "in": "a ${input.t} b"}
        )
        payload = {"t": "${secrets.API_KEY}", "deep": [{"${secrets.API_KEY}": "$${secrets.API_KEY}"}]}
        async with engine.running():
            await engine.submit(spec, payload=payload)
            await engine.ended()
        (seen,) = server.seen
        assert seen.headers["x-key"] == "s3cr3t-value"
        assert seen.json == {"all": payload, "in": "a ${secrets.API_KEY} b"}

    async def test_stored_job_and_history_contain_no_secret(self, server: Peer) -> None:
        async def echo(request: web.Request) -> web.StreamResponse:
            return web.json_response({"you": request.headers["X-Key"], "path": request.path})

        engine = Engine()
        server.answer = echo
        async with engine.running():
            await engine.submit(call(server.url + "/${secrets.API_KEY}", headers={"X-Key": "${secrets.API_KEY}"}))
            await engine.ended()
        view = await engine.store.jobs.job("job-1")
        kept = msgspec.json.encode([view, await engine.store.history.events("job-1", 0, 100)])
        assert b"s3cr3t" not in kept
        assert server.seen[0].headers["x-key"] == "s3cr3t-value"


class TestHosts:
    async def test_429_holds_back_other_jobs_for_that_host_without_using_their_attempts(self, server: Peer) -> None:
        engine = Engine()
        server.answer = in_turn(always(429, None, Retry_After="30"), ok)
        async with engine.running(), peer() as other:
            await engine.submit(call(server.url), job_id="first")
            slowed = await engine.until("call", "FAILED_RETRY", "first")
            assert slowed.retry_at == engine.clock.now() + 30 * SECOND
            await engine.submit(call(server.url), job_id="second")
            await engine.submit(call(other.url), job_id="third")
            assert (await engine.ended("third")).status is JobStatus.SUCCEEDED
            waits = await engine.step("call", "second")
            assert (waits.status, waits.tries, len(server.seen)) == (StepStatus.DISPATCHING, 1, 1)
            engine.clock.advance(30)
            assert (await engine.ended("second")).status is JobStatus.SUCCEEDED
            assert (await engine.step("call", "second")).attempt.attempt_no == 1
            await engine.sweeper.sweep()
            assert (await engine.ended("first")).status is JobStatus.SUCCEEDED

    async def test_step_is_retried_after_the_full_retry_after(self, server: Peer) -> None:
        engine = Engine()
        server.answer = always(429, None, Retry_After="7200")
        async with engine.running():
            await engine.submit(call(server.url))
            step = await engine.until("call", "FAILED_RETRY")
        assert step.retry_at == engine.clock.now() + 7_200 * SECOND

    async def test_host_is_called_as_soon_as_its_retry_after_is_over(self, server: Peer) -> None:
        engine = Engine(per_host=1, retry_interval=60, time_flows=True)
        server.answer = in_turn(always(429, None, Retry_After="1"), ok)
        async with engine.running():
            await engine.submit(call(server.url), job_id="first")
            await engine.submit(call(server.url), job_id="second")
            assert (await engine.ended("second")).status is JobStatus.SUCCEEDED

    async def test_calls_to_one_host_are_limited_and_all_complete(self, server: Peer) -> None:
        engine = Engine(per_host=3)
        server.gate.clear()
        async with engine.running():
            jobs = [await engine.submit(call(server.url), job_id=f"job-{i}") for i in range(10)]
            await server.saw(3)
            await asyncio.sleep(0.05)
            assert len(server.seen) == 3
            waiting = [(await engine.step("call", job_id)).status for job_id in jobs]
            assert waiting.count(StepStatus.DISPATCHING) == 7
            server.gate.set()
            assert {(await engine.ended(job_id)).status for job_id in jobs} == {JobStatus.SUCCEEDED}
        assert server.most_at_once == 3

    async def test_a_long_queue_for_one_host_does_not_starve_the_others(self, server: Peer) -> None:
        engine = Engine(per_host=1, retry_interval=60)
        server.gate.clear()
        for i in range(40):
            await engine.submit(call(server.url), job_id=f"slow-{i}")
        async with engine.running(), peer() as other:
            await engine.submit(call(other.url), job_id="quick")
            assert (await engine.ended("quick")).status is JobStatus.SUCCEEDED
            assert len(server.seen) == 1
            server.gate.set()
            for i in range(40):
                assert (await engine.ended(f"slow-{i}")).status is JobStatus.SUCCEEDED
        assert [seen.headers["idempotency-key"] for seen in server.seen] == [
            (await engine.step("call", f"slow-{i}")).idempotency_key for i in range(40)
        ]

    @pytest.mark.parametrize("per_host", [1, 2])
    async def test_queue_for_one_host_longer_than_a_claim_starves_no_other_host(
        self, server: Peer, per_host: int
    ) -> None:
        engine = Engine(per_host=per_host, parallel=3, retry_interval=60)
        server.gate.clear()
        jobs = [await engine.submit(call(server.url), job_id=f"slow-{i}") for i in range(100)]
        async with engine.running(), peer() as other:
            for i in range(20):
                await engine.submit(call(other.url), job_id=f"quick-{i}")
            for i in range(20):
                assert (await engine.ended(f"quick-{i}")).status is JobStatus.SUCCEEDED
            assert len(server.seen) == per_host
            server.gate.set()
            assert {(await engine.ended(job_id)).status for job_id in jobs} == {JobStatus.SUCCEEDED}
        assert (len(server.seen), server.most_at_once) == (100, per_host)

    async def test_more_rate_limited_hosts_than_slots_starve_no_other_host(self, server: Peer) -> None:
        engine = Engine("*.example", "127.0.0.1", parallel=1, retry_interval=60)
        for i in range(50):
            await engine.submit(call(f"https://h{i}.example/"), job_id=f"slow-{i}")
            host = engine.caller.host(f"https://h{i}.example/")
            engine.caller.hosts.pause(host, engine.clock.now(), 60 * SECOND)
        await engine.submit(call(server.url), job_id="quick")
        async with engine.running():
            assert (await engine.ended("quick")).status is JobStatus.SUCCEEDED

    async def test_calls_to_all_hosts_together_are_limited(self, server: Peer) -> None:
        engine = Engine(parallel=2)
        server.gate.clear()
        async with engine.running():
            for i in range(5):
                await engine.submit(call(server.url), job_id=f"job-{i}")
            await server.saw(2)
            await asyncio.sleep(0.05)
            assert len(server.seen) == 2
            server.gate.set()
            for i in range(5):
                await engine.ended(f"job-{i}")
        assert server.most_at_once == 2

    async def test_slow_hosts_of_one_tenant_do_not_delay_the_calls_of_another(self, server: Peer) -> None:
        engine = Engine(parallel=3, per_host=99, retry_interval=60)
        server.gate.clear()
        for i in range(40):
            await engine.submit(call(server.url), job_id=f"slow-{i}", tenant_id="slow")
        async with engine.running(), peer() as other:
            await server.saw(3)
            await engine.submit(call(other.url), job_id="quick", tenant_id="quick")
            assert (await engine.ended("quick")).status is JobStatus.SUCCEEDED
            server.gate.set()
            for i in range(40):
                assert (await engine.ended(f"slow-{i}")).status is JobStatus.SUCCEEDED
        assert server.most_at_once == 3

    async def test_tenants_that_call_the_same_host_take_turns(self, server: Peer) -> None:
        engine = Engine(per_host=1, retry_interval=60)
        for i in range(20):
            await engine.submit(call(server.url), job_id=f"many-{i}", tenant_id="many")
        await engine.submit(call(server.url), job_id="one", tenant_id="one")
        async with engine.running():
            for i in range(20):
                await engine.ended(f"many-{i}")
            await engine.ended("one")
        made = [seen.headers["idempotency-key"] for seen in server.seen]
        assert made.index((await engine.step("call", "one")).idempotency_key) <= 2


class TestUrls:
    async def test_value_with_dot_segments_reaches_no_other_endpoint(self, server: Peer) -> None:
        engine = Engine()
        async with engine.running():
            spec = call(server.url + "/v1/documents/${input.id}/transitions")
            await engine.submit(spec, payload={"id": "../../../admin/users"})
            job = await engine.ended()
        assert job.status is JobStatus.FAILED_FINAL
        assert job.failure is not None
        assert job.failure.error.code == "TEMPLATE_FAILED"
        assert server.seen == []

    async def test_value_is_sent_as_one_segment_and_one_parameter(self, server: Peer) -> None:
        engine, raw = Engine(), []

        async def answer(request: web.Request) -> web.StreamResponse:
            raw.append(request.raw_path)
            return await ok(request)

        server.answer = answer
        async with engine.running():
            await engine.submit(call(server.url + "/v1/${input.id}?q=${input.id}"), payload={"id": "a/b;c=d?e&f g"})
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert raw == ["/v1/a%2Fb%3Bc%3Dd%3Fe%26f%20g?q=a%2Fb%3Bc%3Dd%3Fe%26f%20g"]


class TestGuard:
    GUARD = Guard(url="", done_when="response.status == 200 && response.body.paid", result="response.body.receipt")

    def spec(self, server: Peer, **changes: Any) -> StepSpec:
        guard = msgspec.structs.replace(self.GUARD, url=f"{server.url}/state/${{input.id}}", **changes)
        return call(server.url + "/pay", guard=guard, retry_safety="SAFE_TO_RETRY_WITH_GUARD")

    def answer(self, server: Peer, pay: Handler, state: Handler) -> None:
        async def either(request: web.Request) -> web.StreamResponse:
            return await (state if request.path.startswith("/state") else pay)(request)

        server.answer = either

    def paths(self, server: Peer) -> list[str]:
        return [f"{seen.method} {seen.path}" for seen in server.seen]

    async def test_first_attempt_skips_the_guard_request(self, server: Peer) -> None:
        engine = Engine()
        self.answer(server, ok, always(500))
        async with engine.running():
            await engine.submit(self.spec(server), payload={"id": "7"})
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(server) == ["POST /pay"]

    async def test_call_is_not_repeated_if_the_guard_finds_its_effect(self, server: Peer) -> None:
        engine = Engine()
        self.answer(server, always(504), always(200, {"paid": True, "receipt": "r-1"}))
        async with engine.running():
            await engine.submit(self.spec(server), payload={"id": "7"})
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(server) == ["POST /pay", "GET /state/7"]
        assert (await engine.step("call")).result == "r-1"

    async def test_guard_request_has_an_idempotency_key_of_its_own(self, server: Peer) -> None:
        engine = Engine()
        self.answer(server, in_turn(always(504), ok), always(404, {}))
        async with engine.running():
            await engine.submit(self.spec(server), payload={"id": "7"})
            await engine.tried_again("call")
            await engine.ended()
        paid, asked, again = (seen.headers["idempotency-key"] for seen in server.seen)
        assert (again, asked) == (paid, f"{paid}-guard")

    @pytest.mark.parametrize("state", [always(200, {"paid": False}), always(404, {"code": "unknown"})])
    async def test_call_is_repeated_if_the_guard_finds_no_effect(self, server: Peer, state: Handler) -> None:
        engine = Engine()
        self.answer(server, in_turn(always(504), ok), state)
        async with engine.running():
            await engine.submit(self.spec(server), payload={"id": "7"})
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(server) == ["POST /pay", "GET /state/7", "POST /pay"]

    @pytest.mark.parametrize(
        ("state", "code"), [(always(500), "HTTP_500"), (always(403), "HTTP_403"), (always(429), "HTTP_429")]
    )
    async def test_failed_guard_request_prevents_the_call(self, server: Peer, state: Handler, code: str) -> None:
        engine = Engine()
        self.answer(server, always(504), state)
        async with engine.running():
            await engine.submit(self.spec(server), payload={"id": "7"})
            await engine.tried_again("call")
            step = await engine.until("call", "FAILED_FINAL" if code == "HTTP_403" else "FAILED_RETRY")
        assert step.last_error is not None
        assert step.last_error.code == code
        assert step.last_error.message.startswith("the guard request was answered with ")
        assert self.paths(server) == ["POST /pay", "GET /state/7"]

    @pytest.mark.parametrize("done_when", ["response.body.nothing", "response.body.receipt"])
    async def test_guard_expression_without_a_boolean_prevents_the_call(self, server: Peer, done_when: str) -> None:
        engine = Engine()
        self.answer(server, always(504), always(200, {"receipt": "r"}))
        async with engine.running():
            await engine.submit(self.spec(server, done_when=done_when), payload={"id": "7"})
            await engine.tried_again("call")
            job = await engine.ended()
        assert job.error is not None
        assert job.error.code == "EXPRESSION_FAILED"
        assert self.paths(server) == ["POST /pay", "GET /state/7"]

    async def test_first_attempt_of_a_retried_job_sends_the_guard_request(self, server: Peer) -> None:
        engine = Engine()
        self.answer(server, always(400), always(200, {"paid": True, "receipt": "r-2"}))
        async with engine.running():
            await engine.submit(self.spec(server), payload={"id": "7"})
            assert (await engine.ended()).status is JobStatus.FAILED_FINAL
            await engine.feed(Retry(by="ada", reason="the bank says it went through"))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(server) == ["POST /pay", "GET /state/7"]

    async def test_next_visit_of_a_loop_skips_the_guard_and_has_a_new_key(self, server: Peer) -> None:
        engine = Engine()
        self.answer(server, ok, always(200, {"paid": True, "receipt": "r"}))
        pay = msgspec.structs.replace(self.spec(server), on_success="again", max_visits=3)
        again = call(server.url + "/next", "again", on_success="call", max_visits=2)
        async with engine.running():
            await engine.submit(pay, again, payload={"id": "7"})
            job = await engine.ended()
        assert job.error is not None
        assert job.error.code == "VISIT_LIMIT"
        assert self.paths(server) == ["POST /pay", "POST /next"] * 2 + ["POST /pay"]
        assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 5


class TestNotify:
    async def test_a_webhook_is_signed_and_has_type_timestamp_and_data(self, server: Peer) -> None:
        engine = Engine()
        clock = engine.clock
        notify = Notify(url=f"{server.url}/hooks", type="invoice.paid", data={"id": "${input.id}"})
        async with engine.running():
            await engine.submit(StepSpec(step_id="tell", kind="notify", notify=notify), payload={"id": "7"})
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        step = await engine.step("tell")
        (seen,) = server.seen
        assert step.result == {"status": 200}
        assert seen.json["type"] == "invoice.paid"
        assert seen.json["data"] == {"id": "7"}
        assert seen.headers["webhook-id"] == step.idempotency_key
        assert seen.headers["webhook-timestamp"] == str(clock.now() // 1000)
        at = datetime.fromtimestamp(clock.now() // 1000, UTC)
        assert seen.headers["webhook-signature"] == Webhook(WEBHOOK_SECRET).sign(
            step.idempotency_key, at, seen.body.decode()
        )

    async def test_retried_webhook_has_the_same_id_and_body(self, server: Peer) -> None:
        engine = Engine()
        server.answer = in_turn(always(500), always(204, text=""))
        notify = Notify(url=f"{server.url}/hooks", type="invoice.paid")
        async with engine.running():
            await engine.submit(StepSpec(step_id="tell", kind="notify", notify=notify))
            await engine.tried_again("tell")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        first, second = server.seen
        assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
        assert first.headers["webhook-signature"] != second.headers["webhook-signature"]  # the time is signed
        assert (await engine.step("tell")).result == {"status": 204}

    async def test_webhook_without_its_secret_is_not_sent(self, server: Peer) -> None:
        engine = Engine()
        notify = Notify(url=server.url, type="t", secret="other")
        async with engine.running():
            await engine.submit(StepSpec(step_id="tell", kind="notify", notify=notify))
            job = await engine.ended()
        assert job.error is not None
        assert (job.error.code, server.seen) == ("UNKNOWN_SECRET", [])


class TestTimeoutsAndOutages:
    async def test_a_steps_own_timeout_takes_its_timeout_path(self, server: Peer) -> None:
        engine = Engine()
        server.answer = in_turn(ok, ok)
        server.gate.clear()
        policy = RetryPolicy(max_attempts=1)
        slow = call(server.url, timeout_ms=5_000, on_timeout="plan_b", on_failure="FAIL", retry_policy=policy)
        async with engine.running():
            await engine.submit(slow, call(server.url + "/b", "plan_b"))
            await server.saw(1)
            engine.clock.advance(5)
            await engine.sweeper.sweep()
            assert (await engine.step("call")).last_error is not None
            server.gate.set()
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert [seen.path for seen in server.seen] == ["/", "/b"]

    @pytest.mark.parametrize(("timeout_ms", "most_ms"), [(None, 30_000), (5_000, 7_000), (600_000, 602_000)])
    async def test_request_timeout_is_slightly_longer_than_the_step_timeout(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch, timeout_ms: int | None, most_ms: int
    ) -> None:
        engine = Engine()
        real, given = engine.caller.send, []

        async def noting(outgoing: Outgoing) -> HttpResponse:
            given.append(outgoing.timeout_ms)
            return await real(outgoing)

        monkeypatch.setattr(engine.caller, "send", noting)
        async with engine.running():
            await engine.submit(call(server.url, timeout_ms=timeout_ms))
            await engine.ended()
        assert most_ms - 1_000 < given[0] <= most_ms

    async def test_call_without_a_step_timeout_ends_after_the_default(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lucius.engine.outbound.http_attempt.DEFAULT_TIMEOUT_MS", 50)
        engine = Engine()
        server.gate.clear()
        async with engine.running():
            await engine.submit(call(server.url))
            step = await engine.until("call", "FAILED_RETRY")
        assert step.last_error is not None
        assert step.last_error.code == "TIMEOUT"

    async def test_answer_is_kept_until_a_full_ledger_records_it(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "MIN_BACKOFF_SECONDS", 0.001)
        engine = Engine()
        real, failures = engine.ledger.commit, 0

        async def full_for_a_while(decision: Decision) -> None:
            nonlocal failures
            if server.seen and failures < 3:
                failures += 1
                raise LedgerFull("no space left")
            await real(decision)

        monkeypatch.setattr(engine.ledger, "commit", full_for_a_while)
        async with engine.running():
            await engine.submit(call(server.url))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert (failures, len(server.seen)) == (3, 1)

    async def test_call_is_not_made_if_its_hand_over_cannot_be_recorded(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url))
        real, failures = engine.ledger.commit, 0

        async def full_once(decision: Decision) -> None:
            nonlocal failures
            if not failures:
                failures += 1
                raise LedgerFull("no space left")
            await real(decision)

        monkeypatch.setattr(engine.ledger, "commit", full_once)
        async with asyncio.timeout(5):
            await engine.calls.run_once()
        with pytest.raises(LedgerFull):
            await engine.calls.run_once()
        assert server.seen == []
        engine.clock.advance(60)
        async with engine.running():
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len(server.seen) == 1

    async def test_a_cancelled_job_makes_no_call(self, server: Peer) -> None:
        engine = Engine()
        await engine.submit(call(server.url))
        await engine.feed(Cancel("ada"))
        async with engine.running():
            assert (await engine.ended()).status is JobStatus.CANCELLED
            await asyncio.sleep(0.05)
        assert server.seen == []

    async def test_job_cancelled_during_a_call_waits_for_the_call_to_end(self, server: Peer) -> None:
        engine = Engine()
        server.gate.clear()
        async with engine.running():
            await engine.submit(call(server.url))
            await server.saw(1)
            await engine.feed(Cancel("ada"))
            assert (await engine.job()).status is JobStatus.CANCELLING
            server.gate.set()
            assert (await engine.ended()).status is JobStatus.CANCELLED
        assert (await engine.step("call")).status is StepStatus.SUCCEEDED

    async def test_a_paused_job_makes_no_call_until_it_is_resumed(self, server: Peer) -> None:
        engine = Engine()
        await engine.submit(call(server.url))
        rows = await engine.row_holds.take("lucius.http", 10)  # read before the pause, as a runner may have done
        await engine.feed(Pause("ada"))
        await engine.row_holds.put_back(rows)
        for row in rows:
            await engine.step_calls.run(Waiting(RequestTarget("", ""), row, 0), Slot(lambda: None))
        assert (await engine.step("call")).status is StepStatus.DISPATCHING
        async with engine.running():
            await asyncio.sleep(0.05)
            assert server.seen == []
            engine.clock.advance(1)
            await engine.feed(Resume("ada"))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len(server.seen) == 1

    async def test_row_of_an_unknown_step_does_not_keep_the_runner_busy(self, server: Peer) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url))
        looks = 0
        real = engine.ledger.load

        async def counted(job_id: str, step_ids: Any = (), fresh: bool = False) -> Any:
            nonlocal looks
            looks += 1
            view = await real(job_id, step_ids)
            return msgspec.structs.replace(view, steps={}) if view else None

        engine.ledger.load = counted  # type: ignore[method-assign]
        async with engine.running():
            await asyncio.sleep(0.1)
        assert looks == 1

    async def test_unreadable_job_does_not_block_other_calls(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url), job_id="torn")
        await engine.submit(call(server.url), job_id="whole")
        real = engine.ledger.load

        async def torn(job_id: str, step_ids: Any = (), fresh: bool = False) -> Any:
            if job_id == "torn":
                raise LedgerCorrupt("a row is not what it was")
            return await real(job_id, step_ids)

        monkeypatch.setattr(engine.ledger, "load", torn)
        await engine.calls.run_once()
        assert (await engine.ended("whole")).status is JobStatus.SUCCEEDED
        with pytest.raises(LedgerCorrupt):
            await engine.calls.run_once()

    async def test_row_of_a_fenced_attempt_does_not_keep_the_runner_busy(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url))
        real, asked = engine.jobs.apply, 0

        async def fenced(job_id: str, inputs: Sequence[Input], step_id: str | None = None) -> Decision:
            nonlocal asked
            asked += 1
            return await real(job_id, (HandedOver("call", 1, "another lease"),), step_id)

        monkeypatch.setattr(engine.jobs, "apply", fenced)
        async with engine.running():
            await asyncio.sleep(0.1)
        assert (asked, server.seen) == (1, [])

    @pytest.mark.parametrize("is_made", [False, True])
    async def test_uncertain_hand_over_is_looked_up_and_the_call_made_once(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch, is_made: bool
    ) -> None:
        monkeypatch.setattr(calls, "MIN_BACKOFF_SECONDS", 0.001)
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url))
        self.lose_answer(engine, monkeypatch, is_made)
        async with engine.running():
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len(server.seen) == 1

    async def test_not_safe_call_with_an_uncertain_hand_over_is_left_to_its_lease(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "MIN_BACKOFF_SECONDS", 0.001)
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url, retry_safety="NOT_SAFE_TO_RETRY"))
        self.lose_answer(engine, monkeypatch, is_made=True)
        async with engine.running():
            await asyncio.sleep(0.1)
        assert (await engine.step("call")).status is StepStatus.PROCESSING
        assert server.seen == []

    def lose_answer(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_made: bool) -> None:
        """Lose the answer to the next commit; with `is_made`, the commit itself is durable."""
        real, lost = engine.ledger.commit, False

        async def commit(decision: Decision) -> None:
            nonlocal lost
            if lost or is_made:
                await real(decision)
            if not lost:
                lost = True
                raise LedgerDown("the connection is gone")

        monkeypatch.setattr(engine.ledger, "commit", commit)

    @pytest.mark.parametrize("again", [False, True])
    async def test_step_ended_or_re_leased_by_its_hand_over_makes_no_call(
        self, server: Peer, monkeypatch: pytest.MonkeyPatch, again: bool
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(server.url))
        real = engine.jobs.apply

        async def moves_on(job_id: str, inputs: Sequence[Input], step_id: str | None = None) -> Decision:
            decision = await real(job_id, inputs, step_id)
            (step,) = decision.steps
            attempt = msgspec.structs.replace(step.attempt, lease_id="another lease")
            later = {"attempt": attempt} if again else {"status": StepStatus.CANCELLED}
            return msgspec.structs.replace(decision, steps=(msgspec.structs.replace(step, **later),))

        monkeypatch.setattr(engine.jobs, "apply", moves_on)
        async with engine.running():
            await asyncio.sleep(0.1)
        assert server.seen == []

    async def test_stop_lets_a_running_call_end_and_starts_no_other(self, server: Peer) -> None:
        engine = Engine(per_host=1)
        server.gate.clear()
        await engine.submit(call(server.url))
        await engine.submit(call(server.url), job_id="next")
        await engine.calls.start_due()
        await server.saw(1)
        stopping = asyncio.create_task(engine.calls.stop(5))
        await asyncio.sleep(0.01)
        server.gate.set()
        await stopping
        assert (await engine.job()).status is JobStatus.SUCCEEDED
        assert (await engine.step("call", "next")).status is StepStatus.DISPATCHING

    async def test_call_longer_than_the_stop_grace_is_cancelled_and_retried_after_its_lease(self, server: Peer) -> None:
        engine = Engine()
        server.gate.clear()
        await engine.submit(call(server.url))
        await engine.calls.start_due()
        await server.saw(1)
        await engine.calls.stop(0.01)
        step = await engine.step("call")
        assert step.status is StepStatus.PROCESSING
        assert step.attempt.lease_expires_at == engine.clock.now() + 45 * SECOND
        server.gate.set()
        engine.clock.advance(45)
        await engine.sweeper.sweep()
        async with engine.running():
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 1


async def test_push_bus_gets_no_call_and_calls_do_not_delay_directives(server: Peer) -> None:
    engine, bus = Engine(), MemoryBus()
    for i in range(150):
        await engine.submit(call(server.url), job_id=f"call-{i}")
    task = StepSpec(step_id="ocr", step_type="OCR", service="ocr")
    await engine.submit(task, job_id="task")
    relay = Relay(
        outbox=engine.store.outbox,
        engine=engine.jobs,
        handover=engine.bus_handover,
        holds=engine.row_holds,
        publisher=bus,
        notifier=engine.notifier,
        clock=engine.clock,
        retry_interval=5,
        publish_timeout=5,
    )
    assert not await relay.start_ready()
    await relay.stop()
    assert len(await bus.consumer("ocr").pull(9, wait_seconds=0)) == 1
    assert (await engine.step("ocr", "task")).status is StepStatus.INITIATED
    assert (await engine.step("call", "call-0")).status is StepStatus.DISPATCHING
