"""Report of a simulation, as the CLI prints it."""

from typing import Any

from msgspec import Struct

from lucius.authoring.simulate import SimulationResult
from lucius.authoring.timeline import PathStep, TimelineEntry
from lucius.core.decide.derived_state import by_index
from lucius.core.decide.transitions import NOT_STARTED
from lucius.core.model.records import Attempt, ErrorInfo, Millis, Step
from lucius.core.model.statuses import JobStatus, StepStatus
from lucius.core.protocol.definition import Place, spec_id


class AttemptLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    attempt_no: int
    outcome: str
    from_ms: Millis
    to_ms: Millis | None = None
    failure_class: str | None = None
    error: ErrorInfo | None = None


class StepLine(Struct, frozen=True, kw_only=True):
    step_id: str
    kind: str
    status: str
    visits: int
    attempts: list[AttemptLine]
    result: Any
    error: ErrorInfo | None


class ReviewLine(Struct, frozen=True, kw_only=True):
    kind: str
    status: str
    step_id: str | None
    error: ErrorInfo | None


class Report(Struct, frozen=True, kw_only=True):
    """Outcome of a simulation. If the job has not `ended`, `stands_still` or `cut_off` says why.

    `undone` is in the order in which the steps were undone.
    """

    request_type: str
    version: int
    status: str
    ended: bool
    stands_still: str | None
    cut_off: str | None
    error: ErrorInfo | None
    took_ms: Millis
    attempts_total: int
    path: list[PathStep]
    timeline: list[TimelineEntry]
    steps: list[StepLine]
    undone: list[str]
    not_undone: list[str]
    reviews: list[ReviewLine]
    notes: list[str]


def report_of(simulation: SimulationResult) -> Report:
    job, undoing = simulation.job, simulation.job.compensation
    return Report(
        request_type=simulation.protocol.request_type,
        version=simulation.protocol.version,
        status=str(job.status),
        ended=not job.live,
        stands_still=simulation.stands_still,
        cut_off=simulation.cut_off,
        error=job.error,
        took_ms=simulation.ended_at - simulation.started_at,
        attempts_total=job.attempts_total,
        path=list(simulation.path),
        timeline=list(simulation.timeline),
        steps=_steps(simulation),
        undone=list(undoing.done) if undoing else [],
        not_undone=list(undoing.todo) if undoing else list(job.compensable) if job.failure and job.error else [],
        reviews=[
            ReviewLine(kind=str(item.kind), status=str(item.status), step_id=item.step_id, error=item.error)
            for item in simulation.reviews
        ],
        notes=list(simulation.notes),
    )


def _steps(simulation: SimulationResult) -> list[StepLine]:
    """Return every step, and the handlers that ran, in the protocol's order."""
    ended: dict[str, list[Attempt]] = {}
    for found in simulation.attempts:
        ended.setdefault(found.step_id, []).append(found.attempt)
    seen = {spec_id(step_id) for step_id in simulation.steps}
    places = [place for place in simulation.protocol.plan.places.values() if place.handler_of is None]
    lines: list[tuple[tuple[int, tuple[int, ...]], StepLine]] = [
        ((place.index, ()), _not_started(simulation, place)) for place in places if place.spec.step_id not in seen
    ]
    lines += [(by_index(s), _started(simulation, s, ended.get(s.step_id, []))) for s in simulation.steps.values()]
    return [line for _, line in sorted(lines, key=lambda found: found[0])]


def _not_started(simulation: SimulationResult, place: Place) -> StepLine:
    status = NOT_STARTED.get(JobStatus(simulation.job.status), StepStatus.PENDING)
    name, kind = place.spec.step_id, place.spec.kind
    return StepLine(step_id=name, kind=kind, status=str(status), visits=0, attempts=[], result=None, error=None)


def _started(simulation: SimulationResult, step: Step, ended: list[Attempt]) -> StepLine:
    current = [] if any(attempt.attempt_no == step.attempt.attempt_no for attempt in ended) else [step.attempt]
    return StepLine(
        step_id=step.step_id,
        kind=step.kind,
        status=str(step.status),
        visits=step.visit,
        attempts=[_attempt(attempt, simulation.started_at) for attempt in (*ended, *current)],
        result=step.result,
        error=step.last_error,
    )


def _attempt(attempt: Attempt, start: int) -> AttemptLine:
    return AttemptLine(
        attempt_no=attempt.attempt_no,
        outcome=str(attempt.outcome) if attempt.outcome else "",
        from_ms=attempt.created_at - start,
        to_ms=attempt.ended_at - start if attempt.ended_at is not None else None,
        failure_class=str(attempt.failure_class) if attempt.failure_class else None,
        error=attempt.error,
    )
