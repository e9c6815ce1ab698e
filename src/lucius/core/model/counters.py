"""Counters kept by the commits: jobs in flight, un-ACKed directives, and PENDING directives by service and lane.

A counter changes in the same commit as what it counts, so it can't leak and no rows need to be counted.
"""

from collections.abc import Iterable, Mapping

from lucius.core.model.records import Job, Step
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import ENGINE_SERVICES

UNACKED = "unacked/"
PENDING = "pending/"


def counted(job: Job, active_steps: Iterable[Step]) -> dict[str, int]:
    """Return what a job contributes to the counters in its present state."""
    if not job.live:
        return {}
    counts = dict.fromkeys(job_counters(job), 1)
    for step in active_steps:
        counter = step_counter(step, job.tenant_id)
        if counter is not None:
            counts[counter] = counts.get(counter, 0) + 1
    return counts


def job_counters(job: Job) -> tuple[str, ...]:
    return (
        "jobs",
        f"jobs/tenant/{job.tenant_id}",
        f"jobs/mode/{job.routing.resolved_mode}",
        f"jobs/protocol/{job.protocol_id}",
    )


def step_counter(step: Step, tenant_id: str) -> str | None:
    """Return the counter of a step: pending (ready for hand-over), un-ACKed (handed over), or None for most steps.

    A row held back by a backoff or a pause is not pending: more replicas of its service could not take it. A claimed
    row already counts towards the cap on un-ACKed directives.
    """
    attempt = step.attempt
    if step.status is StepStatus.INITIATED:
        return unacked_counter(step.service, tenant_id if attempt.tenant_bound else None)
    if step.status is not StepStatus.DISPATCHING:
        return None
    if attempt.claimed_at is not None:
        return unacked_counter(step.service)
    if attempt.held or step.service in ENGINE_SERVICES:
        return None
    return pending_counter(step.service, attempt.routing.lane)


def unacked_counter(service: str, tenant_id: str | None = None) -> str:
    """Name the counter of directives handed over, or about to be, and not picked up: `LUCIUS_MAX_UNACKED` caps it.

    With a tenant, those that were handed to pulls by keys bound to tenants, so that they take no room of the others.
    """
    return f"{UNACKED}{service}" if tenant_id is None else f"{UNACKED}{service}/{tenant_id}"


def unacked_service(counter: str) -> str:
    """Return the service of a counter that `unacked_counter` named."""
    return counter.removeprefix(UNACKED).partition("/")[0]


def pending_counter(service: str, lane: int) -> str:
    """Name the counter of rows ready for hand-over; autoscalers size a service by it."""
    return f"{PENDING}{service}/{lane}"


def counters_of(service: str) -> tuple[str, ...]:
    """Return the names of a service's counters; all but the first are prefixes."""
    return unacked_counter(service), f"{UNACKED}{service}/", f"{PENDING}{service}/"


def is_prefix(name: str) -> bool:
    """Return whether a name stands for all counters with that prefix."""
    return not name or name.endswith("/")


def select_counters(counters: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Return the counters that the names select, each a counter or a prefix."""
    found: dict[str, int] = {}
    for name in names:
        meant = [each for each in counters if each.startswith(name)] if is_prefix(name) else [name]
        found |= {each: counters[each] for each in meant if each in counters}
    return found


def pending_by_lane(counters: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """Return the pending counts by service and lane."""
    found: dict[str, dict[int, int]] = {}
    for counter, n in counters.items():
        if counter.startswith(PENDING):
            service, _, lane = counter.removeprefix(PENDING).rpartition("/")
            found.setdefault(service, {})[int(lane)] = n
    return found


def unacked_by_service(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the un-ACKed directives of each service, with those that count towards a tenant's own window."""
    found: dict[str, int] = {}
    for counter, n in counters.items():
        if counter.startswith(UNACKED):
            service = unacked_service(counter)
            found[service] = found.get(service, 0) + n
    return found
