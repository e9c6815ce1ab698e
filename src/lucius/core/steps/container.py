"""Parallel and map steps: branches or items start up to `max_parallel`, and are joined when all have ended."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.decide.values import evaluate, too_large
from lucius.core.model.records import ErrorInfo, Failure, Scope, Step, Token
from lucius.core.model.statuses import AttemptOutcome, StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.protocol.definition import FAIL, MAX_ITEMS, Parallel, Place, StepSpec, item_step_id, items_of, spec_id
from lucius.core.steps import task
from lucius.core.steps.new_step import new_step

_ROWS_PER_LAST_FENCE = 14  # the step, a closed container, the end of the job, a review item and a webhook


def begin(changes: Changeset, place: Place, token: Token) -> None:
    spec = place.spec
    step = new_step(changes, place, token, StepStatus.PROCESSING)
    try:
        items = _items(changes, spec, token.items)
    except ToolError as error:
        step_completion.fail_at_start(changes, step, ErrorInfo("MAP_ITEMS_INVALID", str(error)))
        return
    total = len(spec.parallel.branches) if spec.parallel is not None else len(items or ())
    step = replace(step, items=items)
    changes.start_step(step)
    changes.emit("STEP_STARTED", step, total=total)
    changes.scopes[step.step_id] = Scope(step.step_id, total, keeps=token.keeps, visit=step.visit)
    start_or_join(changes, step.step_id)


def _items(changes: Changeset, spec: StepSpec, items: tuple[int, ...]) -> list[Any] | None:
    """Return the items of a map; None for a parallel. Raises ToolError."""
    if spec.map is None:
        return None
    found = evaluate(changes, spec.map.items, spec.step_id, items)
    if not isinstance(found, list):
        raise ToolError(f"items must give a list: {spec.map.items}")
    if len(found) > MAX_ITEMS:
        raise ToolError(f"items gives {len(found)} items, and a map may have {MAX_ITEMS}")
    if size := too_large(found):
        raise ToolError(f"items gives {size} bytes; put what is large into the workspace and map over references")
    return found


def start_or_join(changes: Changeset, container: str) -> None:
    """Start branches or items up to the limit; join when none is left."""
    scope = changes.scopes[container]
    spec = changes.protocol.plan.places[spec_id(container)].spec
    while scope.next < scope.total and scope.live < _max_live(spec):
        changes.ready.append(_first_token(spec, container, scope))
        scope = replace(scope, next=scope.next + 1, live=scope.live + 1)
    changes.scopes[container] = scope
    if scope.live == 0:
        _join(changes, scope)


def _max_live(spec: StepSpec) -> int:
    return spec.map.max_parallel if spec.map is not None else len(_parallel(spec).branches)


def _parallel(spec: StepSpec) -> Parallel:
    assert spec.parallel is not None, "a container is a map or a parallel"
    return spec.parallel


def _first_token(spec: StepSpec, container: str, scope: Scope) -> Token:
    around = items_of(container)
    if spec.map is not None:
        items, steps = (*around, scope.next), spec.map.steps
    else:
        items, steps = around, list(_parallel(spec).branches.values())[scope.next]
    return Token(steps[0].step_id, container=container, items=items, keeps=scope.keeps)


def branch_succeeded(changes: Changeset, token: Token) -> None:
    scope = changes.scopes[_container(token)]
    changes.scopes[scope.container] = replace(scope, live=scope.live - 1, succeeded=scope.succeeded + 1)
    start_or_join(changes, scope.container)


def branch_failed(changes: Changeset, token: Token, failure: Failure) -> None:
    """Count the failure if the container collects failures; else mark the container as failing."""
    scope = changes.scopes[_container(token)]
    spec = changes.protocol.plan.places[spec_id(scope.container)].spec
    if (spec.map or _parallel(spec)).join == "collect":
        changes.scopes[scope.container] = replace(scope, live=scope.live - 1, failed=scope.failed + 1)
        if changes.job.failure == failure:
            changes.change_job(failure=None)  # collected: it is not the cause of later failures
        start_or_join(changes, scope.container)
        return
    changes.scopes[scope.container] = replace(scope, failing=failure)


def fail_container(changes: Changeset, scope: Scope) -> bool:
    """Fence the steps inside a failing container, then fail it; return False if the next decision has to continue."""
    assert scope.failing is not None, "only for what fails"
    changes.ready = [token for token in changes.ready if not _is_token_inside(changes, token, scope.container)]
    if not fence_up_to_limit(changes, scope.container, StepStatus.CANCELLED, AttemptOutcome.FENCED, None):
        return False
    step = changes.find(scope.container)
    assert step is not None, "a scope has a container"
    del changes.scopes[scope.container]
    step_completion.follow_failure(
        changes, step_completion.close_container(changes, step, StepStatus.FAILED_FINAL, scope.failing), scope.failing
    )
    return True


def _container(token: Token) -> str:
    assert token.container is not None, "only branches and items end in a container"
    return token.container


def fence_up_to_limit(
    changes: Changeset,
    container: str | None,
    status: StepStatus,
    outcome: AttemptOutcome,
    failure: Failure | None,
    *,
    all_at_once: bool = False,
) -> bool:
    """Fence steps inside a container, or with None in the whole job, up to the row limit of this decision.

    Returns True once nothing is left, including inner containers. With `all_at_once` the caller has checked that
    everything fits.
    """
    inner = [name for name in changes.scopes if container is None or is_inside(changes, name, container)]
    changes.require(inner)
    error, cause = (failure.error, failure.failure_class) if failure else (None, None)
    for step in changes.active_steps():
        if container is None or is_inside(changes, step.step_id, container):
            if not all_at_once and not changes.has_room(_ROWS_PER_LAST_FENCE):
                return False
            task.fence(changes, step, status, outcome, error, cause)
    for name in reversed(inner):
        if not all_at_once and not changes.has_room(_ROWS_PER_LAST_FENCE):
            return False
        nested = changes.find(name)
        del changes.scopes[name]
        if nested is not None:
            step_completion.close_container(changes, nested, status, failure)
    return True


def must_not_be_handed_over(changes: Changeset, step: Step) -> bool:
    """Return whether a step may not be handed over: the job is halted, or a container around the step is failing."""
    failing = [name for name, scope in changes.scopes.items() if scope.failing is not None]
    return changes.is_halted() or any(is_inside(changes, step.step_id, name) for name in failing)


def is_inside(changes: Changeset, step_id: str, container: str) -> bool:
    around, place = spec_id(container), changes.protocol.plan.places[spec_id(step_id)]
    prefix = items_of(container)
    while place.container is not None and place.container != around:
        place = changes.protocol.plan.places[place.container]
    return place.container == around and items_of(step_id)[: len(prefix)] == prefix


def _is_token_inside(changes: Changeset, token: Token, container: str) -> bool:
    around = token.container
    return around is not None and (around == container or is_inside(changes, around, container))


def _join(changes: Changeset, scope: Scope) -> None:
    """Complete a container with the results of its branches or items."""
    container, place = scope.container, changes.protocol.plan.places[spec_id(scope.container)]
    spec = place.spec
    branches = [_first_token(spec, container, replace(scope, next=n)) for n in range(scope.total)]
    last_steps = _last_steps(changes, spec, scope, branches)
    step = changes.find(container)
    assert step is not None, "a scope has a container"
    del changes.scopes[container]
    outcomes = [_outcome(changes, last) for last in last_steps]
    result: dict[str, Any] = {"total": scope.total, "succeeded": scope.succeeded, "failed": scope.failed}
    if spec.parallel is not None:
        result["branches"] = dict(zip(spec.parallel.branches, outcomes, strict=True))
    else:
        result["items"] = outcomes
    if size := too_large(result):
        result.pop("branches" if spec.parallel is not None else "items")
        result["omitted"] = f"{size} bytes are too many to pass on; read the results of the steps inside"
    step_completion.complete(changes, step, result)


def _last_steps(changes: Changeset, spec: StepSpec, scope: Scope, branches: list[Token]) -> list[Step | None]:
    """Return for each branch or item the step with which it ended."""
    bodies = [spec.map.steps] * len(branches) if spec.map is not None else list(_parallel(spec).branches.values())
    inside = [
        [item_step_id(inner.step_id, token.items) for inner in body]
        for token, body in zip(branches, bodies, strict=True)
    ]
    changes.require([scope.container, *(step_id for ids in inside for step_id in ids)])
    return [_last_step(changes, ids, scope.visit) for ids in inside]


def _last_step(changes: Changeset, step_ids: list[str], visit: int) -> Step | None:
    """Return the step with which its flow ended in this visit of the container."""
    found = (step for step in map(changes.find, step_ids) if step is not None and step.run_no == changes.job.run_no)
    return next((step for step in found if step.closes and step.closes_visit == visit), None)


def _outcome(changes: Changeset, last: Step | None) -> dict[str, Any]:
    """Return the outcome of a branch or item. Its flow, not its last step, decides whether it failed."""
    failed = last is not None and last.status is StepStatus.FAILED_FINAL
    if last is not None and last.closes == FAIL:
        error = last.last_error if failed and last.last_error else step_completion.flow_error(last)
        return {"status": str(StepStatus.FAILED_FINAL), "error": {"code": error.code, "message": error.message}}
    if last is not None and (failed or last.kind in step_completion.KINDS_WITHOUT_RESULT):
        last = changes.current(last.before) if last.before is not None else None
    if last is None:
        return {"status": str(StepStatus.SUCCEEDED), "result": None}
    return {"status": str(StepStatus.SUCCEEDED), "result": last.result, "artifact_refs": last.artifact_refs}
