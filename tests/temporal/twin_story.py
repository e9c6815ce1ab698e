"""Summary of a finished job without anything that depends on time, which must be equal on both engines."""

from collections import Counter
from typing import Any

from msgspec import Struct

from lucius.core.model.event_chain import verify_events
from lucius.core.model.records import Event
from lucius.ports.readers import ReviewFilter
from tests.temporal.twin_cases import Case
from tests.temporal.twin_driver import Driver
from tests.temporal.twin_plane import Plane

UNTOLD = frozenset({"DEADLINE_EXTENDED"})
"""Events of an engine that was down; a busy machine can make it assume that."""


class Story(Struct, frozen=True):
    job: dict[str, Any]
    steps: dict[str, Any]
    attempts: dict[str, Any]
    events: dict[str, int]
    order: dict[str, list[str]]
    reviews: list[str]
    log: list[Any]


async def story(plane: Plane, case: Case, driver: Driver) -> Story:
    store, job_id = plane.runtime.store, driver.job_id
    view = await plane.view(job_id)
    job = view.job
    events = await store.history.events(job_id, 0, 10_000)
    assert not verify_events(events, job.event_seq, job.event_hash).breaks, f"{plane.name}: the events are no chain"
    told = [event for event in events if event.type not in UNTOLD]
    reviews = (await store.reviews.reviews(ReviewFilter(job_id=job_id, status=None), 100, None)).items
    return Story(
        job={
            "status": str(job.status),
            "error": job.error.code if job.error else None,
            "run_no": job.run_no,
            "runs": [(run.run_no, str(run.status), run.error.code if run.error else None) for run in job.runs],
            "compensation": (job.compensation.done, job.compensation.failed) if job.compensation else None,
            "output": job.output_step_id,
            "signals": sorted(signal.name for signal in job.signals),
            "quarantined": sorted((q.step_id, q.attempt_no) for q in await store.history.quarantined(job_id)),
        },
        steps={
            step.step_id: (
                str(step.status),
                step.attempt.attempt_no,
                step.visit,
                step.tries,
                step.run_no,
                step.last_error.code if step.last_error else None,
                _timeless(step.result),
            )
            for step in view.steps.values()
        },
        attempts={
            f"{ended.step_id}/{ended.attempt.attempt_no}": (
                str(ended.attempt.outcome),
                str(ended.attempt.failure_class),
                ended.attempt.error.code if ended.attempt.error else None,
                ended.attempt.visit,
                ended.attempt.run_no,
                ended.attempt.acked_at is not None,
                ended.attempt.handed_over_at is not None,
            )
            for ended in await store.history.attempts(job_id)
        },
        events=dict(Counter(_told(event) for event in told)),
        order=_order(told, whole=case.is_one_flow),
        reviews=sorted(f"{r.kind} {r.status} {r.step_id}/{r.attempt_no} {r.run_no} {r.act}" for r in reviews),
        log=driver.log,
    )


def _timeless(result: Any) -> Any:
    """Return a result without the time of an approval."""
    match result:
        case {"by": _, "at": _}:
            return {**result, "at": 0}
        case dict():
            return {name: _timeless(value) for name, value in result.items()}
        case list():
            return [_timeless(value) for value in result]
        case _:
            return result


def _told(event: Event) -> str:
    about = f" {event.step_id}/{event.attempt_no}" if event.step_id else ""
    said = (event.data.get(name) for name in ("disposition", "error_code"))
    return " ".join([f"{event.type}{about}", *(word for word in said if isinstance(word, str))])


def _order(events: list[Event], *, whole: bool) -> dict[str, list[str]]:
    """Return the order of each step's events, or of all events if `whole`."""
    order: dict[str, list[str]] = {}
    for event in events:
        order.setdefault("job" if whole else event.step_id or "job", []).append(_told(event))
    if not whole:
        order.pop("job", None)
    return order


def differences(one: Story, other: Story) -> list[str]:
    """Return every member that differs, with both values."""
    found = []
    if one.log != other.log:
        shorter = min(len(one.log), len(other.log))
        at = next((n for n in range(shorter) if one.log[n] != other.log[n]), shorter)
        found.append(f"log, from {at}: {one.log[at : at + 3]} | {other.log[at : at + 3]}")
    for part in ("job", "steps", "attempts", "events", "order"):
        a, b = getattr(one, part), getattr(other, part)
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        found += [f"{part} {name}: {a.get(name)} | {b.get(name)}" for name in names]
    if one.reviews != other.reviews:
        found.append(f"reviews: {one.reviews} | {other.reviews}")
    return found
