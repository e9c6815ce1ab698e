"""Previews a new run or a compensation, from the decision that opens it and the order of the protocol."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from lucius.core.decide.derived_state import is_result_valid, is_voided
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Event, Step
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import CONTAINERS, Place, StepSpec, item_step_id, items_of, spec_id

NO_ITEM = -1  # stands for the items of a map that never started, whose number is not known


class Effect(Struct, frozen=True):
    """Step ids, in order: `again` ran before, `first` did not, `kept` results stand, `undone` will be compensated."""

    again: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()


def effect_of(view: JobSnapshot, decision: Decision, from_step: str | None = None) -> Effect:
    """Return the effect of a decision that was made on `view`, the job with all its steps.

    `from_step` is the step from which a retry was requested. Assumes that every step succeeds, and that a decision
    step may take any of its branches.
    """
    events = {event.type: event for event in decision.events}
    for undo in (events.get("COMPENSATION_STARTED"), events.get("COMPENSATION_RESUMED")):
        if undo is not None:
            under_way = decision.job.compensation
            stopped = under_way.todo if under_way is not None else ()  # has the steps stopped while a service had them
            return Effect(undone=tuple(dict.fromkeys((*stopped, *undo.data["steps"]))))
    settled = events.get("STEP_SKIPPED") or events.get("RESULT_ADOPTED")
    run = events.get("RUN_STARTED")
    if run is None:
        return Effect(kept=(settled.step_id,)) if settled and settled.step_id else Effect()
    resumed = view.job.resume_from if settled is None and from_step is None else None
    keeps = resumed.keeps if resumed is not None else from_step is None
    return _Walk(view, settled, anew=resumed is None).along(run.data["from_step"], keeps)


class _Walk:
    """Walks from a step of the top-level list along every path that success may take, also into containers."""

    def __init__(self, view: JobSnapshot, settled: Event | None, *, anew: bool) -> None:
        self._view = view
        self._places = view.protocol.plan.places
        self._settled = settled.step_id if settled else None
        self._anew = anew
        self._again: set[str] = set()
        self._first: set[str] = set()
        self._kept: set[str] = set()

    def along(self, start: str, keeps: bool) -> Effect:
        """Return the effect of a run from `start`; with `anew`, that step runs again whatever its outcome was."""
        self._flow(start, (), keeps=keeps, anew=self._anew)
        before = self._places[start].index if start in self._places else len(self._places)
        self._kept |= {step.step_id for step in self._standing_before(before)} - self._again
        return Effect(*(self._in_order(found) for found in (self._again, self._first, self._kept)))

    def _flow(self, start: str, items: tuple[int, ...], *, keeps: bool, anew: bool = False) -> None:
        """Visit the steps of one list, for these map items."""
        seen: set[str] = set()
        ahead = [(start, keeps)]
        while ahead:
            name, keeps = ahead.pop()
            if name in self._places and name not in seen:
                seen.add(name)
                stays = keeps and not (anew and name == start)
                ahead += self._visit(self._places[name], items, keeps=keeps, stays=stays)

    def _visit(self, place: Place, items: tuple[int, ...], *, keeps: bool, stays: bool) -> Iterator[tuple[str, bool]]:
        """Visit a step; yield the next steps, each with whether its result may stand. `stays` if this one's may."""
        spec, step_id = place.spec, item_step_id(place.spec.step_id, items)
        old = self._view.steps.get(step_id)
        if step_id == self._settled or (stays and old is not None and self._stands(old)):
            self._kept.add(step_id)
            goes_on = step_id != self._settled or place.container is not None
            yield from ((target, goes_on) for target in _targets(place, old))
            return
        if spec.kind in CONTAINERS:
            self._look_inside(spec, old, items, keeps)
        elif old is None:
            self._first.add(spec.step_id)
        else:
            self._again.add(step_id)
        yield from ((target, False) for target in _targets(place, None))

    def _look_inside(self, spec: StepSpec, old: Step | None, items: tuple[int, ...], keeps: bool) -> None:
        for branch in spec.parallel.branches.values() if spec.parallel is not None else ():
            self._flow(branch[0].step_id, items, keeps=keeps)
        if spec.map is not None:
            known = range(len(old.items)) if old is not None and old.items is not None else (NO_ITEM,)
            for number in known:
                self._flow(spec.map.steps[0].step_id, (*items, number), keeps=keeps)

    def _standing_before(self, index: int) -> Iterator[Step]:
        """Yield the steps whose results the run starts with; a container stands for all steps inside it."""
        for step in self._view.steps.values():
            place = self._places[spec_id(step.step_id)]
            own_list = place.container is None and place.handler_of is None
            if own_list and place.index < index and is_result_valid(self._view.job, step) and _done(step):
                yield step

    def _stands(self, step: Step) -> bool:
        return _done(step) and not is_voided(self._view.job, step)

    def _in_order(self, step_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(step_ids, key=lambda step_id: (self._places[spec_id(step_id)].index, items_of(step_id))))


def _done(step: Step) -> bool:
    skipped = step.status is StepStatus.SKIPPED and step.attempt.outcome is not None
    return (step.status is StepStatus.SUCCEEDED or skipped) and not step.undone


def _targets(place: Place, stood: Step | None) -> list[str]:
    """Return the steps that may follow success; for a decision step whose result stands, the one it chose."""
    decision = place.spec.decision
    if decision is None:
        return [place.spec.on_success or place.following]
    if stood is not None and isinstance(stood.result, dict) and "then" in stood.result:
        return [stood.result["then"]]
    return [*(choice.then for choice in decision.choices), decision.otherwise]
