"""Following tokens: what is ready starts, as far as one decision may go; what is left goes on in the next."""

from collections.abc import Callable

from lucius.core import approvals, compensation, containers, deadlines, decisions, flow, protocol, tasks, waits
from lucius.core.derived import is_free_to_go, is_idle, is_voided
from lucius.core.draft import MAX_ROWS, Draft
from lucius.core.model import AttemptOutcome, ErrorInfo, Failure, FailureClass, JobStatus, Step, StepStatus, Token
from lucius.core.protocol import FAIL, Place, at_items, items_of, spec_id
from lucius.core.steps import new_step, visit_of
from lucius.core.tools import ToolError

BEGIN: dict[str, Callable[[Draft, Place, Token], None]] = {
    "task": tasks.begin,
    "external_call": tasks.begin,
    "notify": tasks.begin,
    "decision": decisions.begin,
    "wait": waits.begin,
    "human_approval": approvals.begin,
    "parallel": containers.begin,
    "map": containers.begin,
}


def settle(draft: Draft) -> None:
    """Bring the job as far as this decision may: to an end, or to where something outside must happen."""
    if not draft.job.live:
        return
    if draft.job.stopping is not None:
        deadlines.go_on_stopping(draft)
    elif draft.cancelling:
        _go_on_cancelling(draft)
    while draft.may_go_on() and _take_a_turn(draft):
        pass
    _hold_or_release(draft)


def _take_a_turn(draft: Draft) -> bool:
    """Whether there may be another: not if nothing is left, nor if what is left does not fit."""
    failing = next((scope for scope in draft.scopes.values() if scope.failing is not None), None)
    undoing = draft.job.compensation
    if failing is not None:
        return containers.end_failing(draft, failing)
    if undoing is not None and not undoing.cleared:
        return compensation.clear(draft)
    if draft.ready:
        _follow(draft, draft.ready.pop(0))
        return True
    return False


def _hold_or_release(draft: Draft) -> None:
    """What waits in the outbox of a paused job stays there."""
    paused = draft.job.paused is not None
    for step in draft.active_steps() if draft.job.live else ():
        if is_free_to_go(step) and step.attempt.held is not paused and draft.has_room():
            tasks.hold(draft, step, held=paused)


def _go_on_cancelling(draft: Draft) -> None:
    """What is with a service may end; all else ends now."""
    compensation.drop_what_is_ready(draft)
    for step in draft.active_steps():
        if is_idle(step) and draft.has_room():
            tasks.fence(draft, step, StepStatus.CANCELLED, AttemptOutcome.WITHDRAWN, None)
    if not draft.job.active and containers.fence_some(draft, None, StepStatus.CANCELLED, AttemptOutcome.FENCED, None):
        compensation.end_cancelled(draft)


def _follow(draft: Draft, token: Token) -> None:
    match token.target:
        case protocol.SUCCEED:
            _flow_succeeded(draft, token)
        case protocol.FAIL:
            _flow_failed(draft, token)
        case flow.UNDO:
            compensation.require(draft, token)
        case flow.UNDONE:
            compensation.undone(draft, token)
        case flow.NOT_UNDONE:
            compensation.not_undone(draft, token)
        case _:
            _begin(draft, token)


def _begin(draft: Draft, token: Token) -> None:
    place, step_id = draft.protocol.plan.places[token.target], at_items(token.target, token.items)
    if not draft.has(step_id):
        draft.require(_soon(draft, token))
    old = draft.find(step_id)
    if token.keeps and not token.anew and old is not None and _stands(draft, old):
        _keep(draft, old)
        return
    if visit_of(draft, old, place) > place.spec.max_visits:
        _over_visited(draft, token, place)
        return
    BEGIN[place.spec.kind](draft, place, token)


def _stands(draft: Draft, old: Step) -> bool:
    """A step that was done in an earlier run and need not be paid for again."""
    done = old.status is StepStatus.SUCCEEDED or (old.status is StepStatus.SKIPPED and old.attempt.outcome is not None)
    failed = flow.chosen(draft, old) == FAIL
    earlier = old.run_no < draft.job.run_no and not is_voided(draft.job, old)
    return done and not failed and not old.undone and earlier


def _soon(draft: Draft, token: Token) -> list[str]:
    """What this decision is going to look at, to be loaded at once: all that is ready, and what may then be kept."""
    plan = draft.protocol.plan
    ready = [other for other in (token, *draft.ready) if other.target in plan.places]
    names = [(name, t.items) for t in ready for name in (plan.beside(t.target) if t.keeps else (t.target,))]
    return [at_items(name, items) for name, items in (*names, *_items_to_come(draft, token))]


def _items_to_come(draft: Draft, token: Token) -> list[tuple[str, tuple[int, ...]]]:
    """Of a map that goes on where an earlier run failed: most of its items stand, and many fit into one decision."""
    scope = draft.scopes.get(token.container or "")
    if scope is None or not token.keeps or draft.protocol.plan.places[spec_id(scope.container)].spec.map is None:
        return []
    body = draft.protocol.plan.beside(token.target)
    numbers = range(scope.next, min(scope.total, scope.next + MAX_ROWS // len(body)))
    return [(name, (*items_of(scope.container), number)) for number in numbers for name in body]


def _keep(draft: Draft, old: Step) -> None:
    kept = draft.change_step(old, run_no=draft.job.run_no, visit=1, closes=None)
    flow.succeeded(draft, kept, flow.chosen(draft, kept), keeps=True)


def _over_visited(draft: Draft, token: Token, place: Place) -> None:
    limit = place.spec.max_visits
    error = ErrorInfo("VISIT_LIMIT", f"step {place.spec.step_id} would be visited more than {limit} times in one run")
    flow.fail_at_start(draft, new_step(draft, place, token, StepStatus.FAILED_FINAL), error, FAIL)


def _flow_succeeded(draft: Draft, token: Token) -> None:
    if token.container is not None:
        containers.branch_succeeded(draft, token)
        return
    if failure := _misfit(draft, token.before):
        flow.end_job(draft, JobStatus.FAILED_FINAL, failure)
        return
    draft.change_job(output_step_id=token.before)
    flow.end_job(draft, JobStatus.SUCCEEDED)


def _misfit(draft: Draft, step_id: str | None) -> Failure | None:
    """Why what the job came to is not what its protocol promises."""
    schema = draft.protocol.output_schema
    if not schema:
        return None
    last = draft.current(step_id) if step_id is not None else None
    try:
        faults = draft.env.tools.faults(schema, last.result if last is not None else None)
    except ToolError as error:
        faults = [str(error)]
    if not faults:
        return None
    message = f"the job's result does not fit the protocol's output_schema: {faults[0]}"
    return Failure(step_id, ErrorInfo("OUTPUT_INVALID", message), FailureClass.NON_RETRYABLE)


def _flow_failed(draft: Draft, token: Token) -> None:
    failure = token.failure or draft.job.failure or Failure(None, ErrorInfo("FAILED", "the protocol says so"))
    if token.container is not None:
        containers.branch_failed(draft, token, failure)
    else:
        flow.end_job(draft, JobStatus.FAILED_FINAL, failure)
