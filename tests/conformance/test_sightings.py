"""ServiceSightings on every ledger."""

from typing import Any

from lucius.core.model.statuses import StepStatus
from lucius.ports.sightings import INSTANCE_TTL_MS, MAX_INSTANCES, Sighting
from lucius.ports.store import Store
from tests.conformance.builders import accept, step, then


def pull(service: str, at: int, instance: str = "", agent: str = "") -> Sighting:
    return Sighting(service=service, instance=instance, agent=agent, last_seen_at=at, last_pull_at=at)


def callback(service: str, at: int, instance: str = "", agent: str = "") -> Sighting:
    return Sighting(service=service, instance=instance, agent=agent, last_seen_at=at)


async def test_later_sightings_of_an_instance_replace_earlier_ones(store: Store) -> None:
    await store.sightings.record_sightings([pull("ocr", 10, "a", "sdk/1"), pull("sis", 30)])
    await store.sightings.record_sightings([pull("ocr", 20, "a", "sdk/2")])
    await store.sightings.record_sightings([pull("ocr", 15, "a")])
    assert await store.sightings.sightings("ocr") == [pull("ocr", 20, "a", "sdk/2")]
    assert [seen.service for seen in await store.sightings.sightings()] == ["sis", "ocr"]
    assert await store.sightings.sightings("payer") == []


async def test_callback_after_a_pull_keeps_the_time_of_the_pull(store: Store) -> None:
    await store.sightings.record_sightings([callback("ocr", 5)])
    assert await store.sightings.sightings("ocr") == [callback("ocr", 5)]
    await store.sightings.record_sightings([pull("ocr", 10)])
    await store.sightings.record_sightings([callback("ocr", 20)])
    assert await store.sightings.sightings("ocr") == [Sighting(service="ocr", last_seen_at=20, last_pull_at=10)]


async def test_instances_that_only_call_back_are_kept_like_those_that_pull(store: Store) -> None:
    await store.sightings.record_sightings([callback("ocr", 10, "a", "sdk/1"), callback("ocr", 12, "b", "sdk/1")])
    await store.sightings.record_sightings([callback("ocr", 20, "a", "sdk/2"), pull("ocr", 15, "b")])
    assert await store.sightings.sightings("ocr") == [callback("ocr", 20, "a", "sdk/2"), pull("ocr", 15, "b", "sdk/1")]
    many = [callback("sis", number, f"i{number}", "sdk/1") for number in range(MAX_INSTANCES + 20)]
    await store.sightings.record_sightings(many)
    assert await store.sightings.sightings("sis") == [*reversed(many[-MAX_INSTANCES:])]
    await store.sightings.record_sightings([callback("ocr", INSTANCE_TTL_MS + 16, "c")])
    assert [seen.instance for seen in await store.sightings.sightings("ocr")] == ["c", "a", "b"]
    await store.sightings.record_sightings([callback("ocr", INSTANCE_TTL_MS + 21, "c")])
    assert [seen.instance for seen in await store.sightings.sightings("ocr")] == ["c", "b"], "b was the last to pull"


async def test_instances_unseen_for_a_day_are_forgotten_but_never_the_last_pull(store: Store) -> None:
    await store.sightings.record_sightings([pull("ocr", 10, "a"), pull("ocr", 20, "b"), pull("sis", 10, "c")])
    later = INSTANCE_TTL_MS + 100
    await store.sightings.record_sightings([callback("ocr", later)])
    assert [seen.instance for seen in await store.sightings.sightings("ocr")] == ["", "b"]
    await store.sightings.record_sightings([pull("ocr", later + 1, "d")])
    assert [seen.instance for seen in await store.sightings.sightings("ocr")] == ["d", ""]
    assert [seen.instance for seen in await store.sightings.sightings("sis")] == ["c"]


async def test_services_unseen_for_long_are_forgotten_with_all_their_instances(store: Store) -> None:
    await store.sightings.record_sightings(
        [pull("ocr", 10, "a"), pull("ocr", 90, "b"), pull("old", 10, "a"), callback("old", 9)]
    )
    await store.sightings.record_sightings([pull("waits", 10, "c")])
    await store.sightings.forget_services(50, {"waits", "other"})
    found = {(seen.service, seen.instance) for seen in await store.sightings.sightings()}
    assert found == {("ocr", "a"), ("ocr", "b"), ("waits", "c")}
    await store.sightings.forget_services(50, ())
    assert {seen.service for seen in await store.sightings.sightings()} == {"ocr"}


async def test_many_instances_of_a_service_hide_no_other_service(store: Store) -> None:
    await store.sightings.record_sightings([pull("asvc", 10, "a"), callback("bsvc", 11)])
    for batch in range(11):
        flood = [pull("zsvc", 1_000 * batch + number + 100, f"i{batch}-{number}") for number in range(MAX_INSTANCES)]
        await store.sightings.record_sightings(flood)
    found = await store.sightings.sightings()
    assert [seen for seen in found if seen.service != "zsvc"] == [callback("bsvc", 11), pull("asvc", 10, "a")]
    assert len(found) == MAX_INSTANCES + 2
    assert found[0] == flood[-1]


async def test_only_the_newest_instances_of_a_service_are_kept(store: Store) -> None:
    await store.sightings.record_sightings([pull("ocr", 5, "pulls"), pull("ocr", 4, "pulled"), pull("sis", 1, "a")])
    later = [
        Sighting(service="ocr", instance=f"i{number}", last_seen_at=number + 10) for number in range(MAX_INSTANCES + 20)
    ]
    await store.sightings.record_sightings(later)
    found = await store.sightings.sightings("ocr")
    assert found == [*reversed(later[-MAX_INSTANCES:]), pull("ocr", 5, "pulls")]
    await store.sightings.record_sightings([pull("ocr", 900, "i119")])
    assert [seen.instance for seen in await store.sightings.sightings("ocr")] == [seen.instance for seen in found[:-1]]
    assert [seen.instance for seen in await store.sightings.sightings("sis")] == ["a"]


async def test_working_steps_are_those_that_were_picked_up_and_have_not_ended(store: Store) -> None:
    statuses: list[tuple[str, dict[str, Any]]] = [
        ("j1", {"status": StepStatus.PROCESSING}),
        ("j2", {"status": StepStatus.PROCESSING}),
        ("j3", {"status": StepStatus.INITIATED}),
        ("j4", {"status": StepStatus.SUCCEEDED}),
    ]
    for job_id, fields in statuses:
        new = accept(job_id, active=("ocr",))
        await store.ledger.commit(new)
        await store.ledger.commit(then(new, steps=(step(job_id, **fields), step(job_id, "embedding", **fields))))
    assert await store.sightings.working_steps() == {"ocr": 2, "embedding": 2}
