"""Calls and webhooks from the outbox to a real server and back, over the real core."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from standardwebhooks import Webhook

from lucius.adapters.bus_memory import MemoryBus
from lucius.adapters.http_caller import HttpCaller
from lucius.core.decision import Decision
from lucius.core.inputs import Cancel, HandedOver, Input, Pause, Resume, Retry
from lucius.core.model import FailureClass, JobStatus, StepStatus
from lucius.core.protocol import Call, ErrorRule, Guard, Map, Notify, RetryPolicy, StepSpec
from lucius.engine import calls
from lucius.engine.relay import Relay
from lucius.ports.calls import Answer, Outgoing
from lucius.ports.errors import LedgerCorrupt, LedgerDown, LedgerFull
from tests.support.engine import WEBHOOK_SECRET, Engine
from tests.support.peer import Handler, Peer, always, in_turn, ok, peer

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = 1_000


@pytest.fixture
async def there() -> AsyncIterator[Peer]:
    async with peer() as server:
        yield server


def call(url: str, step_id: str = "call", *, body: Any = None, **fields: Any) -> StepSpec:
    """An external_call. What belongs to the call goes there, the rest to the step."""
    own = {name: fields.pop(name) for name in ("method", "headers", "result", "errors", "guard") if name in fields}
    return StepSpec(step_id=step_id, kind="external_call", external_call=Call(url=url, body=body, **own), **fields)


def problem(status: int, code: str) -> Handler:
    body = {"type": "about:blank", "title": "No", "detail": "not this way", "code": code}
    return always(status, body, Content_Type="application/problem+json")


class TestACall:
    async def test_is_made_from_the_input_and_its_answer_is_the_result(self, there: Peer) -> None:
        engine = Engine()
        there.answer = always(201, {"id": "ch_1", "amount": 12})
        spec = call(
            there.url + "/charges/${input.account}",
            headers={"Authorization": "Bearer ${secrets.API_KEY}"},
            body={"amount": "${input.amount}", "job": "${job.id}"},
        )
        async with engine.running():
            await engine.submit(spec, payload={"account": "a7", "amount": 12}, traceparent=TRACE)
            job = await engine.ended()
        assert job.status is JobStatus.SUCCEEDED
        step = await engine.step("call")
        assert step.result == {"id": "ch_1", "amount": 12}
        (seen,) = there.seen
        assert (seen.method, seen.path, seen.json) == ("POST", "/charges/a7", {"amount": 12, "job": "job-1"})
        assert seen.headers["idempotency-key"] == step.idempotency_key
        assert seen.headers["authorization"] == "Bearer s3cr3t-value"
        assert seen.headers["traceparent"] == TRACE

    async def test_a_result_expression_sees_the_answer_and_the_job(self, there: Peer) -> None:
        engine = Engine()
        there.answer = always(200, {"price": 4}, X_Request_Id="r-1")
        first = call(there.url, "first", result="response.body.price")
        seen = "response.headers['x-request-id'], input.n"
        second = call(there.url, result=f"[steps.first.result + response.body.price, {seen}]")
        async with engine.running():
            await engine.submit(first, second, payload={"n": 3})
            await engine.ended()
        assert (await engine.step("call")).result == [8, "r-1", 3]

    async def test_inside_a_map_every_item_has_its_own_key(self, there: Peer) -> None:
        engine = Engine()
        there.answer = always(200, {"half": 2})
        inner = call(there.url + "/${item}", result="item + string(response.body.half) + string(item_index)")
        spec = StepSpec(step_id="all", kind="map", map=Map(items="input.list", steps=(inner,)))
        async with engine.running():
            await engine.submit(spec, payload={"list": ["a", "b", "c"]})
            job = await engine.ended()
        assert job.status is JobStatus.SUCCEEDED
        assert [(await engine.step(f"call.{i}")).result for i in range(3)] == ["a20", "b21", "c22"]
        assert len({seen.headers["idempotency-key"] for seen in there.seen}) == 3

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
    async def test_an_answer_that_is_not_2xx_fails_by_the_table(
        self, there: Peer, answer: Handler, code: str, failure_class: str, again: bool
    ) -> None:
        engine = Engine()
        there.answer = answer
        async with engine.running():
            await engine.submit(call(there.url))
            step = await engine.until("call", "FAILED_RETRY" if again else "FAILED_FINAL")
        assert step.last_error is not None
        assert (step.last_error.code, step.attempt.failure_class) == (code, failure_class)
        assert "was answered with" in step.last_error.message
        assert len(there.seen) == 1

    async def test_a_problem_documents_words_are_for_the_operator(self, there: Peer) -> None:
        engine = Engine()
        there.answer = problem(409, "TRANSITION_FORBIDDEN")
        async with engine.running():
            await engine.submit(call(there.url))
            step = await engine.until("call", "FAILED_FINAL")
        assert step.last_error is not None
        assert step.last_error.message == "POST was answered with 409: No: not this way"

    async def test_rules_of_the_protocol_come_before_the_table_and_before_success(self, there: Peer) -> None:
        rules = (
            ErrorRule(when="response.body.fault.kind == 'x'", failure_class=FailureClass.TRANSIENT, code="NEVER"),
            ErrorRule(when="response.status == 404", failure_class=FailureClass.RETRYABLE, code="NOT_YET"),
            ErrorRule(when="response.body.ok == false", failure_class=FailureClass.NON_RETRYABLE, code="SAYS_NO"),
            ErrorRule(when="true", failure_class=FailureClass.TRANSIENT, code="ANYTHING_ELSE"),
        )
        engine = Engine()
        there.answer = in_turn(always(404, text="nothing"), always(200, {"ok": False}))
        async with engine.running():
            await engine.submit(call(there.url, errors=rules))
            step = await engine.until("call", "FAILED_RETRY")
            assert step.last_error is not None
            assert (step.last_error.code, step.attempt.failure_class) == ("NOT_YET", "RETRYABLE")
            await engine.tried_again("call")
            step = await engine.until("call", "FAILED_FINAL")
        assert step.last_error is not None
        assert step.last_error.code == "SAYS_NO"

    async def test_a_rule_over_a_member_that_is_not_there_does_not_match(self, there: Peer) -> None:
        rule = ErrorRule(when="response.body.error.code == 'X'", failure_class=FailureClass.NON_RETRYABLE)
        engine = Engine()
        async with engine.running():
            await engine.submit(call(there.url, errors=(rule,)))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED

    async def test_a_result_that_cannot_be_evaluated_is_a_failure_and_not_a_stuck_job(self, there: Peer) -> None:
        engine = Engine()
        async with engine.running():
            await engine.submit(call(there.url, result="response.body.missing.more"))
            job = await engine.ended()
        assert job.error is not None
        assert (job.status, job.error.code) == (JobStatus.FAILED_FINAL, "EXPRESSION_FAILED")

    async def test_a_result_larger_than_a_job_should_carry_is_refused_with_a_clear_error(self, there: Peer) -> None:
        engine = Engine()
        there.answer = always(200, {"text": "x" * 200_000})
        async with engine.running():
            await engine.submit(call(there.url, result="[response.body.text, response.body.text]"))
            job = await engine.ended()
        assert job.error is not None
        assert job.error.code == "RESULT_TOO_LARGE"

    async def test_a_peer_that_is_away_is_transient_and_the_history_says_that_nothing_was_sent(self) -> None:
        engine = Engine()
        async with engine.running():
            await engine.submit(call("http://127.0.0.1:1/"))
            step = await engine.until("call", "FAILED_RETRY")
        assert step.last_error is not None
        assert (step.last_error.code, step.attempt.failure_class) == ("CONNECTION_FAILED", "TRANSIENT")
        (event,) = await engine.events("CALLBACK_RESULT")
        assert event.data["extra"] == {"sent": False}

    async def test_what_must_not_be_repeated_is_tried_again_only_if_surely_nothing_was_sent(self, there: Peer) -> None:
        never = Engine()
        async with never.running():
            await never.submit(call("http://127.0.0.1:1/", retry_safety="NOT_SAFE_TO_RETRY"))
            assert (await never.until("call", "FAILED_RETRY")).tries == 1
        perhaps = Engine()
        there.answer = always(503)
        async with perhaps.running():
            await perhaps.submit(call(there.url, retry_safety="NOT_SAFE_TO_RETRY"))
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
    async def test_what_policy_forbids_fails_for_good_and_says_why(self, url: str, code: str) -> None:
        engine = Engine()
        async with engine.running():
            await engine.submit(call(url))
            job = await engine.ended()
        assert job.error is not None
        assert (job.status, job.error.code) == (JobStatus.FAILED_FINAL, code)
        assert (await engine.step("call")).attempt.attempt_no == 1

    async def test_what_nobody_foresaw_is_a_failed_attempt_and_stops_no_other(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted: list[str] = []
        engine, send = Engine(on_failure=counted.append), HttpCaller.send

        async def breaking(caller: HttpCaller, outgoing: Outgoing) -> Answer:
            if outgoing.url.endswith("/bad"):
                raise KeyError("surprise")
            return await send(caller, outgoing)

        monkeypatch.setattr(HttpCaller, "send", breaking)
        async with engine.running():
            await engine.submit(call(f"{there.url}/bad"), job_id="bad")
            await engine.submit(call(there.url), job_id="good")
            step = await engine.until("call", "FAILED_RETRY", "bad")
            assert (await engine.ended("good")).status is JobStatus.SUCCEEDED
        assert step.last_error is not None
        assert (step.last_error.code, step.last_error.message) == ("CALL_FAILED", "the call failed (KeyError)")
        assert (step.attempt.failure_class, counted) == ("TRANSIENT", ["calls"])

    async def test_headers_are_written_as_json_would(self, there: Peer) -> None:
        engine = Engine()
        wanted = {f"X-{name}": f"${{input.{name}}}" for name in ("flag", "list", "map", "text", "none")}
        payload = {"flag": True, "list": [1, "a"], "map": {"k": False}, "text": "True", "none": None}
        async with engine.running():
            await engine.submit(call(there.url, headers=wanted), payload=payload)
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        sent = {name: there.seen[0].headers[name.lower()] for name in wanted}
        assert list(sent.values()) == ["true", '[1,"a"]', '{"k":false}', "True", "null"]

    async def test_another_attempt_sends_the_same_request_with_the_same_key(self, there: Peer) -> None:
        engine = Engine()
        there.answer = in_turn(always(503), ok)
        async with engine.running():
            await engine.submit(call(there.url, body={"at": "${input.x}"}), payload={"x": "1"})
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        first, second = there.seen
        assert (first.body, first.headers["idempotency-key"]) == (second.body, second.headers["idempotency-key"])


class TestSecrets:
    async def test_a_name_of_a_secret_in_a_jobs_input_stays_what_it_is(self, there: Peer) -> None:
        engine = Engine()
        spec = call(
            there.url, headers={"X-Key": "${secrets.API_KEY}"}, body={"all": "${input}", "in": "a ${input.t} b"}
        )
        payload = {"t": "${secrets.API_KEY}", "deep": [{"${secrets.API_KEY}": "$${secrets.API_KEY}"}]}
        async with engine.running():
            await engine.submit(spec, payload=payload)
            await engine.ended()
        (seen,) = there.seen
        assert seen.headers["x-key"] == "s3cr3t-value"
        assert seen.json == {"all": payload, "in": "a ${secrets.API_KEY} b"}

    async def test_nothing_that_is_kept_has_one(self, there: Peer) -> None:
        async def echo(request: web.Request) -> web.StreamResponse:
            return web.json_response({"you": request.headers["X-Key"], "path": request.path})

        engine = Engine()
        there.answer = echo
        async with engine.running():
            await engine.submit(call(there.url + "/${secrets.API_KEY}", headers={"X-Key": "${secrets.API_KEY}"}))
            await engine.ended()
        view = await engine.ledger.job("job-1")
        kept = msgspec.json.encode([view, await engine.ledger.events("job-1", 0, 100)])
        assert b"s3cr3t" not in kept
        assert there.seen[0].headers["x-key"] == "s3cr3t-value"


class TestHosts:
    async def test_a_429_keeps_every_other_job_from_that_host_and_burns_nothing(self, there: Peer) -> None:
        engine = Engine()
        there.answer = in_turn(always(429, None, Retry_After="30"), ok)
        async with engine.running(), peer() as other:
            await engine.submit(call(there.url), job_id="first")
            slowed = await engine.until("call", "FAILED_RETRY", "first")
            assert slowed.retry_at == engine.clock.now() + 30 * SECOND
            await engine.submit(call(there.url), job_id="second")
            await engine.submit(call(other.url), job_id="third")
            assert (await engine.ended("third")).status is JobStatus.SUCCEEDED
            waits = await engine.step("call", "second")
            assert (waits.status, waits.tries, len(there.seen)) == (StepStatus.DISPATCHING, 1, 1)
            engine.clock.advance(30)
            assert (await engine.ended("second")).status is JobStatus.SUCCEEDED
            assert (await engine.step("call", "second")).attempt.attempt_no == 1
            await engine.sweeper.sweep()
            assert (await engine.ended("first")).status is JobStatus.SUCCEEDED

    async def test_a_step_waits_as_long_as_it_was_asked_to(self, there: Peer) -> None:
        engine = Engine()
        there.answer = always(429, None, Retry_After="7200")
        async with engine.running():
            await engine.submit(call(there.url))
            step = await engine.until("call", "FAILED_RETRY")
        assert step.retry_at == engine.clock.now() + 7_200 * SECOND

    async def test_a_host_that_opens_is_called_at_once(self, there: Peer) -> None:
        engine = Engine(per_host=1, retry_interval=60, time_flows=True)
        there.answer = in_turn(always(429, None, Retry_After="1"), ok)
        async with engine.running():
            await engine.submit(call(there.url), job_id="first")
            await engine.submit(call(there.url), job_id="second")
            assert (await engine.ended("second")).status is JobStatus.SUCCEEDED

    async def test_a_host_gets_only_so_many_calls_at_once_and_all_get_done(self, there: Peer) -> None:
        engine = Engine(per_host=3)
        there.gate.clear()
        async with engine.running():
            jobs = [await engine.submit(call(there.url), job_id=f"job-{i}") for i in range(10)]
            await there.saw(3)
            await asyncio.sleep(0.05)
            assert len(there.seen) == 3
            waiting = [(await engine.step("call", job_id)).status for job_id in jobs]
            assert waiting.count(StepStatus.DISPATCHING) == 7
            there.gate.set()
            assert {(await engine.ended(job_id)).status for job_id in jobs} == {JobStatus.SUCCEEDED}
        assert there.most_at_once == 3

    async def test_a_long_queue_for_one_host_does_not_starve_the_others(self, there: Peer) -> None:
        engine = Engine(per_host=1, retry_interval=60)
        there.gate.clear()
        for i in range(40):
            await engine.submit(call(there.url), job_id=f"slow-{i}")
        async with engine.running(), peer() as other:
            await engine.submit(call(other.url), job_id="quick")
            assert (await engine.ended("quick")).status is JobStatus.SUCCEEDED
            assert len(there.seen) == 1
            there.gate.set()
            for i in range(40):
                assert (await engine.ended(f"slow-{i}")).status is JobStatus.SUCCEEDED
        assert [seen.headers["idempotency-key"] for seen in there.seen] == [
            (await engine.step("call", f"slow-{i}")).idempotency_key for i in range(40)
        ]

    @pytest.mark.parametrize("per_host", [1, 2])
    async def test_a_queue_for_one_host_that_is_longer_than_what_is_taken_starves_nobody(
        self, there: Peer, per_host: int
    ) -> None:
        engine = Engine(per_host=per_host, parallel=3, retry_interval=60)
        there.gate.clear()
        jobs = [await engine.submit(call(there.url), job_id=f"slow-{i}") for i in range(100)]
        async with engine.running(), peer() as other:
            for i in range(20):
                await engine.submit(call(other.url), job_id=f"quick-{i}")
            for i in range(20):
                assert (await engine.ended(f"quick-{i}")).status is JobStatus.SUCCEEDED
            assert len(there.seen) == per_host
            there.gate.set()
            assert {(await engine.ended(job_id)).status for job_id in jobs} == {JobStatus.SUCCEEDED}
        assert (len(there.seen), there.most_at_once) == (100, per_host)

    async def test_more_slowed_hosts_than_there_is_room_for_starve_nobody(self, there: Peer) -> None:
        engine = Engine("*.example", "127.0.0.1", parallel=1, retry_interval=60)
        for i in range(50):
            await engine.submit(call(f"https://h{i}.example/"), job_id=f"slow-{i}")
            host = engine.caller.host(f"https://h{i}.example/")
            engine.caller._gates.close(host, engine.clock.now(), 60 * SECOND)
        await engine.submit(call(there.url), job_id="quick")
        async with engine.running():
            assert (await engine.ended("quick")).status is JobStatus.SUCCEEDED

    async def test_all_hosts_together_have_a_limit_too(self, there: Peer) -> None:
        engine = Engine(parallel=2)
        there.gate.clear()
        async with engine.running():
            for i in range(5):
                await engine.submit(call(there.url), job_id=f"job-{i}")
            await there.saw(2)
            await asyncio.sleep(0.05)
            assert len(there.seen) == 2
            there.gate.set()
            for i in range(5):
                await engine.ended(f"job-{i}")
        assert there.most_at_once == 2


class TestGuard:
    GUARD = Guard(url="", done_when="response.status == 200 && response.body.paid", result="response.body.receipt")

    def spec(self, there: Peer, **changes: Any) -> StepSpec:
        guard = msgspec.structs.replace(self.GUARD, url=f"{there.url}/state/${{input.id}}", **changes)
        return call(there.url + "/pay", guard=guard, retry_safety="SAFE_TO_RETRY_WITH_GUARD")

    def answer(self, there: Peer, pay: Handler, state: Handler) -> None:
        async def either(request: web.Request) -> web.StreamResponse:
            return await (state if request.path.startswith("/state") else pay)(request)

        there.answer = either

    def paths(self, there: Peer) -> list[str]:
        return [f"{seen.method} {seen.path}" for seen in there.seen]

    async def test_the_first_try_asks_nothing(self, there: Peer) -> None:
        engine = Engine()
        self.answer(there, ok, always(500))
        async with engine.running():
            await engine.submit(self.spec(there), payload={"id": "7"})
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(there) == ["POST /pay"]

    async def test_an_effect_that_was_made_after_all_is_not_made_twice(self, there: Peer) -> None:
        engine = Engine()
        self.answer(there, always(504), always(200, {"paid": True, "receipt": "r-1"}))
        async with engine.running():
            await engine.submit(self.spec(there), payload={"id": "7"})
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(there) == ["POST /pay", "GET /state/7"]
        assert (await engine.step("call")).result == "r-1"

    async def test_its_question_does_not_pass_for_the_call(self, there: Peer) -> None:
        engine = Engine()
        self.answer(there, in_turn(always(504), ok), always(404, {}))
        async with engine.running():
            await engine.submit(self.spec(there), payload={"id": "7"})
            await engine.tried_again("call")
            await engine.ended()
        paid, asked, again = (seen.headers["idempotency-key"] for seen in there.seen)
        assert (again, asked) == (paid, f"{paid}-guard")

    @pytest.mark.parametrize("state", [always(200, {"paid": False}), always(404, {"code": "unknown"})])
    async def test_an_effect_that_was_not_made_is_made_now(self, there: Peer, state: Handler) -> None:
        engine = Engine()
        self.answer(there, in_turn(always(504), ok), state)
        async with engine.running():
            await engine.submit(self.spec(there), payload={"id": "7"})
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(there) == ["POST /pay", "GET /state/7", "POST /pay"]

    @pytest.mark.parametrize(
        ("state", "code"), [(always(500), "HTTP_500"), (always(403), "HTTP_403"), (always(429), "HTTP_429")]
    )
    async def test_a_guard_that_cannot_say_makes_no_call(self, there: Peer, state: Handler, code: str) -> None:
        engine = Engine()
        self.answer(there, always(504), state)
        async with engine.running():
            await engine.submit(self.spec(there), payload={"id": "7"})
            await engine.tried_again("call")
            step = await engine.until("call", "FAILED_FINAL" if code == "HTTP_403" else "FAILED_RETRY")
        assert step.last_error is not None
        assert step.last_error.code == code
        assert step.last_error.message.startswith("the guard request was answered with ")
        assert self.paths(there) == ["POST /pay", "GET /state/7"]

    @pytest.mark.parametrize("done_when", ["response.body.nothing", "response.body.receipt"])
    async def test_a_guard_that_is_neither_true_nor_false_makes_no_call(self, there: Peer, done_when: str) -> None:
        engine = Engine()
        self.answer(there, always(504), always(200, {"receipt": "r"}))
        async with engine.running():
            await engine.submit(self.spec(there, done_when=done_when), payload={"id": "7"})
            await engine.tried_again("call")
            job = await engine.ended()
        assert job.error is not None
        assert job.error.code == "EXPRESSION_FAILED"
        assert self.paths(there) == ["POST /pay", "GET /state/7"]

    async def test_a_new_run_asks_first_as_well(self, there: Peer) -> None:
        engine = Engine()
        self.answer(there, always(400), always(200, {"paid": True, "receipt": "r-2"}))
        async with engine.running():
            await engine.submit(self.spec(there), payload={"id": "7"})
            assert (await engine.ended()).status is JobStatus.FAILED_FINAL
            await engine.feed(Retry(by="ada", reason="the bank says it went through"))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert self.paths(there) == ["POST /pay", "GET /state/7"]

    async def test_a_loops_next_visit_is_new_work_and_asks_nothing(self, there: Peer) -> None:
        engine = Engine()
        self.answer(there, ok, always(200, {"paid": True, "receipt": "r"}))
        pay = msgspec.structs.replace(self.spec(there), on_success="again", max_visits=3)
        again = call(there.url + "/next", "again", on_success="call", max_visits=2)
        async with engine.running():
            await engine.submit(pay, again, payload={"id": "7"})
            job = await engine.ended()
        assert job.error is not None
        assert job.error.code == "VISIT_LIMIT"
        assert self.paths(there) == ["POST /pay", "POST /next"] * 2 + ["POST /pay"]
        assert len({seen.headers["idempotency-key"] for seen in there.seen}) == 5


class TestNotify:
    async def test_a_webhook_is_signed_and_has_type_timestamp_and_data(self, there: Peer) -> None:
        engine = Engine()
        clock = engine.clock
        notify = Notify(url=f"{there.url}/hooks", type="invoice.paid", data={"id": "${input.id}"})
        async with engine.running():
            await engine.submit(StepSpec(step_id="tell", kind="notify", notify=notify), payload={"id": "7"})
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        step = await engine.step("tell")
        (seen,) = there.seen
        assert step.result == {"status": 200}
        assert seen.json["type"] == "invoice.paid"
        assert seen.json["data"] == {"id": "7"}
        assert seen.headers["webhook-id"] == step.idempotency_key
        assert seen.headers["webhook-timestamp"] == str(clock.now() // 1000)
        at = datetime.fromtimestamp(clock.now() // 1000, UTC)
        assert seen.headers["webhook-signature"] == Webhook(WEBHOOK_SECRET).sign(
            step.idempotency_key, at, seen.body.decode()
        )

    async def test_a_webhook_that_is_sent_again_is_the_same_one(self, there: Peer) -> None:
        engine = Engine()
        there.answer = in_turn(always(500), always(204, text=""))
        notify = Notify(url=f"{there.url}/hooks", type="invoice.paid")
        async with engine.running():
            await engine.submit(StepSpec(step_id="tell", kind="notify", notify=notify))
            await engine.tried_again("tell")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        first, second = there.seen
        assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
        assert first.headers["webhook-signature"] != second.headers["webhook-signature"]  # the time is part of it
        assert (await engine.step("tell")).result == {"status": 204}

    async def test_without_its_secret_nothing_is_sent(self, there: Peer) -> None:
        engine = Engine()
        notify = Notify(url=there.url, type="t", secret="other")
        async with engine.running():
            await engine.submit(StepSpec(step_id="tell", kind="notify", notify=notify))
            job = await engine.ended()
        assert job.error is not None
        assert (job.error.code, there.seen) == ("UNKNOWN_SECRET", [])


class TestTimeAndTrouble:
    async def test_a_steps_own_timeout_takes_its_timeout_path(self, there: Peer) -> None:
        engine = Engine()
        there.answer = in_turn(ok, ok)
        there.gate.clear()
        policy = RetryPolicy(max_attempts=1)
        slow = call(there.url, timeout_ms=5_000, on_timeout="plan_b", on_failure="FAIL", retry_policy=policy)
        async with engine.running():
            await engine.submit(slow, call(there.url + "/b", "plan_b"))
            await there.saw(1)
            engine.clock.advance(5)
            await engine.sweeper.sweep()
            assert (await engine.step("call")).last_error is not None
            there.gate.set()
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert [seen.path for seen in there.seen] == ["/", "/b"]

    @pytest.mark.parametrize(("timeout_ms", "most_ms"), [(None, 30_000), (5_000, 7_000), (600_000, 602_000)])
    async def test_a_request_is_cut_off_a_little_after_the_core_gives_it_up(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch, timeout_ms: int | None, most_ms: int
    ) -> None:
        engine = Engine()
        real, given = engine.caller.send, []

        async def noting(outgoing: Outgoing) -> Answer:
            given.append(outgoing.timeout_ms)
            return await real(outgoing)

        monkeypatch.setattr(engine.caller, "send", noting)
        async with engine.running():
            await engine.submit(call(there.url, timeout_ms=timeout_ms))
            await engine.ended()
        assert most_ms - 1_000 < given[0] <= most_ms

    async def test_without_one_a_call_ends_by_itself(self, there: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lucius.engine.exchange.TIMEOUT_MS", 50)
        engine = Engine()
        there.gate.clear()
        async with engine.running():
            await engine.submit(call(there.url))
            step = await engine.until("call", "FAILED_RETRY")
        assert step.last_error is not None
        assert step.last_error.code == "TIMEOUT"

    async def test_a_ledger_in_trouble_does_not_lose_what_was_done(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "FIRST_BACKOFF", 0.001)
        engine = Engine()
        real, failures = engine.ledger.commit, 0

        async def full_for_a_while(decision: Decision) -> None:
            nonlocal failures
            if there.seen and failures < 3:
                failures += 1
                raise LedgerFull("no space left")
            await real(decision)

        monkeypatch.setattr(engine.ledger, "commit", full_for_a_while)
        async with engine.running():
            await engine.submit(call(there.url))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert (failures, len(there.seen)) == (3, 1)

    async def test_a_ledger_that_takes_no_hand_over_makes_no_call(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url))
        real, failures = engine.ledger.commit, 0

        async def full_once(decision: Decision) -> None:
            nonlocal failures
            if not failures:
                failures += 1
                raise LedgerFull("no space left")
            await real(decision)

        monkeypatch.setattr(engine.ledger, "commit", full_once)
        async with asyncio.timeout(5):
            await engine.calls.turn()
        with pytest.raises(LedgerFull):
            await engine.calls.turn()
        assert there.seen == []
        engine.clock.advance(60)
        async with engine.running():
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len(there.seen) == 1

    async def test_a_cancelled_job_makes_no_call(self, there: Peer) -> None:
        engine = Engine()
        await engine.submit(call(there.url))
        await engine.feed(Cancel("ada"))
        async with engine.running():
            assert (await engine.ended()).status is JobStatus.CANCELLED
            await asyncio.sleep(0.05)
        assert there.seen == []

    async def test_a_job_that_is_cancelled_meanwhile_waits_for_the_call_to_end(self, there: Peer) -> None:
        engine = Engine()
        there.gate.clear()
        async with engine.running():
            await engine.submit(call(there.url))
            await there.saw(1)
            await engine.feed(Cancel("ada"))
            assert (await engine.job()).status is JobStatus.CANCELLING
            there.gate.set()
            assert (await engine.ended()).status is JobStatus.CANCELLED
        assert (await engine.step("call")).status is StepStatus.SUCCEEDED

    async def test_a_paused_job_makes_no_call_until_it_is_resumed(self, there: Peer) -> None:
        engine = Engine()
        await engine.submit(call(there.url))
        rows = await engine.dispatcher.take("lucius.http", 10)  # read before the pause, as a runner may have
        await engine.feed(Pause("ada"))
        await engine.dispatcher.put_back(rows)
        for row in rows:
            await engine.calls._run(row)
        assert (await engine.step("call")).status is StepStatus.DISPATCHING
        async with engine.running():
            await asyncio.sleep(0.05)
            assert there.seen == []
            engine.clock.advance(1)
            await engine.feed(Resume("ada"))
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len(there.seen) == 1

    async def test_a_row_that_nobody_wants_does_not_keep_the_runner_busy(self, there: Peer) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url))
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

    async def test_a_job_that_cannot_be_read_keeps_no_other_from_its_call(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url), job_id="torn")
        await engine.submit(call(there.url), job_id="whole")
        real = engine.ledger.load

        async def torn(job_id: str, step_ids: Any = (), fresh: bool = False) -> Any:
            if job_id == "torn":
                raise LedgerCorrupt("a row is not what it was")
            return await real(job_id, step_ids)

        monkeypatch.setattr(engine.ledger, "load", torn)
        await engine.calls.turn()
        assert (await engine.ended("whole")).status is JobStatus.SUCCEEDED
        with pytest.raises(LedgerCorrupt):
            await engine.calls.turn()

    async def test_a_row_that_was_fenced_meanwhile_does_not_keep_the_runner_busy(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url))
        real, asked = engine.jobs.apply, 0

        async def fenced(job_id: str, inputs: Sequence[Input], step_id: str | None = None) -> Decision:
            nonlocal asked
            asked += 1
            return await real(job_id, (HandedOver("call", 1, "another lease"),), step_id)

        monkeypatch.setattr(engine.jobs, "apply", fenced)
        async with engine.running():
            await asyncio.sleep(0.1)
        assert (asked, there.seen) == (1, [])

    @pytest.mark.parametrize("is_made", [False, True])
    async def test_a_hand_over_of_which_nobody_knows_is_looked_up_and_the_call_made_once(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch, is_made: bool
    ) -> None:
        monkeypatch.setattr(calls, "FIRST_BACKOFF", 0.001)
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url))
        self.lose_answer(engine, monkeypatch, is_made)
        async with engine.running():
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len(there.seen) == 1

    async def test_what_must_not_be_made_twice_is_left_to_its_lease_then(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calls, "FIRST_BACKOFF", 0.001)
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url, retry_safety="NOT_SAFE_TO_RETRY"))
        self.lose_answer(engine, monkeypatch, is_made=True)
        async with engine.running():
            await asyncio.sleep(0.1)
        assert (await engine.step("call")).status is StepStatus.PROCESSING
        assert there.seen == []

    def lose_answer(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_made: bool) -> None:
        """Of the next commit."""
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
    async def test_a_step_that_the_hand_over_itself_ended_makes_no_call(
        self, there: Peer, monkeypatch: pytest.MonkeyPatch, again: bool
    ) -> None:
        engine = Engine(retry_interval=60)
        await engine.submit(call(there.url))
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
        assert there.seen == []

    async def test_stopping_lets_a_running_call_end_and_starts_no_other(self, there: Peer) -> None:
        engine = Engine(per_host=1)
        there.gate.clear()
        await engine.submit(call(there.url))
        await engine.submit(call(there.url), job_id="next")
        await engine.calls.start_ready()
        await there.saw(1)
        stopping = asyncio.create_task(engine.calls.stop(5))
        await asyncio.sleep(0.01)
        there.gate.set()
        await stopping
        assert (await engine.job()).status is JobStatus.SUCCEEDED
        assert (await engine.step("call", "next")).status is StepStatus.DISPATCHING

    async def test_a_call_that_takes_longer_than_the_grace_is_cut_off_and_tried_again_after_its_lease(
        self, there: Peer
    ) -> None:
        engine = Engine()
        there.gate.clear()
        await engine.submit(call(there.url))
        await engine.calls.start_ready()
        await there.saw(1)
        await engine.calls.stop(0.01)
        step = await engine.step("call")
        assert step.status is StepStatus.PROCESSING
        assert step.attempt.lease_expires_at == engine.clock.now() + 45 * SECOND
        there.gate.set()
        engine.clock.advance(45)
        await engine.sweeper.sweep()
        async with engine.running():
            await engine.tried_again("call")
            assert (await engine.ended()).status is JobStatus.SUCCEEDED
        assert len({seen.headers["idempotency-key"] for seen in there.seen}) == 1


async def test_a_push_bus_never_gets_a_call_and_is_not_held_up_by_them(there: Peer) -> None:
    engine, bus = Engine(), MemoryBus()
    for i in range(150):
        await engine.submit(call(there.url), job_id=f"call-{i}")
    task = StepSpec(step_id="ocr", step_type="OCR", service="ocr")
    await engine.submit(task, job_id="task")
    relay = Relay(
        outbox=engine.ledger,
        jobs=engine.jobs,
        dispatcher=engine.dispatcher,
        publisher=bus,
        hub=engine.hub,
        clock=engine.clock,
        retry_interval=5,
        publish_timeout=5,
    )
    assert not await relay.start_ready()
    await relay.stop()
    assert len(await bus.consumer("ocr").pull(9, wait_seconds=0)) == 1
    assert (await engine.step("ocr", "task")).status is StepStatus.INITIATED
    assert (await engine.step("call", "call-0")).status is StepStatus.DISPATCHING
