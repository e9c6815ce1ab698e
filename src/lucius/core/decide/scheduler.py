"""Starts ready steps by following tokens, up to the row limit of a decision; the rest continues in the next one."""

from collections.abc import Callable

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import MAX_DECISION_ROWS, Changeset
from lucius.core.decide.derived_state import awaits_handover, is_idle, is_voided
from lucius.core.model.records import ErrorInfo, Failure, Step, Token
from lucius.core.model.statuses import AttemptOutcome, FailureClass, JobStatus, StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.policies import compensation, deadlines
from lucius.core.protocol import definition
from lucius.core.protocol.definition import FAIL, Place, item_step_id, items_of, spec_id
from lucius.core.steps import container, decision, human_approval, task, wait
from lucius.core.steps.new_step import new_step, visit_of

BEGIN: dict[str, Callable[[Changeset, Place, Token], None]] = {
    "task": task.begin,
    "external_call": task.begin,
    "notify": task.begin,
    "decision": decision.begin,
    "wait": wait.begin,
    "human_approval": human_approval.begin,
    "parallel": container.begin,
    "map": container.begin,
}


def advance(changes: Changeset) -> None:
    """Advance the job until it ends, waits for an outside event, or reaches the row limit of a decision."""
    if not changes.job.live:
        return
    if changes.job.stopping is not None:
        deadlines.continue_stopping(changes)
    elif changes.cancelling:
        _continue_cancelling(changes)
    while changes.can_start_tokens() and _follow_next_token(changes):
        pass
    _hold_or_release(changes)


def _follow_next_token(changes: Changeset) -> bool:
    """Follow one token; return False if none is left, or if the rest must wait for the next decision."""
    failing = next((scope for scope in changes.scopes.values() if scope.failing is not None), None)
    undoing = changes.job.compensation
    if failing is not None:
        return container.fail_container(changes, failing)
    if undoing is not None and not undoing.cleared:
        return compensation.fence_other_steps(changes)
    if changes.ready:
        _follow(changes, changes.ready.pop(0))
        return True
    return False


def _hold_or_release(changes: Changeset) -> None:
    """Hold the outbox rows of a paused job; release those of a resumed one."""
    paused = changes.job.paused is not None
    for step in changes.active_steps() if changes.job.live else ():
        if awaits_handover(step) and step.attempt.held is not paused and changes.has_room():
            task.hold(changes, step, held=paused)


def _continue_cancelling(changes: Changeset) -> None:
    """Stop all steps of a cancelled job except those with a service or on the way; end the job once none is active."""
    compensation.drop_ready_tokens(changes)
    for step in changes.active_steps():
        if is_idle(step) and changes.has_room():
            task.fence(changes, step, StepStatus.CANCELLED, AttemptOutcome.WITHDRAWN, None)
    if not changes.job.active and container.fence_up_to_limit(
        changes, None, StepStatus.CANCELLED, AttemptOutcome.FENCED, None
    ):
        compensation.end_cancelled(changes)


def _follow(changes: Changeset, token: Token) -> None:
    match token.target:
        case definition.SUCCEED:
            _flow_succeeded(changes, token)
        case definition.FAIL:
            _flow_failed(changes, token)
        case step_completion.UNDO:
            compensation.begin(changes, token)
        case step_completion.UNDONE:
            compensation.handler_succeeded(changes, token)
        case step_completion.NOT_UNDONE:
            compensation.handler_failed(changes, token)
        case _:
            _begin(changes, token)


def _begin(changes: Changeset, token: Token) -> None:
    place, step_id = changes.protocol.plan.places[token.target], item_step_id(token.target, token.items)
    if not changes.has(step_id):
        changes.require(_steps_to_load(changes, token))
    old = changes.find(step_id)
    if token.keeps and not token.anew and old is not None and _result_stands(changes, old):
        _keep_result(changes, old)
        return
    if visit_of(changes, old, place) > place.spec.max_visits:
        _fail_at_visit_limit(changes, token, place)
        return
    BEGIN[place.spec.kind](changes, place, token)


def _result_stands(changes: Changeset, old: Step) -> bool:
    """Return whether a step succeeded in an earlier run and need not be repeated."""
    done = old.status is StepStatus.SUCCEEDED or (old.status is StepStatus.SKIPPED and old.attempt.outcome is not None)
    failed = step_completion.chosen_target(changes, old) == FAIL
    earlier = old.run_no < changes.job.run_no and not is_voided(changes.job, old)
    return done and not failed and not old.undone and earlier


def _steps_to_load(changes: Changeset, token: Token) -> list[str]:
    """Return the steps that this decision will read, so that they are loaded together."""
    plan = changes.protocol.plan
    ready = [other for other in (token, *changes.ready) if other.target in plan.places]
    names = [(name, t.items) for t in ready for name in (plan.siblings(t.target) if t.keeps else (t.target,))]
    return [item_step_id(name, items) for name, items in (*names, *_steps_of_next_items(changes, token))]


def _steps_of_next_items(changes: Changeset, token: Token) -> list[tuple[str, tuple[int, ...]]]:
    """Return the steps of the next items of a map that continues after a failed run.

    Most of their results are kept, and many fit into one decision.
    """
    scope = changes.scopes.get(token.container or "")
    if scope is None or not token.keeps or changes.protocol.plan.places[spec_id(scope.container)].spec.map is None:
        return []
    body = changes.protocol.plan.siblings(token.target)
    numbers = range(scope.next, min(scope.total, scope.next + MAX_DECISION_ROWS // len(body)))
    return [(name, (*items_of(scope.container), number)) for number in numbers for name in body]


def _keep_result(changes: Changeset, old: Step) -> None:
    kept = changes.change_step(old, run_no=changes.job.run_no, visit=1, closes=None)
    step_completion.follow_success(changes, kept, step_completion.chosen_target(changes, kept), keeps=True)


def _fail_at_visit_limit(changes: Changeset, token: Token, place: Place) -> None:
    limit = place.spec.max_visits
    error = ErrorInfo("VISIT_LIMIT", f"step {place.spec.step_id} would be visited more than {limit} times in one run")
    step_completion.fail_at_start(changes, new_step(changes, place, token, StepStatus.FAILED_FINAL), error, FAIL)


def _flow_succeeded(changes: Changeset, token: Token) -> None:
    if token.container is not None:
        container.branch_succeeded(changes, token)
        return
    if failure := _output_failure(changes, token.before):
        compensation.end_failed(changes, failure)
        return
    changes.change_job(output_step_id=token.before)
    step_completion.end_job(changes, JobStatus.SUCCEEDED)


def _output_failure(changes: Changeset, step_id: str | None) -> Failure | None:
    """Return why the job's result does not fit the protocol's output_schema, or None if it does."""
    schema = changes.protocol.output_schema
    if not schema:
        return None
    last = changes.current(step_id) if step_id is not None else None
    try:
        faults = changes.env.tools.faults(schema, last.result if last is not None else None)
    except ToolError as error:
        faults = [str(error)]
    if not faults:
        return None
    message = f"the job's result does not fit the protocol's output_schema: {faults[0]}"
    return Failure(step_id, ErrorInfo("OUTPUT_INVALID", message), FailureClass.NON_RETRYABLE)


def _flow_failed(changes: Changeset, token: Token) -> None:
    failure = token.failure or changes.job.failure or Failure(None, ErrorInfo("FAILED", "the protocol says so"))
    if token.container is not None:
        container.branch_failed(changes, token, failure)
    else:
        compensation.end_failed(changes, failure)
