"""What a new run, or a compensation, would do: told from the decision that opens it and the order of the protocol."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from lucius.core.decision import Decision, JobView
from lucius.core.derived import counts, is_voided
from lucius.core.model import Event, Step, StepStatus
from lucius.core.protocol import CONTAINERS, Place, StepSpec, at_items, items_of, spec_id

NO_ITEM = -1  # stands for the items of a map that was never begun: how many there will be is not known


class Effect(Struct, frozen=True):
    """Steps by their ids, in order. `again` ran before, `first` did not; `kept` stands, `undone` is what will be."""

    again: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()


def effect_of(view: JobView, decision: Decision, from_step: str | None = None) -> Effect:
    """`view` is the job with every step before the decision; `from_step` is where a retry was asked to start.

    Supposes that every step succeeds, and where the protocol decides, that every way may be taken.
    """
    events = {event.type: event for event in decision.events}
    for undo in (events.get("COMPENSATION_STARTED"), events.get("COMPENSATION_RESUMED")):
        if undo is not None:
            return Effect(undone=tuple(undo.data["steps"]))
    settled = events.get("STEP_SKIPPED") or events.get("RESULT_ADOPTED")
    run = events.get("RUN_STARTED")
    if run is None:
        return Effect(kept=(settled.step_id,)) if settled and settled.step_id else Effect()
    resumed = view.job.resume_from if settled is None and from_step is None else None
    keeps = resumed.keeps if resumed is not None else from_step is None
    return _Walk(view, settled, anew=resumed is None).along(run.data["from_step"], keeps)


class _Walk:
    """From a step of the protocol's own list along every way that success may take, into containers too."""

    def __init__(self, view: JobView, settled: Event | None, *, anew: bool) -> None:
        self._view = view
        self._places = view.protocol.plan.places
        self._settled = settled.step_id if settled else None
        self._anew = anew
        self._again: set[str] = set()
        self._first: set[str] = set()
        self._kept: set[str] = set()

    def along(self, start: str, keeps: bool) -> Effect:
        """`anew`, the first step runs again whatever came of it."""
        self._flow(start, (), keeps=keeps, anew=self._anew)
        before = self._places[start].index if start in self._places else len(self._places)
        self._kept |= {step.step_id for step in self._standing_before(before)} - self._again
        return Effect(*(self._in_order(found) for found in (self._again, self._first, self._kept)))

    def _flow(self, start: str, items: tuple[int, ...], *, keeps: bool, anew: bool = False) -> None:
        """The steps of one list, for these map items."""
        seen: set[str] = set()
        ahead = [(start, keeps)]
        while ahead:
            name, keeps = ahead.pop()
            if name in self._places and name not in seen:
                seen.add(name)
                stays = keeps and not (anew and name == start)
                ahead += self._visit(self._places[name], items, keeps=keeps, stays=stays)

    def _visit(self, place: Place, items: tuple[int, ...], *, keeps: bool, stays: bool) -> Iterator[tuple[str, bool]]:
        """Where it leads, and whether what was done there may stand. `stays` if this one may."""
        spec, step_id = place.spec, at_items(place.spec.step_id, items)
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
        """What the run starts with. A container stands for all that is inside it."""
        for step in self._view.steps.values():
            place = self._places[spec_id(step.step_id)]
            own_list = place.container is None and place.handler_of is None
            if own_list and place.index < index and counts(self._view.job, step) and _done(step):
                yield step

    def _stands(self, step: Step) -> bool:
        return _done(step) and not is_voided(self._view.job, step)

    def _in_order(self, step_ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(step_ids, key=lambda step_id: (self._places[spec_id(step_id)].index, items_of(step_id))))


def _done(step: Step) -> bool:
    skipped = step.status is StepStatus.SKIPPED and step.attempt.outcome is not None
    return (step.status is StepStatus.SUCCEEDED or skipped) and not step.undone


def _targets(place: Place, stood: Step | None) -> list[str]:
    """Where it goes on after success; for a decision that stands, where it went."""
    decision = place.spec.decision
    if decision is None:
        return [place.spec.on_success or place.following]
    if stood is not None and isinstance(stood.result, dict) and "then" in stood.result:
        return [stood.result["then"]]
    return [*(choice.then for choice in decision.choices), decision.otherwise]
