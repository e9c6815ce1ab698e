"""Carries out requests of operators: applied, or refused with a code that says why."""

from collections.abc import Mapping

from lucius.contract import Fault
from lucius.core.decide.values import MAX_VALUE_BYTES
from lucius.core.model.decision import Decision, JobSnapshot, Refused, Reply
from lucius.core.model.inputs import Cap
from lucius.ports.config import ConfigSource
from lucius.ports.engine import Engine, Inputs
from lucius.ports.errors import LimitReached
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import MAX_DEPTH, size_of, too_deep
from lucius.usecases.submit.limits import LimitDefaults, caps, over_limit

MAX_SIGNAL_BYTES = 8 * 1024
MAX_SKIPPED_BYTES = MAX_VALUE_BYTES


class RunLimits:
    """Computes the limits that a job must pass again when it starts another run."""

    def __init__(self, config: ConfigSource, defaults: LimitDefaults) -> None:
        self._config = config
        self._defaults = defaults

    def of(self, view: JobSnapshot) -> tuple[Cap, ...]:
        job = view.job
        return caps(self._config.current(), self._defaults, job.tenant_id, job.routing.resolved_mode, view.protocol)


async def carry_out(engine: Engine, job_id: str, inputs: Inputs, step_id: str | None = None) -> Decision:
    """Apply inputs and return the durable decision. Raises Rejected if they are refused."""
    try:
        decision = await engine.apply(job_id, inputs, step_id)
    except LimitReached as reached:
        raise over_limit(reached) from None
    require_accepted(decision.reply, job_id)
    return decision


def require_accepted(reply: Reply, job_id: str) -> None:
    if isinstance(reply, Refused):
        raise Rejected(RejectCode(reply.code), reply.message, job_id=job_id)


def require_room(decision: Decision, counters: Mapping[str, int]) -> None:
    """Raise Rejected if committing the decision would exceed a cap, given these counters."""
    for cap in decision.caps:
        if counters.get(cap.counter, 0) + decision.counters.get(cap.counter, 0) > cap.limit:
            raise over_limit(LimitReached(cap.counter, cap.limit))


def require_small(value: object, limit: int, pointer: str) -> None:
    """Raise Rejected for a value that is larger, or nested deeper, than a job should carry."""
    if too_deep(value):
        message = f"may be nested {MAX_DEPTH} levels deep"
        raise Rejected(RejectCode.INVALID_ENVELOPE, f"{pointer}: {message}", [Fault(pointer, message)])
    size = size_of(value)
    if size > limit:
        message = f"may have {limit} bytes of JSON and has {size}; put it where the job can refer to it"
        raise Rejected(RejectCode.VALUE_TOO_LARGE, f"{pointer}: {message}", [Fault(pointer, message)])
