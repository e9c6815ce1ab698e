"""Parallel branches and maps: started as room frees, joined when all have ended."""

from typing import Any

from msgspec.structs import replace

from lucius.core import flow, tasks
from lucius.core.draft import Draft
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    Failure,
    Scope,
    Step,
    StepStatus,
    Token,
)
from lucius.core.protocol import FAIL, MAX_ITEMS, Parallel, Place, StepSpec, at_items, items_of, spec_id
from lucius.core.steps import new_step
from lucius.core.tools import ToolError
from lucius.core.values import evaluate, too_large

_ROWS_OF_THE_LAST = 14  # fencing it, and what follows: a container closes, the job ends, a person and a client are told


def begin(draft: Draft, place: Place, token: Token) -> None:
    spec = place.spec
    step = new_step(draft, place, token, StepStatus.PROCESSING)
    try:
        items = _items(draft, spec, token.items)
    except ToolError as error:
        flow.fail_at_start(draft, step, ErrorInfo("MAP_ITEMS_INVALID", str(error)))
        return
    total = len(spec.parallel.branches) if spec.parallel is not None else len(items or ())
    step = replace(step, items=items)
    draft.start_step(step)
    draft.emit("STEP_STARTED", step, total=total)
    draft.scopes[step.step_id] = Scope(step.step_id, total, keeps=token.keeps, visit=step.visit)
    proceed(draft, step.step_id)


def _items(draft: Draft, spec: StepSpec, items: tuple[int, ...]) -> list[Any] | None:
    """Raises ToolError."""
    if spec.map is None:
        return None
    found = evaluate(draft, spec.map.items, spec.step_id, items)
    if not isinstance(found, list):
        raise ToolError(f"items must give a list: {spec.map.items}")
    if len(found) > MAX_ITEMS:
        raise ToolError(f"items gives {len(found)} items, and a map may have {MAX_ITEMS}")
    if size := too_large(found):
        raise ToolError(f"items gives {size} bytes; put what is large into the workspace and map over references")
    return found


def proceed(draft: Draft, container: str) -> None:
    """Start what there is room for; join when nothing is left."""
    scope = draft.scopes[container]
    spec = draft.protocol.plan.places[spec_id(container)].spec
    while scope.next < scope.total and scope.live < _room(spec):
        draft.ready.append(_first(spec, container, scope))
        scope = replace(scope, next=scope.next + 1, live=scope.live + 1)
    draft.scopes[container] = scope
    if scope.live == 0:
        _join(draft, scope)


def _room(spec: StepSpec) -> int:
    return spec.map.max_parallel if spec.map is not None else len(_parallel(spec).branches)


def _parallel(spec: StepSpec) -> Parallel:
    assert spec.parallel is not None, "a container is a map or a parallel"
    return spec.parallel


def _first(spec: StepSpec, container: str, scope: Scope) -> Token:
    around = items_of(container)
    if spec.map is not None:
        items, steps = (*around, scope.next), spec.map.steps
    else:
        items, steps = around, list(_parallel(spec).branches.values())[scope.next]
    return Token(steps[0].step_id, container=container, items=items, keeps=scope.keeps)


def branch_succeeded(draft: Draft, token: Token) -> None:
    scope = draft.scopes[_container(token)]
    draft.scopes[scope.container] = replace(scope, live=scope.live - 1, succeeded=scope.succeeded + 1)
    proceed(draft, scope.container)


def branch_failed(draft: Draft, token: Token, failure: Failure) -> None:
    """Collected, or the end of the container and of all that runs in it."""
    scope = draft.scopes[_container(token)]
    spec = draft.protocol.plan.places[spec_id(scope.container)].spec
    if (spec.map or _parallel(spec)).join == "collect":
        draft.scopes[scope.container] = replace(scope, live=scope.live - 1, failed=scope.failed + 1)
        if draft.job.failure == failure:
            draft.change_job(failure=None)  # collected: what fails later fails for a reason of its own
        proceed(draft, scope.container)
        return
    draft.scopes[scope.container] = replace(scope, failing=failure)


def end_failing(draft: Draft, scope: Scope) -> bool:
    """Fence what runs inside; once nothing does, the container has failed. False if that has to wait."""
    assert scope.failing is not None, "only for what fails"
    draft.ready = [token for token in draft.ready if not _leads_inside(draft, token, scope.container)]
    if not fence_some(draft, scope.container, StepStatus.CANCELLED, AttemptOutcome.FENCED, None):
        return False
    step = draft.find(scope.container)
    assert step is not None, "a scope has a container"
    del draft.scopes[scope.container]
    flow.failed(draft, flow.close_container(draft, step, StepStatus.FAILED_FINAL, scope.failing), scope.failing)
    return True


def _container(token: Token) -> str:
    assert token.container is not None, "only branches and items end in a container"
    return token.container


def fence_some(
    draft: Draft,
    container: str | None,
    status: StepStatus,
    outcome: AttemptOutcome,
    failure: Failure | None,
    *,
    all_at_once: bool = False,
) -> bool:
    """Fence what runs inside a container, or with None in the whole job, as far as this decision may go.

    True once nothing is left, containers inside included. `all_at_once` is for who knows that it fits.
    """
    inner = [name for name in draft.scopes if container is None or is_inside(draft, name, container)]
    draft.require(inner)
    error, cause = (failure.error, failure.failure_class) if failure else (None, None)
    for step in draft.active_steps():
        if container is None or is_inside(draft, step.step_id, container):
            if not all_at_once and not draft.has_room(_ROWS_OF_THE_LAST):
                return False
            tasks.fence(draft, step, status, outcome, error, cause)
    for name in reversed(inner):
        if not all_at_once and not draft.has_room(_ROWS_OF_THE_LAST):
            return False
        nested = draft.find(name)
        del draft.scopes[name]
        if nested is not None:
            flow.close_container(draft, nested, status, failure)
    return True


def is_doomed(draft: Draft, step: Step) -> bool:
    """Nothing of it may be begun: the job stands still, or what is around the step has failed."""
    failing = [name for name, scope in draft.scopes.items() if scope.failing is not None]
    return draft.stands_still() or any(is_inside(draft, step.step_id, name) for name in failing)


def is_inside(draft: Draft, step_id: str, container: str) -> bool:
    around, place = spec_id(container), draft.protocol.plan.places[spec_id(step_id)]
    prefix = items_of(container)
    while place.container is not None and place.container != around:
        place = draft.protocol.plan.places[place.container]
    return place.container == around and items_of(step_id)[: len(prefix)] == prefix


def _leads_inside(draft: Draft, token: Token, container: str) -> bool:
    around = token.container
    return around is not None and (around == container or is_inside(draft, around, container))


def _join(draft: Draft, scope: Scope) -> None:
    """Everything inside has ended: its results become the container's."""
    container, place = scope.container, draft.protocol.plan.places[spec_id(scope.container)]
    spec = place.spec
    branches = [_first(spec, container, replace(scope, next=n)) for n in range(scope.total)]
    lasts = _last_steps(draft, spec, scope, branches)
    step = draft.find(container)
    assert step is not None, "a scope has a container"
    del draft.scopes[container]
    outcomes = [_outcome(draft, last) for last in lasts]
    result: dict[str, Any] = {"total": scope.total, "succeeded": scope.succeeded, "failed": scope.failed}
    if spec.parallel is not None:
        result["branches"] = dict(zip(spec.parallel.branches, outcomes, strict=True))
    else:
        result["items"] = outcomes
    if size := too_large(result):
        result.pop("branches" if spec.parallel is not None else "items")
        result["omitted"] = f"{size} bytes are too many to pass on; read the results of the steps inside"
    flow.complete(draft, step, result)


def _last_steps(draft: Draft, spec: StepSpec, scope: Scope, branches: list[Token]) -> list[Step | None]:
    """For each branch or item the step that it ended with."""
    bodies = [spec.map.steps] * len(branches) if spec.map is not None else list(_parallel(spec).branches.values())
    inside = [
        [at_items(inner.step_id, token.items) for inner in body] for token, body in zip(branches, bodies, strict=True)
    ]
    draft.require([scope.container, *(step_id for ids in inside for step_id in ids)])
    return [_last(draft, ids, scope.visit) for ids in inside]


def _last(draft: Draft, step_ids: list[str], visit: int) -> Step | None:
    """The one that closed its flow in this visit of the container."""
    found = (step for step in map(draft.find, step_ids) if step is not None and step.run_no == draft.job.run_no)
    return next((step for step in found if step.closes and step.closes_visit == visit), None)


def _outcome(draft: Draft, last: Step | None) -> dict[str, Any]:
    """What a branch or item came to. Its flow says whether it failed, which its last step may have done or not."""
    failed = last is not None and last.status is StepStatus.FAILED_FINAL
    if last is not None and last.closes == FAIL:
        error = last.last_error if failed and last.last_error else flow.said_so(last)
        return {"status": str(StepStatus.FAILED_FINAL), "error": {"code": error.code, "message": error.message}}
    if last is not None and (failed or last.kind in flow.SAYS_NOTHING):
        last = draft.current(last.before) if last.before is not None else None
    if last is None:
        return {"status": str(StepStatus.SUCCEEDED), "result": None}
    return {"status": str(StepStatus.SUCCEEDED), "result": last.result, "artifact_refs": last.artifact_refs}
