"""Undoing what was done, the last first, when a step left a side effect that must not stay and can't be repeated."""

from msgspec.structs import replace

from lucius.core import containers, flow, reviews
from lucius.core.draft import Draft
from lucius.core.model import (
    AttemptOutcome,
    Compensation,
    Failure,
    JobStatus,
    Pause,
    ReviewKind,
    ReviewStatus,
    Step,
    StepStatus,
    Token,
)
from lucius.core.protocol import FAIL, spec_id

ENGINE = "engine"


def require(draft: Draft, token: Token) -> None:
    """A step failed that may have left a side effect: by policy it is undone at once, or a person decides."""
    ask(draft, token)
    if draft.protocol.policies.compensation == "auto":
        start(draft, ENGINE)
    else:
        hold(draft)


def ask(draft: Draft, token: Token) -> None:
    """Show it to a person, and let the step's own handler be the first to run, then those of containers around it."""
    step_id, failure = token.before, token.failure
    assert step_id is not None, "a step asks for compensation"
    assert failure is not None, "because it failed"
    if not token.asked or draft.job.review is None:  # who was asked may have closed the item, and the job still waits
        reviews.open_for_job(draft, ReviewKind.COMPENSATION, failure, failure.attempt_no)
    plan = draft.protocol.plan
    begun = [*reversed(plan.around(step_id)), step_id]
    undoable = [name for name in begun if plan.places[spec_id(name)].spec.compensation is not None]
    others = tuple(name for name in draft.job.compensable if name not in undoable)
    draft.change_job(failure=failure, compensable=(*others, *undoable))


def drop_what_is_ready(draft: Draft) -> None:
    """The job goes nowhere from here, but a new run can start from where it would have gone on; and what may have
    left a side effect is still shown to a person."""
    for token in draft.ready:
        if token.target == flow.UNDO:
            ask(draft, token)
        elif token.target == flow.UNDONE:
            _mark_undone(draft, token)
        elif _can_be_resumed(draft, token):
            draft.change_job(resume_from=token)
    draft.ready.clear()


def _can_be_resumed(draft: Draft, token: Token) -> bool:
    place = draft.protocol.plan.places.get(token.target)
    undoing = token.target == flow.NOT_UNDONE or (place is not None and place.handler_of is not None)
    return token.container is None and token.target != FAIL and not undoing


def end_cancelled(draft: Draft, failure: Failure | None = None) -> None:
    """A cancelled job ends once nothing of it is with a service any more, and what its protocol says is undone."""
    if draft.protocol.policies.compensate_on_cancel and draft.job.compensable:
        start(draft, ENGINE)
    else:
        flow.end_job(draft, JobStatus.CANCELLED, failure)


def hold(draft: Draft) -> None:
    """Nothing goes on until a person has acted on the review item."""
    draft.change_job(paused=Pause(ENGINE, draft.now, "a person must decide about compensation", on_review=True))
    draft.emit("JOB_HELD", by=ENGINE)


def start(draft: Draft, by: str, reason: str = "") -> None:
    """Fence what still runs, then undo what was completed. Without handlers there is nothing to undo."""
    drop_what_is_ready(draft)
    todo = tuple(reversed(draft.job.compensable))
    draft.change_job(
        compensation=Compensation(todo, draft.now, by, draft.job.failure, reason=reason),
        deadline=None,
        compensable=(),
        paused=None,
        stopping=None,
        resume_from=None,
    )
    draft.emit("COMPENSATION_STARTED", by=by, steps=list(todo))


def clear(draft: Draft) -> bool:
    """Nothing else may run while handlers do. False if something still has to be stopped."""
    under_way = draft.job.compensation
    assert under_way is not None, "it was started"
    if not containers.fence_some(draft, None, StepStatus.CANCELLED, AttemptOutcome.FENCED, None):
        return False
    drop_what_is_ready(draft)
    todo = (*reversed(draft.job.compensable), *under_way.todo)  # some of it may have been done just now
    draft.change_job(compensation=replace(under_way, todo=todo, cleared=True), compensable=(), resume_from=None)
    _go_on(draft)
    return True


def is_halted_at(draft: Draft, handler: Step) -> bool:
    """Whether this is the handler that failed, and a person is asked about it."""
    halted, paused = draft.job.compensation, draft.job.paused
    held = paused is not None and paused.on_review
    return held and halted is not None and halted.failed == flow.place_of(draft, handler).handler_of


def resume(draft: Draft, by: str, reason: str, done: Step | None = None) -> None:
    """Try the handler again that failed, or go on after it if it is done by now."""
    halted = draft.job.compensation
    assert halted is not None, "there is something to resume"
    draft.change_job(compensation=replace(halted, failed=None, by=by, reason=reason), paused=None)
    draft.emit("COMPENSATION_RESUMED", by=by, reason=reason, steps=list(halted.todo))
    if done is not None:
        draft.ready.append(Token(flow.UNDONE, before=done.step_id))
    else:
        _go_on(draft)


def _go_on(draft: Draft) -> None:
    under_way = draft.job.compensation
    assert under_way is not None, "it was started"
    if not under_way.todo:
        _finish(draft, under_way)
        return
    handler = draft.protocol.plan.places[spec_id(under_way.todo[0])].spec.compensation
    assert handler is not None, "only steps with a handler are compensable"
    draft.ready.append(Token(handler.step_id))


def undone(draft: Draft, token: Token) -> None:
    """A handler succeeded."""
    _mark_undone(draft, token)
    _go_on(draft)


def _mark_undone(draft: Draft, token: Token) -> None:
    """Also in a job that is being cancelled, for a handler that was with a service when somebody asked for it."""
    job, plan = draft.job, draft.protocol.plan
    step_id = plan.places[token.before or ""].handler_of
    assert step_id is not None, "only handlers undo"
    void(draft, step_id, *plan.around(step_id))
    if (under_way := job.compensation) is not None:
        todo = tuple(name for name in under_way.todo if name != step_id)
        draft.change_job(compensation=replace(under_way, todo=todo, done=(*under_way.done, step_id)))
    left = tuple(name for name in job.compensable if name != step_id)
    draft.change_job(undone=(*job.undone, step_id), compensable=left)
    draft.emit("STEP_COMPENSATED", step=None, of=step_id, handler=token.before)


def void(draft: Draft, *step_ids: str) -> None:
    """What these came to no longer holds: a new run does them again."""
    draft.require(step_ids)
    for step in map(draft.find, step_ids):
        if step is not None and not step.undone:
            draft.change_step(step, undone=True)


def not_undone(draft: Draft, token: Token) -> None:
    """A handler failed for good: half undone is a state that only a person can judge."""
    under_way = draft.job.compensation
    assert under_way is not None, "handlers run in a compensation only"
    assert token.failure is not None, "this one failed"
    draft.change_job(compensation=replace(under_way, failed=under_way.todo[0]))
    draft.emit("COMPENSATION_HALTED", handler=token.before, steps=list(under_way.todo))
    reviews.open_for_job(draft, ReviewKind.COMPENSATION, token.failure, token.failure.attempt_no)
    hold(draft)


def _finish(draft: Draft, under_way: Compensation) -> None:
    draft.change_job(compensation=replace(under_way, completed_at=draft.now))
    draft.emit("COMPENSATION_COMPLETED", steps=list(under_way.done))
    if draft.job.status is JobStatus.CANCELLING:
        flow.end_job(draft, JobStatus.CANCELLED)
    else:
        end_as_failed(draft)
    if under_way.by != ENGINE:
        reviews.close_held(draft, ReviewStatus.RESOLVED, under_way.by, under_way.reason, "compensate")


def end_as_failed(draft: Draft) -> None:
    """With the failure that led here."""
    failure = draft.job.failure
    assert failure is not None, "something failed"
    flow.end_job(draft, JobStatus.FAILED_FINAL, failure)
