"""Carrying out what a person asked for: applied, or refused with a code that says why."""

from collections.abc import Mapping

from lucius.contract import Fault
from lucius.core.decision import Decision, JobView, Refused, Reply
from lucius.core.inputs import Cap
from lucius.core.values import MAX_VALUE_BYTES
from lucius.ports.config import ConfigSource
from lucius.ports.errors import LimitReached
from lucius.service.config import LimitDefaults, caps, over_limit
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Inputs, Jobs
from lucius.service.json_values import MAX_DEPTH, size_of, too_deep

MAX_SIGNAL_BYTES = 8 * 1024
MAX_SKIPPED_BYTES = MAX_VALUE_BYTES


class Limits:
    """The limits that a job must pass again when it goes into another run."""

    def __init__(self, config: ConfigSource, defaults: LimitDefaults) -> None:
        self._config = config
        self._defaults = defaults

    def of(self, view: JobView) -> tuple[Cap, ...]:
        job = view.job
        return caps(self._config.current(), self._defaults, job.tenant_id, job.routing.resolved_mode, view.protocol)


async def carry_out(jobs: Jobs, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
    """The durable decision, if the input was not refused. Raises Rejected."""
    try:
        decision = await jobs.apply(job_id, inputs, step_id)
    except LimitReached as reached:
        raise over_limit(reached) from None
    require_accepted(decision.reply, job_id)
    return decision


def require_accepted(reply: Reply, job_id: str) -> None:
    if isinstance(reply, Refused):
        raise Rejected(RejectCode(reply.code), reply.message, job_id=job_id)


def require_room(decision: Decision, counters: Mapping[str, int]) -> None:
    """What its commit would check, given such counters. Raises Rejected."""
    for cap in decision.caps:
        if counters.get(cap.counter, 0) + decision.counters.get(cap.counter, 0) > cap.limit:
            raise over_limit(LimitReached(cap.counter, cap.limit))


def require_small(value: object, limit: int, pointer: str) -> None:
    """Raises Rejected for a value that is larger, or nested deeper, than a job should carry."""
    if too_deep(value):
        message = f"may be nested {MAX_DEPTH} levels deep"
        raise Rejected(RejectCode.INVALID_ENVELOPE, f"{pointer}: {message}", [Fault(pointer, message)])
    size = size_of(value)
    if size > limit:
        message = f"may have {limit} bytes of JSON and has {size}; put it where the job can refer to it"
        raise Rejected(RejectCode.VALUE_TOO_LARGE, f"{pointer}: {message}", [Fault(pointer, message)])
