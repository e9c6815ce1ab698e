"""Headers at ingress: used if the envelope lacks the member and the value is valid."""

from typing import Any

import pytest

from lucius.contract.trace_context import is_traceparent
from tests.integration.api.conftest import Start
from tests.support.api import Api

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-00"
BAD = "00-zz-1-01"


@pytest.fixture
async def api(start: Start) -> Api:
    return await start()


async def directive_for(api: Api, headers: dict[str, str], **changes: Any) -> dict[str, Any]:
    accepted = await api.post("/v1/commands", api.command(**changes), headers=headers)
    job_id = accepted.ok(202)["jobId"]
    (directive,) = [one for one in await api.pull(max=10) if one["jobId"] == job_id]
    return directive


async def test_headers_are_passed_to_job_and_directive(api: Api) -> None:
    headers = {"traceparent": TRACE, "tracestate": "a=1,b=2", "x-correlation-id": "order-7"}
    directive = await directive_for(api, headers)
    assert (directive["traceparent"], directive["tracestate"]) == (TRACE, "a=1,b=2")
    assert directive["correlation_id"] == "order-7"
    job = await api.job(directive["jobId"])
    assert (job["traceparent"], job["correlation_id"]) == (TRACE, "order-7")


async def test_envelope_members_precede_headers(api: Api) -> None:
    headers = {"traceparent": OTHER, "tracestate": "a=1", "x-correlation-id": "header", "idempotency-key": "header"}
    directive = await directive_for(api, headers, traceparent=TRACE, correlation_id="field", idempotency_key="field")
    assert (directive["traceparent"], directive["correlation_id"]) == (TRACE, "field")
    assert directive.get("tracestate") is None, "it belongs to the other trace"
    assert (await api.job(directive["jobId"]))["idempotency_key"] == "field"
    directive = await directive_for(api, {"traceparent": TRACE, "tracestate": "a=1"}, traceparent=TRACE, doc_id="2")
    assert directive["tracestate"] == "a=1"


@pytest.mark.parametrize("where", ["header", "field"])
async def test_invalid_traceparent_is_replaced_and_its_tracestate_dropped(api: Api, where: str) -> None:
    headers = {"tracestate": "a=1", **({"traceparent": BAD} if where == "header" else {})}
    changes = {} if where == "header" else {"traceparent": BAD}
    directive = await directive_for(api, headers, **changes)
    assert is_traceparent(directive["traceparent"])
    assert directive["traceparent"] != BAD
    assert directive.get("tracestate") is None
    assert BAD not in str(await api.job(directive["jobId"]))


async def test_invalid_tracestate_and_correlation_id_are_dropped(api: Api) -> None:
    headers = {"traceparent": TRACE, "tracestate": "A", "x-correlation-id": "x" * 300}
    directive = await directive_for(api, headers)
    assert (directive["traceparent"], directive.get("tracestate")) == (TRACE, None)
    assert directive["correlation_id"] == directive["jobId"]


async def test_overlong_traceparent_of_a_later_version_is_replaced(api: Api) -> None:
    directive = await directive_for(api, {"traceparent": "cc" + TRACE[2:] + "-" + "x" * 30_000})
    assert len(directive["traceparent"]) <= 256


@pytest.mark.parametrize("where", ["header", "field"])
async def test_traceparent_of_a_later_version_is_forwarded_as_version_00(api: Api, where: str) -> None:
    later = "01" + TRACE[2:-2] + "ff-extra"
    headers = {"tracestate": "a=1", **({"traceparent": later} if where == "header" else {})}
    directive = await directive_for(api, headers, **({} if where == "header" else {"traceparent": later}))
    assert (directive["traceparent"], directive["tracestate"]) == (TRACE, "a=1")


async def test_no_trace_is_created_without_headers(api: Api) -> None:
    directive = await directive_for(api, {})
    assert directive.get("traceparent") is None


@pytest.mark.parametrize("key", ["order-7", '"order-7"'])
async def test_idempotency_key_header_counts_if_the_field_is_absent(api: Api, key: str) -> None:
    first = (await api.post("/v1/commands", api.command(), headers={"idempotency-key": key})).ok(202)
    again = (await api.post("/v1/commands", api.command(idempotency_key="order-7"))).ok(202)
    assert (again["jobId"], again["duplicate"]) == (first["jobId"], True)
    other = api.command(input_ref="blob://in/b.pdf")
    answer = await api.post("/v1/commands", other, headers={"idempotency-key": key})
    answer.problem(409, "IDEMPOTENCY_KEY_REUSED")


async def test_invalid_idempotency_key_header_is_refused(api: Api) -> None:
    for key in ("x" * 300, '""', "ü"):
        answer = await api.post("/v1/commands", api.command(), headers={"idempotency-key": key})
        assert answer.problem(422, "INVALID_ENVELOPE")["errors"][0]["pointer"] == "/idempotency_key"
    assert await api.jobs() == []


async def test_batch_applies_the_trace_to_each_command_and_ignores_the_key(api: Api) -> None:
    headers = {"traceparent": TRACE, "x-correlation-id": "nightly", "idempotency-key": "k"}
    commands = [api.command(input_ref=f"blob://in/{i}.pdf") for i in range(2)]
    results = (await api.post("/v1/commands:batch", {"commands": commands}, headers=headers)).ok()["results"]
    jobs = [await api.job(result["jobId"]) for result in results]
    assert [(job["traceparent"], job["correlation_id"]) for job in jobs] == [(TRACE, "nightly")] * 2
    assert [job["idempotency_key"] for job in jobs] == [None, None]
