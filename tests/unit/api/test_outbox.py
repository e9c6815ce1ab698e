"""Push buses: what the bus refuses is tried again, by the clock or an operator; a bus that is down burns nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lucius.adapters.bus_memory import MemoryBus
from tests.support.api import WITHIN, Api
from tests.unit.api.conftest import Start, key_entry


async def until(api: Api, job_id: str, status: str) -> Any:
    """The job's step, once it has that status. Every commit wakes us, nothing is polled by time."""
    with api.runtime.hub.watch(job_id) as changed:
        async with asyncio.timeout(WITHIN):
            while True:
                changed.clear()  # before the look: what moves during it is not missed
                step = await api.step(job_id)
                if step["status"] == status:
                    return step
                await changed.wait()


@pytest.fixture
async def pushing(start: Start, ledger_url: str) -> tuple[Api, MemoryBus]:
    keys = [key_entry("acmes", "operate", tenants=("acme",)), key_entry("globexes", "operate", tenants=("globex",))]
    api = await start({"api_keys": keys}, ledger_url=ledger_url, bus_url="memory:", outbox_retry_interval=0.01)
    bus = api.runtime.publisher
    assert isinstance(bus, MemoryBus)
    return api, bus


def refusing(*names: str) -> Callable[[Any], bool]:
    return lambda directive: directive.correlation_id in names


async def test_a_directive_is_pushed_as_soon_as_it_is_committed(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    job_id = await api.submit()
    (directive,) = await bus.consumer("ocr").pull(1, WITHIN)
    assert directive.jobId == job_id
    assert (await until(api, job_id, "INITIATED"))["ack_deadline"]


async def test_a_refused_message_is_retried_when_an_operator_says_so(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    job_id = await api.submit(correlation_id="bad")
    step = await until(api, job_id, "FAILED_RETRY")
    assert (step["last_error"]["code"], step["attempt_no"]) == ("HANDOVER_FAILED", 1)
    assert step["retry_at"] == "2027-01-15T08:00:30.000Z"
    bus.refuse = None
    assert (await api.post("/v1/admin/outbox/retry", key="globexes")).ok() == {"retried": 0, "pending": 0}
    answer = await api.post("/v1/admin/outbox/retry", {"reason": "the topic is back"}, key="acmes")
    assert answer.ok() == {"retried": 1, "pending": 1}
    assert (await until(api, job_id, "INITIATED"))["attempt_no"] == 2
    events = (await api.get(f"/v1/jobs/{job_id}/events")).ok()["events"]
    (asked,) = [event for event in events if event["type"] == "HANDOVER_RETRY_REQUESTED"]
    assert (asked["data"]["by"], asked["data"]["reason"]) == ("acmes", "the topic is back")
    assert (await api.post("/v1/admin/outbox/retry")).ok() == {"retried": 0, "pending": 0}


async def test_a_refused_message_is_retried_by_the_clock_and_fails_for_good(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    job_id = await api.submit(correlation_id="bad")
    for backoff in (30, 120):
        await until(api, job_id, "FAILED_RETRY")
        await api.sweep(after=backoff)
    await until(api, job_id, "FAILED_FINAL")
    job = await api.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "HANDOVER_FAILED")


async def test_one_refused_message_does_not_hold_up_others(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    bad, good = await api.submit(correlation_id="bad"), await api.submit(idempotency_key="good")
    await until(api, good, "INITIATED")
    await until(api, bad, "FAILED_RETRY")


async def test_a_bus_that_is_down_burns_nothing(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.down = True
    job_id = await api.submit()
    with api.runtime.hub.watch(job_id) as changed:  # claimed, and given back
        async with asyncio.timeout(WITHIN):
            await changed.wait()
    assert (await api.step(job_id))["status"] == "DISPATCHING"
    assert (await api.job(job_id))["blocked_on"]["reason"] == "HANDOVER"
    assert (await api.post("/v1/admin/outbox/retry")).ok()["retried"] == 0
    bus.down = False
    step = await until(api, job_id, "INITIATED")
    assert (step["attempt_no"], await api.event_types(job_id)) == (
        1,
        ["JOB_ACCEPTED", "STEP_DISPATCHED", "STEP_HANDED_OVER"],
    )


async def test_more_waits_for_a_service_than_for_a_retry(pushing: tuple[Api, MemoryBus]) -> None:
    """The retry finds its rows however many others wait in the same outbox."""
    api, bus = pushing
    bus.refuse = refusing("bad")
    bad = await api.submit(correlation_id="bad")
    await until(api, bad, "FAILED_RETRY")
    bus.down = True
    await asyncio.gather(*(api.submit(idempotency_key=str(i)) for i in range(1100)))
    answer = (await api.post("/v1/admin/outbox/retry")).ok()
    assert answer["retried"] == 1
    assert answer["pending"] > 1000
