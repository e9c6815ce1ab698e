"""Compensation: runs the handlers of completed steps in reverse order."""

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.model.records import Compensation, ErrorInfo, Failure, JobPause, Step, Token
from lucius.core.model.statuses import AttemptOutcome, FailureClass, JobStatus, ReviewKind, ReviewStatus, StepStatus
from lucius.core.policies import reviews
from lucius.core.protocol.definition import FAIL, spec_id
from lucius.core.steps import container, task

ENGINE = "engine"
MAX_NAMED_STEPS = 20


def begin(changes: Changeset, token: Token) -> None:
    """Handle a failed step that may have left a side effect: compensate or hold for review, as the policy says."""
    open_review(changes, token)
    _follow_policy(changes)


def open_review(changes: Changeset, token: Token) -> None:
    """Open a review item, and make the step's own handler the first to run, then those of containers around it."""
    step_id, failure = token.before, token.failure
    assert step_id is not None, "a token of compensation names its step"
    assert failure is not None, "and the failure that led to it"
    if not token.asked or changes.job.review is None:  # the item may be closed while the token is still ready
        _open_item(changes, step_id, failure)
    changes.change_job(failure=failure)
    task.record_effect(changes, step_id)


def _open_item(changes: Changeset, step_id: str, failure: Failure) -> None:
    """Open an item beside the job's own if that one asks about the effect of another step, else the job's own."""
    step, own = changes.find(step_id), changes.job.review
    if step is not None and own is not None and own.step_id != step_id and _has_open_review(changes):
        reviews.open_for_step(changes, step, failure)
    else:
        reviews.open_for_job(changes, ReviewKind.COMPENSATION, failure, failure.attempt_no)


def open_review_for_uncompensated(changes: Changeset, by: str) -> None:
    """Open or extend a review item for the steps that a cancelled compensation has not undone."""
    job = changes.job
    held = job.paused is not None and job.paused.on_review  # an item asks about it already
    if job.compensation is None or held or changes.protocol.policies.compensate_on_cancel:
        return
    places = changes.protocol.plan.places
    undone = {
        places[token.before or ""].handler_of for token in changes.ready if token.target == step_completion.UNDONE
    }
    if left := tuple(name for name in (*reversed(job.compensable), *job.compensation.todo) if name not in undone):
        message = f"cancelled by {by} during the compensation; not undone by then: {_named(left)}"
        failure = Failure(left[0], ErrorInfo("CANCELLED", message), FailureClass.COMPENSATION_REQUIRED)
        reviews.open_or_append(changes, ReviewKind.COMPENSATION, failure)


def _named(step_ids: tuple[str, ...]) -> str:
    more = len(step_ids) - MAX_NAMED_STEPS
    return ", ".join(step_ids[:MAX_NAMED_STEPS]) + (f" and {more} more" if more > 0 else "")


def drop_ready_tokens(changes: Changeset) -> None:
    """Drop the ready tokens of a job that stops, keeping the one from which a new run can continue.

    A step that may have left a side effect still gets its review item.
    """
    for token in changes.ready:
        if token.target == step_completion.UNDO:
            open_review(changes, token)
        elif token.target == step_completion.UNDONE:
            _record_undone(changes, token)
        elif _can_be_resumed(changes, token):
            changes.change_job(resume_from=token)
    changes.ready.clear()


def _can_be_resumed(changes: Changeset, token: Token) -> bool:
    place = changes.protocol.plan.places.get(token.target)
    undoing = token.target == step_completion.NOT_UNDONE or (place is not None and place.handler_of is not None)
    return token.container is None and token.target != FAIL and not undoing


def end_cancelled(changes: Changeset, failure: Failure | None = None) -> None:
    """End a cancelled job with nothing left at a service; run handlers first if `compensate_on_cancel` is set."""
    if changes.protocol.policies.compensate_on_cancel and changes.job.compensable and not changes.job.dismissed:
        changes.change_job(failure=failure or changes.job.failure)
        start(changes, ENGINE)
    else:
        step_completion.end_job(changes, JobStatus.CANCELLED, failure)


def end_failed(changes: Changeset, failure: Failure | None) -> None:
    """End a job that failed for good; run the handlers of its completed steps first if the protocol says so.

    If a stopped step may have taken effect, the policy says whether an operator decides first.
    """
    wanted = changes.protocol.policies.compensate_on_failure and not changes.job.dismissed and failure is not None
    if wanted and _has_open_review(changes):
        changes.change_job(failure=failure)
        _follow_policy(changes)
    elif wanted and changes.job.compensable:
        changes.change_job(failure=failure)
        start(changes, ENGINE)
    else:
        step_completion.end_job(changes, JobStatus.FAILED_FINAL, failure)


def end_stopped(changes: Changeset, failure: Failure | None) -> None:
    """End a stopped job. If a stopped step may have taken effect and the protocol compensates on failure, its failure
    becomes the job's."""
    wanted = changes.protocol.policies.compensate_on_failure and not changes.job.dismissed
    asked = changes.job.failure if wanted and _has_open_review(changes) else None
    end_failed(changes, asked or failure)


def _follow_policy(changes: Changeset) -> None:
    """Compensate now, beginning with the step that may have left a side effect, or hold the job for review."""
    if changes.protocol.policies.compensation == "auto":
        start(changes, ENGINE)
    else:
        changes.change_job(stopping=None)
        hold(changes)


def _has_open_review(changes: Changeset) -> bool:
    """Return whether a review item of this run asks about a step that may have left a side effect."""
    job = changes.job
    return job.review is not None and job.review.kind is ReviewKind.COMPENSATION and job.review_run == job.run_no


def hold(changes: Changeset) -> None:
    """Pause the job until an operator acts on its review item."""
    changes.change_job(paused=JobPause(ENGINE, changes.now, "a person must decide about compensation", on_review=True))
    changes.emit("JOB_HELD", by=ENGINE)


def start(changes: Changeset, by: str, reason: str = "") -> None:
    """Start a compensation: fence active steps, then run the handlers of completed steps."""
    drop_ready_tokens(changes)
    todo = tuple(reversed(changes.job.compensable))
    changes.change_job(
        compensation=Compensation(todo, changes.now, by, changes.job.failure, reason=reason),
        deadline=None,
        compensable=(),
        paused=None,
        stopping=None,
        resume_from=None,
    )
    changes.emit("COMPENSATION_STARTED", by=by, steps=list(todo))


def fence_other_steps(changes: Changeset) -> bool:
    """Fence all other steps, then start the first handler; return False if some remain for the next decision."""
    under_way = changes.job.compensation
    assert under_way is not None, "it was started"
    if not container.fence_up_to_limit(changes, None, StepStatus.CANCELLED, AttemptOutcome.FENCED, None):
        return False
    drop_ready_tokens(changes)
    fresh = tuple(reversed(changes.job.compensable))  # completed or stopped since the start
    todo = (*fresh, *(name for name in under_way.todo if name not in fresh))
    changes.change_job(compensation=replace(under_way, todo=todo, cleared=True), compensable=(), resume_from=None)
    _start_next_handler(changes)
    return True


def is_halted_at(changes: Changeset, handler: Step) -> bool:
    """Return whether the compensation is halted for review at this failed handler."""
    halted, paused = changes.job.compensation, changes.job.paused
    held = paused is not None and paused.on_review
    return held and halted is not None and halted.failed == step_completion.place_of(changes, handler).handler_of


def resume(changes: Changeset, by: str, reason: str, done: Step | None = None) -> None:
    """Retry the failed handler, or continue after it if it is `done`."""
    halted = changes.job.compensation
    assert halted is not None, "there is something to resume"
    changes.change_job(compensation=replace(halted, failed=None, by=by, reason=reason), paused=None)
    changes.emit("COMPENSATION_RESUMED", by=by, reason=reason, steps=list(halted.todo))
    if done is not None:
        changes.ready.append(Token(step_completion.UNDONE, before=done.step_id))
    else:
        _start_next_handler(changes)


def _start_next_handler(changes: Changeset) -> None:
    under_way = changes.job.compensation
    assert under_way is not None, "it was started"
    if not under_way.todo:
        _finish(changes, under_way)
        return
    handler = changes.protocol.plan.places[spec_id(under_way.todo[0])].spec.compensation
    assert handler is not None, "only steps with a handler are compensable"
    changes.ready.append(Token(handler.step_id))


def handler_succeeded(changes: Changeset, token: Token) -> None:
    """Record the success of a handler and continue with the next one."""
    _record_undone(changes, token)
    _start_next_handler(changes)


def _record_undone(changes: Changeset, token: Token) -> None:
    """Record a step as undone, also if the job was cancelled while a service ran the handler."""
    job, plan = changes.job, changes.protocol.plan
    step_id = plan.places[token.before or ""].handler_of
    assert step_id is not None, "only handlers undo"
    mark_undone(changes, step_id, *plan.containers_of(step_id))
    if (under_way := job.compensation) is not None:
        todo = tuple(name for name in under_way.todo if name != step_id)
        changes.change_job(compensation=replace(under_way, todo=todo, done=(*under_way.done, step_id)))
    left = tuple(name for name in job.compensable if name != step_id)
    changes.change_job(undone=(*job.undone, step_id), compensable=left)
    changes.emit("STEP_COMPENSATED", step=None, of=step_id, handler=token.before)


def mark_undone(changes: Changeset, *step_ids: str) -> None:
    """Mark the results of steps as undone, so that a new run repeats the steps."""
    changes.require(step_ids)
    for step in map(changes.find, step_ids):
        if step is not None and not step.undone:
            changes.change_step(step, undone=True)


def handler_failed(changes: Changeset, token: Token) -> None:
    """Halt the compensation after a handler failed for good; only an operator can judge a partial undo."""
    under_way = changes.job.compensation
    assert under_way is not None, "handlers run in a compensation only"
    assert token.failure is not None, "this one failed"
    changes.change_job(compensation=replace(under_way, failed=under_way.todo[0]))
    changes.emit("COMPENSATION_HALTED", handler=token.before, steps=list(under_way.todo))
    reviews.open_for_job(changes, ReviewKind.COMPENSATION, token.failure, token.failure.attempt_no)
    hold(changes)


def _finish(changes: Changeset, under_way: Compensation) -> None:
    changes.change_job(compensation=replace(under_way, completed_at=changes.now))
    changes.emit("COMPENSATION_COMPLETED", steps=list(under_way.done))
    if changes.job.status is JobStatus.CANCELLING:
        end_as_cancelled(changes)
    else:
        end_as_failed(changes)
    if under_way.by != ENGINE:
        reviews.close_for_job(changes, ReviewStatus.RESOLVED, under_way.by, under_way.reason, "compensate")


def end_as_cancelled(changes: Changeset) -> None:
    """End a cancelled job after its compensation, with the error JOB_TIMEOUT if it timed out before that."""
    began = changes.job.compensation.failure if changes.job.compensation is not None else None
    overdue = began is not None and began.outcome is AttemptOutcome.JOB_TIMEOUT
    step_completion.end_job(changes, JobStatus.CANCELLED, began if overdue else None)


def end_as_failed(changes: Changeset) -> None:
    """End the job as failed, with the failure that led to the compensation."""
    failure = changes.job.failure
    assert failure is not None, "something failed"
    step_completion.end_job(changes, JobStatus.FAILED_FINAL, failure)
