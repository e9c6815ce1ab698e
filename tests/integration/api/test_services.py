"""`GET /v1/services`, and what `explain` reports about services that no longer pull."""

import asyncio
from typing import Any

import msgspec

from lucius.adapters.bus.memory import MemoryBus
from lucius.ports.sightings import MAX_INSTANCES, MAX_SERVICES, SERVICE_TTL_MS
from lucius.usecases.queries.services import MAX_UNWRITTEN_SIGHTINGS, ServiceRegistry
from tests.integration.api.conftest import Start
from tests.integration.api.test_backlog import add_keys
from tests.support.api import Api, identity
from tests.support.until import WITHIN


async def services(api: Api) -> dict[str, dict[str, Any]]:
    return {one["service"]: one for one in (await api.get("/v1/services")).ok()["services"]}


def named(instance: str, agent: str = "my-sdk/2") -> dict[str, str]:
    return {"x-lucius-instance": instance, "user-agent": agent}


async def pushed(api: Api) -> dict[str, Any]:
    """Return the next directive from the memory bus."""
    bus = api.runtime.publisher
    assert isinstance(bus, MemoryBus)
    (directive,) = await bus.consumer("ocr").pull(1, WITHIN)
    found: dict[str, Any] = msgspec.to_builtins(directive)
    return found


async def blocked_message(api: Api, job_id: str, **options: Any) -> str:
    return str((await api.get(f"/v1/jobs/{job_id}", **options)).ok()["blocked_on"]["message"])


async def test_service_that_pulls_is_listed_with_its_work(api: Api) -> None:
    await api.submit(idempotency_key="k1")
    api.clock.advance(3)
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    second = await api.submit(idempotency_key="k2")
    api.clock.advance(5)
    (one,) = (await services(api)).values()
    assert one["last_pull_at"] == "2027-01-15T08:00:03.000Z"
    assert (one["service"], one["at_work"], one["unacked"], one["backlog"]) == ("ocr", 1, 0, 1)
    assert one["oldest_waiting_at"] == (await api.job(second))["created_at"]
    assert one["oldest_waiting_seconds"] == 5.0
    await api.pull_one()
    api.clock.advance(3)
    one = (await services(api))["ocr"]
    assert (one["at_work"], one["unacked"], one["backlog"], one["oldest_waiting_at"]) == (1, 1, 0, None)


async def test_instances_are_listed_by_their_own_names(api: Api) -> None:
    headers = {"x-lucius-instance": "host-1:77", "user-agent": "my-sdk/2\x1b[31m"}
    (await api.call("POST", "/v1/services/sis/directives:pull", {"max": 1}, headers=headers)).ok()
    await api.pull(service="sis")
    (instance,) = (await services(api))["sis"]["instances"]
    assert (instance["instance"], instance["agent"]) == ("host-1:77", "my-sdk/2[31m")


async def test_unnamed_instance_is_seen_by_its_pulls_but_not_by_callbacks_of_others(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one("ocr")
    (await api.call("POST", "/v1/services/ocr/directives:pull", {"max": 1}, headers={"user-agent": "curl/8"})).ok()
    api.clock.advance(60)
    named = {"x-lucius-instance": "host-1:77", "user-agent": "my-sdk/2"}
    (await api.call("POST", "/v1/services/ocr/directives:pull", {"max": 1}, headers=named)).ok()
    api.clock.advance(60)
    (await api.callback("ack", directive)).ok()
    one = (await services(api))["ocr"]
    assert one["last_seen_at"] == "2027-01-15T08:02:00.000Z"
    assert [(seen["agent"], seen["last_seen_at"]) for seen in one["instances"]] == [
        ("my-sdk/2", "2027-01-15T08:01:00.000Z"),
        ("curl/8", "2027-01-15T08:00:00.000Z"),
    ]


async def test_service_that_only_calls_back_is_seen_without_a_pull(api: Api) -> None:
    await api.submit()
    (directive,) = await api.runtime.directive_pulls.pull("ocr", 1, 0, None, None, None)  # as a push bus would
    (await api.succeed(msgspec.to_builtins(directive))).ok()
    one = (await services(api))["ocr"]
    assert one["last_pull_at"] is None
    assert one["last_seen_at"] is not None


async def test_service_on_a_push_bus_is_listed_with_the_instances_that_call_back(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, bus_url="memory:")
    await api.submit()
    directive = await pushed(api)
    (await api.callback("ack", directive, headers=named("host-1:7"))).ok()
    api.clock.advance(1)
    (await api.callback("heartbeat", directive, headers=named("host-2:7"))).ok()
    api.clock.advance(1)
    result = {"type": "result", "callback_token": directive["callback_token"], "status": "SUCCEEDED"}
    batch = {"callbacks": [{**result, **identity(directive)}]}
    (await api.post("/v1/callbacks:batch", batch, key="", headers=named("host-3:7", "my-sdk/3\x1b[31m"))).ok()
    (one,) = (await services(api)).values()
    assert (one["last_pull_at"], one["last_seen_at"]) == (None, "2027-01-15T08:00:02.000Z")
    assert [(seen["instance"], seen["agent"], seen["last_seen_at"]) for seen in one["instances"]] == [
        ("host-3:7", "my-sdk/3[31m", "2027-01-15T08:00:02.000Z"),
        ("host-2:7", "my-sdk/2", "2027-01-15T08:00:01.000Z"),
        ("host-1:7", "my-sdk/2", "2027-01-15T08:00:00.000Z"),
    ]


async def test_instance_that_calls_back_after_its_pull_is_listed_once(api: Api) -> None:
    await api.submit()
    (pulled,) = (
        await api.call("POST", "/v1/services/ocr/directives:pull", {"max": 1}, headers=named("host-1:7"))
    ).ok()["directives"]
    api.clock.advance(5)
    (await api.callback("ack", pulled, headers=named("host-1:7"))).ok()
    (instance,) = (await services(api))["ocr"]["instances"]
    assert (instance["last_pull_at"], instance["last_seen_at"]) == (
        "2027-01-15T08:00:00.000Z",
        "2027-01-15T08:00:05.000Z",
    )


async def test_callback_that_does_not_count_is_no_sighting(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    (await api.succeed(directive)).ok()
    (await api.succeed(directive, headers=named("host-1:7"))).ok()
    assert (await services(api))["ocr"]["instances"] == []


async def test_instances_that_call_back_are_bounded(api: Api) -> None:
    await api.submit()
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    for number in range(MAX_INSTANCES + 10):
        (await api.callback("heartbeat", directive, headers=named(f"host-{number}"))).ok()
    await api.runtime.services.flush()
    assert len(await api.runtime.store.sightings.sightings("ocr")) <= MAX_INSTANCES + 1
    api.runtime.services.note_callback("sis", "host-1:7")
    assert [seen["instance"] for seen in (await services(api))["sis"]["instances"]] == ["host-1:7"]


async def test_sightings_survive_the_process_that_recorded_them(api: Api) -> None:
    await api.pull(service="sis")
    await api.runtime.services.flush()
    other = ServiceRegistry(api.runtime.store.sightings, api.runtime.store.jobs, api.clock)
    assert [(one.service, one.last_pull_at is not None) for one in (await other.services()).services] == [("sis", True)]


async def test_many_instances_of_one_service_do_not_hide_other_services(api: Api) -> None:
    registry = api.runtime.services
    for number in range(MAX_UNWRITTEN_SIGHTINGS + 10):
        registry.note_pull("zsvc", f"i{number}")
    for number in range(MAX_UNWRITTEN_SIGHTINGS // 2):
        registry.note_pull(f"s{number % 50}", f"i{number}")
    registry.note_pull("ocr", "host-1")
    await registry.flush()
    assert await registry.describe_absence("ocr") is None
    listed = await services(api)
    assert len(listed) == 52
    assert len(listed["zsvc"]["instances"]) == MAX_INSTANCES - 1  # and one without a name that stands for all others
    assert [one["instance"] for one in listed["ocr"]["instances"]] == ["host-1"]


async def test_truncated_list_keeps_busy_services_and_counts_the_omitted(api: Api) -> None:
    registry = api.runtime.services
    await api.submit()
    registry.note_pull("aaa")
    registry.note_pull("ocr")
    api.clock.advance(1)
    for number in range(MAX_SERVICES):
        registry.note_pull(f"b{number:04d}")
    answer = (await api.get("/v1/services")).ok()
    names = [one["service"] for one in answer["services"]]
    assert (len(names), answer["services_omitted"]) == (MAX_SERVICES, 2)
    assert names == sorted(names)
    assert "ocr" in names
    assert "aaa" not in names


async def test_service_unseen_for_a_month_is_forgotten_unless_a_step_waits_for_it(api: Api) -> None:
    registry = api.runtime.services
    registry.note_pull("ocr")
    registry.note_pull("sis")
    await registry.flush()
    await api.submit()
    api.clock.advance(SERVICE_TTL_MS / 1000 + 1)
    await registry.forget_idle()
    assert {seen.service for seen in await api.runtime.store.sightings.sightings()} == {"ocr"}


async def test_running_container_step_is_not_listed_as_a_service(api: Api) -> None:
    branch = [{"step_id": "inner", "step_type": "OCR", "service": "ocr"}]
    step = {"step_id": "both", "kind": "parallel", "parallel": {"branches": {"a": branch}}}
    members = {"protocol_id": "both", "version": 1, "request_type": "BOTH", "steps": [step]}
    api.runtime.services.note_pull("ocr")
    (await api.post("/v1/protocols", members)).ok(201)
    (await api.post("/v1/protocols/BOTH/versions/1:publish", {"reason": "it is good"})).ok()
    job_id = await api.submit(request_type="BOTH", payload={})
    assert (await api.job(job_id))["steps"][0]["status"] == "PROCESSING"
    assert list(await services(api)) == ["ocr"]


async def test_key_of_one_tenant_may_not_list_services(api: Api) -> None:
    add_keys(api, "acme", reader=(("read",), None), ocr=(("serve",), "ocr"))
    (await api.get("/v1/services", key="reader")).problem(403, "FORBIDDEN_TENANT")
    (await api.get("/v1/services", key="ocr")).problem(403, "FORBIDDEN_SCOPE")


async def test_explain_says_that_no_service_has_ever_pulled(api: Api) -> None:
    job_id = await api.submit()
    said = await blocked_message(api, job_id)
    assert said.endswith("; no service has ever pulled for ocr"), "it is the oldest itself"
    api.clock.advance(60)
    younger = await api.submit(input_ref="blob://in/b.pdf")
    assert (await blocked_message(api, younger)).endswith("; the oldest step queued for ocr waits since 08:00:00 UTC")
    assert "oldest" not in await blocked_message(api, job_id)


async def test_explain_names_the_oldest_step_on_a_push_bus(start: Start, ledger_url: str) -> None:
    api = await start(ledger_url=ledger_url, bus_url="memory:")
    bus = api.runtime.publisher
    assert isinstance(bus, MemoryBus)
    bus.down = True
    first = await api.submit()
    api.clock.advance(60)
    younger = await api.submit(input_ref="blob://in/b.pdf")
    async with asyncio.timeout(WITHIN):  # rows that the relay has claimed for a retry do not count as waiting
        while not (await blocked_message(api, younger)).endswith(
            "; the oldest step queued for ocr waits since 08:00:00 UTC"
        ):
            await asyncio.sleep(0.005)
            api.clock.advance(3)  # the known state of services is read again
    said = await blocked_message(api, first)
    assert "pulled" not in said, "services take their directives from the bus"
    assert said.endswith("; no service has ever called back for ocr")


async def test_explain_says_since_when_no_service_has_called_back_where_directives_are_pushed(
    start: Start, ledger_url: str
) -> None:
    api = await start(ledger_url=ledger_url, bus_url="memory:")
    first = await api.submit()
    directive = await pushed(api)
    said = await until_blocked(api, first, "ACK")
    assert said.endswith(" to acknowledge it; no service has ever called back for ocr")
    (await api.succeed(directive)).ok()
    api.clock.advance(60)
    job_id = await api.submit(input_ref="blob://in/b.pdf")
    assert "called back" not in await until_blocked(api, job_id, "ACK"), "the last callback is recent"
    await pushed(api)
    api.clock.advance(61)
    assert (await blocked_message(api, job_id)).endswith("; no service has called back for ocr since 08:00:00 UTC")
    (listed,) = (await api.get("/v1/jobs?blocked_on=ACK")).ok()["jobs"]
    assert "no service has called back for ocr since" in listed["blocked_on"]["message"]
    await api.sweep()
    said = await until_blocked(api, job_id, "RETRY")
    assert "ended with" in said
    assert said.endswith("; no service has called back for ocr since 08:00:00 UTC")


async def test_explain_does_not_call_a_service_absent_that_reported_a_failure(start: Start) -> None:
    api = await start(bus_url="memory:")
    job_id = await api.submit()
    (await api.fail(await pushed(api), failure_class="RATE_LIMITED", retry_after_seconds=3600)).ok()
    api.clock.advance(600)
    assert "called back" not in await until_blocked(api, job_id, "RETRY")


async def test_explain_calls_a_service_busy_that_calls_back_too_seldom_on_a_push_bus(start: Start) -> None:
    api = await start(bus_url="memory:")
    await api.submit(idempotency_key="k1")
    (await api.callback("ack", await pushed(api))).ok()
    api.clock.advance(600)
    job_id = await api.submit(idempotency_key="k2")
    said = await until_blocked(api, job_id, "ACK")
    assert said.endswith("; service ocr is busy with 1 step, and was seen last at 08:00:00 UTC")


async def until_blocked(api: Api, job_id: str, reason: str) -> str:
    """Wait until the job is blocked for this reason; return the message."""
    async with asyncio.timeout(WITHIN):
        while (blocked := (await api.job(job_id))["blocked_on"])["reason"] != reason:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return str(blocked["message"])


async def test_explain_names_the_oldest_step_of_a_service_at_its_cap(start: Start) -> None:
    api = await start(max_unacked=1)
    await api.submit()
    await api.pull()
    await api.submit(input_ref="blob://in/b.pdf")
    api.clock.advance(10)
    job_id = await api.submit(input_ref="blob://in/c.pdf")
    assert (await api.job(job_id))["blocked_on"]["reason"] == "DISPATCH_WINDOW"
    assert (await blocked_message(api, job_id)).endswith("; the oldest step queued for ocr waits since 08:00:00 UTC")


async def test_explain_says_since_when_a_lone_job_waits(api: Api) -> None:
    await api.pull()
    job_id = await api.submit()
    api.clock.advance(60)
    said = "is queued until service ocr pulls it (since 2027-01-15 08:00:00 UTC, "
    assert said in await blocked_message(api, job_id)


async def test_explain_says_since_when_no_service_has_pulled(api: Api) -> None:
    await api.pull()
    job_id = await api.submit()
    assert "pulled" not in await blocked_message(api, job_id)
    api.clock.advance(3600)
    assert "; no service has pulled for ocr since 08:00:00 UTC" in await blocked_message(api, job_id)
    (listed,) = (await api.get("/v1/jobs?blocked_on=HANDOVER")).ok()["jobs"]
    assert "no service has pulled for ocr since" in listed["blocked_on"]["message"]


async def test_step_that_was_pulled_is_not_explained_by_the_absence_of_pulls(api: Api) -> None:
    pulled = await api.submit()
    await api.pull_one()
    waiting = await api.submit(input_ref="blob://in/b.pdf")
    api.clock.advance(3600)
    listed = {job["jobId"]: job["blocked_on"] for job in (await api.get("/v1/jobs")).ok()["jobs"]}
    assert (listed[pulled]["reason"], listed[waiting]["reason"]) == ("ACK", "HANDOVER")
    assert "no service has pulled" in listed[waiting]["message"]
    assert "no service" not in listed[pulled]["message"]


async def test_busy_service_that_heartbeats_is_not_called_absent(api: Api) -> None:
    await api.submit(idempotency_key="k1")
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    job_id = await api.submit(idempotency_key="k2")
    for _ in range(5):
        api.clock.advance(60)
        (await api.callback("heartbeat", directive)).ok()
    assert (await blocked_message(api, job_id)).endswith("; service ocr is busy with 1 step")
    (one,) = (await services(api)).values()
    assert (one["last_pull_at"], one["last_seen_at"]) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:05:00.000Z")
    add_keys(api, "acme", reader=(("read",), None))
    assert (await blocked_message(api, job_id, key="reader")).endswith("; service ocr is busy")


async def test_silent_service_with_a_running_lease_is_called_busy_with_its_last_sighting(api: Api) -> None:
    await api.submit(idempotency_key="k1")
    (await api.callback("ack", await api.pull_one())).ok()
    job_id = await api.submit(idempotency_key="k2")
    api.clock.advance(600)
    assert (await blocked_message(api, job_id)).endswith(
        "; service ocr is busy with 1 step, and was seen last at 08:00:00 UTC"
    )


async def test_service_seen_recently_by_a_callback_is_not_called_absent(api: Api) -> None:
    await api.submit(idempotency_key="k1")
    directive = await api.pull_one()
    (await api.callback("ack", directive)).ok()
    api.clock.advance(600)
    (await api.succeed(directive)).ok()
    assert "pulled" not in await blocked_message(api, await api.submit(idempotency_key="k2"))


async def test_explain_does_not_reveal_steps_of_other_tenants(api: Api) -> None:
    add_keys(api, "acme", reader=(("read",), None))
    job_id = await api.submit()
    said = await blocked_message(api, job_id, key="reader")
    assert "no service has ever pulled for ocr" in said
    assert "oldest" not in said
