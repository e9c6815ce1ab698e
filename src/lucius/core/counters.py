"""What the commits keep count of: jobs in flight, directives nobody has picked up, and work that waits for a service.

A counter moves in the commit that moves what it counts, so it can't leak, and nobody ever has to count rows.
"""

from collections.abc import Iterable, Mapping

from lucius.core.model import Job, Step, StepStatus
from lucius.core.protocol import OF_THE_ENGINE

UNACKED = "unacked/"
PENDING = "pending/"


def counted(job: Job, active_steps: Iterable[Step]) -> dict[str, int]:
    """What a job adds to the counters as it stands."""
    if not job.live:
        return {}
    counts = dict.fromkeys(job_counters(job), 1)
    for step in active_steps:
        counter = step_counter(step)
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


def step_counter(step: Step) -> str | None:
    """What a step counts as: waiting for nothing but its turn, or handed over and not picked up; most are neither.

    A row that a backoff or a pause keeps back is not backlog: no further service would get it out of the outbox. One
    that is being published is with its service already, as far as the cap on un-ACKed directives goes.
    """
    attempt = step.attempt
    if step.status is StepStatus.INITIATED:
        return unacked_counter(step.service)
    if step.status is not StepStatus.DISPATCHING:
        return None
    if attempt.claimed_at is not None:
        return unacked_counter(step.service)
    if attempt.held or step.service in OF_THE_ENGINE:
        return None
    return pending_counter(step.service, attempt.routing.lane)


def unacked_counter(service: str) -> str:
    """Handed over, or about to be, and not picked up: what `LUCIUS_MAX_UNACKED` caps."""
    return f"{UNACKED}{service}"


def pending_counter(service: str, lane: int) -> str:
    """In the outbox, and free to go to whoever takes it: what a service's replicas are scaled by."""
    return f"{PENDING}{service}/{lane}"


def counters_of(service: str) -> tuple[str, ...]:
    """All that are kept for it."""
    return unacked_counter(service), f"{PENDING}{service}/"


def is_family(name: str) -> bool:
    """Whether it stands for all counters that begin with it."""
    return not name or name.endswith("/")


def picked(counters: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Those that are meant by the names."""
    found: dict[str, int] = {}
    for name in names:
        meant = [each for each in counters if each.startswith(name)] if is_family(name) else [name]
        found |= {each: counters[each] for each in meant if each in counters}
    return found


def pending_by_lane(counters: Mapping[str, int]) -> dict[str, dict[int, int]]:
    """What waits, by service and lane."""
    found: dict[str, dict[int, int]] = {}
    for counter, n in counters.items():
        if counter.startswith(PENDING):
            service, _, lane = counter.removeprefix(PENDING).rpartition("/")
            found.setdefault(service, {})[int(lane)] = n
    return found


def unacked_by_service(counters: Mapping[str, int]) -> dict[str, int]:
    return {name.removeprefix(UNACKED): n for name, n in counters.items() if name.startswith(UNACKED)}
