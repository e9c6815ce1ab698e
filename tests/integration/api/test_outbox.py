"""Push buses: refused messages are retried by the clock or an operator; a bus that is down uses up no attempts."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.core.model.records import OutboxRow
from lucius.ports.outbox import PendingQuery
from lucius.usecases.operations import operations
from tests.integration.api.conftest import Start, key_entry
from tests.support.api import WITHIN, Api


async def step_with_status(api: Api, job_id: str, status: str) -> Any:
    """Return the job's step once it has that status. Waits for commits; does not poll by time."""
    with api.runtime.notifier.watch(job_id) as changed:
        async with asyncio.timeout(WITHIN):
            while True:
                changed.clear()  # before reading, so that no change in between is missed
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


async def test_directive_is_pushed_as_soon_as_it_is_committed(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    job_id = await api.submit()
    (directive,) = await bus.consumer("ocr").pull(1, WITHIN)
    assert directive.jobId == job_id
    assert (await step_with_status(api, job_id, "INITIATED"))["ack_deadline"]


async def test_refused_message_is_retried_on_an_operators_request(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    job_id = await api.submit(correlation_id="bad")
    step = await step_with_status(api, job_id, "FAILED_RETRY")
    assert (step["last_error"]["code"], step["attempt_no"]) == ("HANDOVER_FAILED", 1)
    assert step["retry_at"] == "2027-01-15T08:00:30.000Z"
    bus.refuse = None
    assert (await api.post("/v1/admin/outbox/retry", key="globexes")).ok() == {"retried": 0, "pending": 0}
    answer = await api.post("/v1/admin/outbox/retry", {"reason": "the topic is back"}, key="acmes")
    assert answer.ok() == {"retried": 1, "pending": 1}
    assert (await step_with_status(api, job_id, "INITIATED"))["attempt_no"] == 2
    events = (await api.get(f"/v1/jobs/{job_id}/events")).ok()["events"]
    (asked,) = [event for event in events if event["type"] == "HANDOVER_RETRY_REQUESTED"]
    assert (asked["data"]["by"], asked["data"]["reason"]) == ("acmes", "the topic is back")
    assert (await api.post("/v1/admin/outbox/retry")).ok() == {"retried": 0, "pending": 0}


async def test_an_operators_retry_reads_no_rows_of_other_tenants(
    pushing: tuple[Api, MemoryBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    for tenant in ("acme", "globex"):
        job_id = await api.submit(correlation_id="bad", tenant_id=tenant)
        await step_with_status(api, job_id, "FAILED_RETRY")
    read: list[str] = []
    pending = api.runtime.store.outbox.pending

    async def noting(query: PendingQuery) -> list[OutboxRow]:
        rows = await pending(query)
        if query.limit == operations.MAX_ROWS:
            read.extend(row.tenant_id for row in rows)
        return rows

    monkeypatch.setattr(api.runtime.store.outbox, "pending", noting)
    assert (await api.post("/v1/admin/outbox/retry", key="acmes")).ok() == {"retried": 1, "pending": 1}
    assert set(read) == {"acme"}


async def test_refused_message_is_retried_after_its_backoff_and_finally_fails(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    job_id = await api.submit(correlation_id="bad")
    for backoff in (30, 120):
        await step_with_status(api, job_id, "FAILED_RETRY")
        await api.sweep(after=backoff)
    await step_with_status(api, job_id, "FAILED_FINAL")
    job = await api.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("FAILED_FINAL", "HANDOVER_FAILED")


async def test_refused_message_does_not_delay_others(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.refuse = refusing("bad")
    bad, good = await api.submit(correlation_id="bad"), await api.submit(idempotency_key="good")
    await step_with_status(api, good, "INITIATED")
    await step_with_status(api, bad, "FAILED_RETRY")


async def test_bus_outage_uses_up_no_attempts(pushing: tuple[Api, MemoryBus]) -> None:
    api, bus = pushing
    bus.down = True
    job_id = await api.submit()
    with api.runtime.notifier.watch(job_id) as changed:  # claimed and given back
        async with asyncio.timeout(WITHIN):
            await changed.wait()
    assert (await api.step(job_id))["status"] == "DISPATCHING"
    assert (await api.job(job_id))["blocked_on"]["reason"] == "HANDOVER"
    assert (await api.post("/v1/admin/outbox/retry")).ok()["retried"] == 0
    bus.down = False
    step = await step_with_status(api, job_id, "INITIATED")
    assert (step["attempt_no"], await api.event_types(job_id)) == (
        1,
        ["JOB_ACCEPTED", "STEP_DISPATCHED", "STEP_HANDED_OVER"],
    )


async def test_operator_retry_finds_refused_rows_behind_many_pending_rows(pushing: tuple[Api, MemoryBus]) -> None:
    """The retry finds its rows however many others wait in the same outbox."""
    api, bus = pushing
    bus.refuse = refusing("bad")
    bad = await api.submit(correlation_id="bad")
    await step_with_status(api, bad, "FAILED_RETRY")
    bus.down = True
    for first in range(0, 1100, 100):
        await asyncio.gather(*(api.submit(idempotency_key=str(i)) for i in range(first, first + 100)))
    answer = (await api.post("/v1/admin/outbox/retry")).ok()
    assert answer["retried"] == 1
    assert answer["pending"] > 1000
