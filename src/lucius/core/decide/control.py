"""Operator actions on a job: cancel, pause, resume, open a new run, and act on review items."""

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.model.decision import Applied, Ignored, Refused, Reply
from lucius.core.model.inputs import Adopt, Cancel, Compensate, DeadlinePassed, Discard, Pause, Resume, Retry, Skip
from lucius.core.model.records import (
    Attempt,
    ErrorInfo,
    Failure,
    Job,
    JobPause,
    RequestedCancel,
    Run,
    Step,
    Token,
    Void,
)
from lucius.core.model.statuses import AttemptOutcome, JobStatus, OutboxStatus, ReviewStatus, StepStatus
from lucius.core.policies import compensation, deadlines, reviews
from lucius.core.protocol.definition import spec_id
from lucius.core.steps import container
from lucius.core.steps.new_step import DISPATCHED, new_attempt

MAX_STORED_RUNS = 50
_ROWS_PER_FENCED_STEP, _ROWS_PER_NEW_RUN = 5, 8


def cancel(changes: Changeset, request: Cancel) -> Reply:
    job = changes.job
    if job.status in (JobStatus.CANCELLING, JobStatus.CANCELLED):
        return Ignored("the job is cancelled already")
    if not job.live:
        return _refuse_ended(changes, "cancelled")
    if job.compensation is not None and job.paused is None:
        todo = "ends once the handlers have run; to cancel it before that, pause it first"
        return Refused("COMPENSATING", f"job {job.job_id} is being compensated and {todo}")
    cancellation = RequestedCancel(request.by, changes.now, request.reason)
    failed_at = job.failure.step_id if job.compensation is not None and job.failure is not None else None
    stopped = Failure(failed_at or job.current_step_id, ErrorInfo("CANCELLED", f"cancelled by {request.by}"))
    compensation.open_review_for_uncompensated(changes, request.by)
    changes.change_job(status=JobStatus.CANCELLING, cancel=cancellation, paused=None, failure=stopped)
    changes.change_job(compensation=None, compensable=_compensable_steps(job), catching_up=False)
    changes.emit("CANCEL_REQUESTED", by=request.by, reason=request.reason)
    return Applied()


def _refuse_ended(changes: Changeset, what: str) -> Refused:
    job = changes.job
    return Refused("JOB_TERMINAL", f"job {job.job_id} has ended {job.status} and cannot be {what}")


def pause(changes: Changeset, request: Pause) -> Reply:
    job = changes.job
    if job.paused is not None:
        return Ignored("the job is paused already")
    if not job.live:
        return _refuse_ended(changes, "paused")
    if job.status is JobStatus.CANCELLING or job.stopping is not None:
        return Refused("JOB_CANCELLING", f"job {job.job_id} is being ended and cannot be paused")
    changes.change_job(paused=JobPause(request.by, changes.now, request.reason), status=JobStatus.PAUSED)
    changes.emit("JOB_PAUSED", by=request.by, reason=request.reason)
    return Applied()


def resume(changes: Changeset, request: Resume) -> Reply:
    job = changes.job
    if job.paused is None:
        return Ignored("the job is not paused") if job.live else _refuse_ended(changes, "resumed")
    if job.paused.on_review:
        item = job.review.review_id if job.review else "-"
        return Refused("REVIEW_OPEN", f"job {job.job_id} waits for review item {item}; act on that instead")
    _unpause(changes, request.by, request.reason)
    deadlines.apply_deadlines(changes, DeadlinePassed(resumed_at=changes.now))  # none were checked during the pause
    return Applied()


def _unpause(changes: Changeset, by: str, reason: str) -> None:
    """Unpause the job and extend its deadline by the length of the pause."""
    job = changes.job
    assert job.paused is not None, "only a paused job goes on"
    deadline = job.deadline + changes.now - job.paused.at if job.deadline is not None else None
    status = JobStatus.IN_PROGRESS if job.under_way else JobStatus.DISPATCHING
    changes.change_job(paused=None, deadline=deadline, status=status, catching_up=True)
    changes.emit("JOB_RESUMED", by=by, reason=reason)


def retry(changes: Changeset, request: Retry) -> Reply:
    if refused := _refuse_if_not_restartable(changes):
        return refused
    if request.from_step is not None and request.from_step not in {spec.step_id for spec in changes.protocol.steps}:
        known = ", ".join(spec.step_id for spec in changes.protocol.steps)
        return Refused("STEP_NOT_FOUND", f"a run can start from a step of the protocol's own list: {known}")
    failed_at = _failed_at(changes)
    if request.from_step is not None and changes.protocol.index(request.from_step) > changes.protocol.index(failed_at):
        return Refused("STEP_NOT_REACHED", f"step {request.from_step} comes after {failed_at}, where the job stopped")
    token = changes.job.resume_from if request.from_step is None else None
    if token is None:
        start = request.from_step or failed_at
        token = Token(start, before=_previous_step_id(changes, start), keeps=request.from_step is None, anew=True)
    _close_other(changes, request, ReviewStatus.REPROCESSED, "retry")
    _open_run(changes, token.target, request, "retry")
    changes.ready.append(token)
    return Applied()


def _close_other(changes: Changeset, request: Retry | Skip | Compensate, status: ReviewStatus, act: str) -> None:
    """Close the review item of the request, unless it is the job's own, which the action itself closes."""
    own = changes.job.review
    if request.item is not None and (own is None or own.review_id != request.item.review_id):
        reviews.close(changes, request.item, status, request.by, request.reason, act)


def _refuse_if_not_restartable(changes: Changeset) -> Refused | None:
    job = changes.job
    if job.status is JobStatus.SUCCEEDED:
        return Refused("JOB_TERMINAL", f"job {job.job_id} has SUCCEEDED; submit a new command to do it again")
    if job.live and not (job.paused is not None and job.paused.on_review):
        return Refused("JOB_LIVE", f"job {job.job_id} is {job.status}; only a failed or cancelled job can be retried")
    return _refuse_if_too_many_active(changes)


def _failed_at(changes: Changeset) -> str:
    """Return the top-level step at which the last run stopped, or the first one undone since if that is earlier."""
    job, plan = changes.job, changes.protocol.plan
    stopped = job.failure.step_id if job.failure and job.failure.step_id else job.current_step_id
    steps = [plan.outermost(stopped)] if stopped is not None else [changes.protocol.steps[0].step_id]
    steps = [plan.places[s].handler_of or s for s in steps]
    steps += [plan.outermost(undone) for undone in job.undone]
    return min(steps, key=lambda step_id: plan.places[step_id].index)


def _previous_step_id(changes: Changeset, start: str) -> str | None:
    step = changes.find(start)
    return step.before if step is not None else None


def _open_run(changes: Changeset, start: str, request: Retry | Skip | Adopt | Compensate, act: str) -> None:
    """Close the previous run in its final state and open a new one that starts at `start`."""
    if changes.job.live:
        _end_held_run(changes)
    job = changes.job
    plan = changes.protocol.plan
    index = plan.places[start].index if start in plan.places else len(plan.places)
    restarts = isinstance(request, Retry) and request.from_step is not None
    ended = Run(
        job.run_no, job.status, job.run_started_at or job.created_at, job.completed_at or changes.now, job.error
    )
    if not isinstance(request, Compensate):
        reviews.close_for_job(changes, ReviewStatus.REPROCESSED, request.by, request.reason, act)
    timeout = changes.protocol.policies.timeout_ms or job.timeout_ms
    changes.change_job(
        status=JobStatus.QUEUED,
        run_no=job.run_no + 1,
        runs=(*job.runs[1 - MAX_STORED_RUNS :], ended),
        run_started_at=changes.now,
        voids=_voids(job, index) if restarts else job.voids,
        undone=(),
        compensable=_compensable_steps(job),
        deadline=changes.now + timeout if timeout else None,
        under_way=False,
        completed_at=None,
        error=None,
        failure=None,
        cancel=None,
        compensation=None,
        output_step_id=None,
        resume_from=None,
        dismissed=False,
    )
    changes.emit(
        "RUN_STARTED", by=request.by, reason=request.reason, act=act, run_no=changes.job.run_no, from_step=start
    )
    changes.caps = (*changes.caps, *request.caps)
    changes.change_job(status=JobStatus.DISPATCHING)


def _voids(job: Job, index: int) -> tuple[Void, ...]:
    """Return the voids of a run that repeats all steps from `index` on, without those that it covers."""
    return (*(void for void in job.voids if void.index < index), Void(job.run_no + 1, index))


def _compensable_steps(job: Job) -> tuple[str, ...]:
    """Return completed steps with a handler, in order, including those that a halted compensation did not reach."""
    left = tuple(reversed(job.compensation.todo)) if job.compensation is not None else ()
    return (*left, *job.compensable)


def _end_held_run(changes: Changeset) -> None:
    """End the run of a job held for review, and fence its active steps."""
    compensation.drop_ready_tokens(changes)
    container.fence_up_to_limit(changes, None, StepStatus.CANCELLED, AttemptOutcome.FENCED, None, all_at_once=True)
    changes.change_job(paused=None)
    if changes.job.status is JobStatus.CANCELLING:
        compensation.end_as_cancelled(changes)
    else:
        changes.change_job(status=JobStatus.IN_PROGRESS if changes.job.under_way else JobStatus.DISPATCHING)
        compensation.end_as_failed(changes)


def _refuse_if_too_many_active(changes: Changeset) -> Refused | None:
    """Refuse if more steps of a held job still run than one decision can end."""
    job = changes.job
    rows = _ROWS_PER_FENCED_STEP * (len(job.active) + len(changes.scopes)) + _ROWS_PER_NEW_RUN
    if not job.live or changes.has_room(rows):
        return None
    message = f"{len(job.active)} steps of job {job.job_id} still run; discard the item first, then retry the job"
    return Refused("JOB_LIVE", message)


def skip(changes: Changeset, request: Skip) -> Reply:
    """Open a run in which the failed step counts as done, with the operator's result."""
    if refused := _refuse_if_not_restartable(changes):
        return refused
    failed_at = changes.job.failure.step_id if changes.job.failure else None
    old = changes.find(failed_at) if failed_at is not None else None
    if old is None or changes.protocol.plan.places[spec_id(old.step_id)].handler_of is not None:
        return Refused("STEP_NOT_FOUND", f"job {changes.job.job_id} has no failed step to skip")
    if changes.job.status is JobStatus.CANCELLED and old.status is StepStatus.SUCCEEDED:
        return Refused("STEP_SUCCEEDED", f"step {old.step_id} has a result already; a retry goes on after it")
    if refused := _refuse_if_compensated(changes):
        return refused
    _close_other(changes, request, ReviewStatus.REPROCESSED, "skip")
    _open_run_with_result(changes, old, request, StepStatus.SKIPPED, request.result, [], None)
    return Applied()


def _refuse_if_compensated(changes: Changeset) -> Refused | None:
    """Refuse if steps were undone: a run that continues after the failed step would build on their missing effects."""
    undone = changes.job.undone
    if not undone:
        return None
    return Refused(
        "COMPENSATED", f"{', '.join(undone)} of job {changes.job.job_id} was undone since; retry runs it again"
    )


def adopt(changes: Changeset, request: Adopt) -> Reply:
    """Make a quarantined success the step's result: now if the step is active, else in a new run."""
    kept = request.kept
    step = changes.find(kept.step_id)
    if step is None or step.kind not in DISPATCHED:
        return Refused("STEP_NOT_FOUND", f"no service was ever asked for step {kept.step_id} of job {kept.job_id}")
    if changes.job.status is JobStatus.SUCCEEDED or (
        step.status is StepStatus.SUCCEEDED and changes.current(step.step_id)
    ):
        return Refused("STEP_SUCCEEDED", f"step {kept.step_id} has a result already")
    if request.idempotency_key not in ("", step.idempotency_key):
        message = f"the result of attempt {kept.attempt_no} belongs to an earlier visit or run of step {kept.step_id}"
        return Refused("ACT_NOT_APPLICABLE", message)
    if changes.job.live and step.step_id in changes.job.active:
        _adopt_now(changes, step, request)
    elif step_completion.place_of(changes, step).handler_of is not None:
        if not compensation.is_halted_at(changes, step):
            return Refused("STEP_NOT_FOUND", f"step {kept.step_id} undoes another; no run can start from it")
        _adopt_for_handler(changes, step, request)
    elif (
        refused := _refuse_if_not_restartable(changes)
        or _refuse_if_compensated(changes)
        or _refuse_if_after_failure(changes, step)
    ):
        return refused
    else:
        _open_run_with_result(
            changes, step, request, StepStatus.SUCCEEDED, kept.result, kept.artifact_refs, kept.attempt_no
        )
    if request.item is not None:
        reviews.close(changes, request.item, ReviewStatus.RESOLVED, request.by, request.reason, "adopt")
    return Applied()


def _refuse_if_after_failure(changes: Changeset, step: Step) -> Refused | None:
    """Refuse a step that comes after the one at which the job stopped."""
    failed_at, start = _failed_at(changes), changes.protocol.plan.outermost(step.step_id)
    if changes.protocol.index(start) <= changes.protocol.index(failed_at):
        return None
    return Refused("STEP_NOT_REACHED", f"step {step.step_id} comes after {failed_at}, where the job stopped")


def _adopt_now(changes: Changeset, step: Step, request: Adopt) -> None:
    """Fence the current attempt; the adopted result is recorded as an attempt of its own."""
    kept = request.kept
    unsent = step.attempt.handed_over_at is None and step.status in (StepStatus.DISPATCHING, StepStatus.FAILED_RETRY)
    ended = step.attempt
    if ended.outcome is None:
        ended = replace(ended, ended_at=changes.now, outcome=AttemptOutcome.FENCED)
    if unsent:
        changes.put_row(step, OutboxStatus.SENT if step.attempt.claimed_at is not None else OutboxStatus.WITHDRAWN)
    changes.supersede(replace(step, attempt=replace(ended, claimed_at=None, claimed_by="")))
    done = changes.change_step(
        step,
        status=StepStatus.SUCCEEDED,
        attempt=_adopted_attempt(changes, step, kept.attempt_no),
        result=kept.result,
        artifact_refs=kept.artifact_refs,
        completed_at=changes.now,
        retry_at=None,
    )
    changes.emit("RESULT_ADOPTED", done, by=request.by, reason=request.reason, adopted_from=kept.attempt_no)
    step_completion.follow_success(changes, done)


def _adopt_for_handler(changes: Changeset, handler: Step, request: Adopt) -> None:
    """Record that a failed handler had succeeded after all, and continue the compensation after it."""
    kept = request.kept
    done = replace(
        handler,
        status=StepStatus.SUCCEEDED,
        attempt=_adopted_attempt(changes, handler, kept.attempt_no),
        result=kept.result,
        artifact_refs=kept.artifact_refs,
        completed_at=changes.now,
        updated_at=changes.now,
    )
    changes.start_step(done)
    changes.emit("RESULT_ADOPTED", done, by=request.by, reason=request.reason, adopted_from=kept.attempt_no)
    compensation.resume(changes, request.by, request.reason, done)


def _adopted_attempt(changes: Changeset, step: Step, adopted_from: int | None) -> Attempt:
    number = step.attempt.attempt_no + 1
    attempt = new_attempt(changes, step.step_id, number, step.idempotency_key, step.visit, dispatched=False)
    return replace(attempt, ended_at=changes.now, outcome=AttemptOutcome.SUCCEEDED, adopted_from=adopted_from)


def _open_run_with_result(
    changes: Changeset,
    old: Step,
    request: Skip | Adopt,
    status: StepStatus,
    result: object,
    artifact_refs: list[str],
    adopted_from: int | None,
) -> None:
    """Open a run in which this step is done; inside a container, its succeeded siblings are kept too."""
    place, act = step_completion.place_of(changes, old), "adopt" if isinstance(request, Adopt) else "skip"
    nested = place.container is not None
    start = changes.protocol.plan.outermost(old.step_id)
    _open_run(changes, start, request, act)
    old = old if nested else replace(old, visit=1)
    attempt = _adopted_attempt(changes, old, adopted_from)
    done = replace(
        old,
        status=status,
        attempt=attempt,
        result=result,
        artifact_refs=artifact_refs,
        last_error=None,
        completed_at=changes.now,
        updated_at=changes.now,
        retry_at=None,
        undone=False,
        run_no=changes.job.run_no - nested,  # if nested, it is found again when its container reaches it
    )
    changes.start_step(done)
    changes.change_job(under_way=True)
    changes.emit("STEP_SKIPPED" if status is StepStatus.SKIPPED else "RESULT_ADOPTED", done, by=request.by)
    if nested:
        compensation.mark_undone(changes, *changes.protocol.plan.containers_of(old.step_id)[:-1])
        changes.ready.append(Token(start, before=_previous_step_id(changes, start), keeps=True, anew=True))
    else:
        step_completion.follow_success(changes, done, step_completion.chosen_target(changes, done))


def compensate(changes: Changeset, request: Compensate) -> Reply:
    job = changes.job
    held = job.paused is not None and job.paused.on_review
    if job.compensation is not None and job.compensation.failed is not None and held:
        compensation.resume(changes, request.by, request.reason)
        return Applied()
    if job.status is JobStatus.SUCCEEDED or (job.live and not held):
        return _refuse_if_not_restartable(changes) or Refused("JOB_LIVE", f"job {job.job_id} is {job.status}")
    if not _compensable_steps(job):
        return Refused("NOTHING_TO_COMPENSATE", f"no completed step of job {job.job_id} has a handler left to run")
    _close_other(changes, request, ReviewStatus.RESOLVED, "compensate")
    if not held:
        _open_compensating_run(changes, request)
    else:
        changes.change_job(status=JobStatus.IN_PROGRESS if job.under_way else JobStatus.DISPATCHING, paused=None)
    changes.emit("COMPENSATION_REQUESTED", by=request.by, reason=request.reason)
    compensation.start(changes, request.by, request.reason)
    return Applied()


def _open_compensating_run(changes: Changeset, request: Compensate) -> None:
    """Open a run that only compensates: all earlier results still count."""
    failure = changes.job.failure
    _open_run(changes, step_completion.UNDO, request, "compensate")
    changes.change_job(failure=failure, under_way=True)


def _end_dismissed(changes: Changeset) -> None:
    """Begin to end a held job: its active steps are fenced first."""
    compensation.drop_ready_tokens(changes)
    job = changes.job
    if job.status is not JobStatus.CANCELLING:
        changes.change_job(status=JobStatus.IN_PROGRESS if job.under_way else JobStatus.DISPATCHING)
    changes.change_job(paused=None, stopping=job.failure, dismissed=True)


def discard(changes: Changeset, request: Discard) -> Reply:
    job, item = changes.job, request.item
    if item.status is not ReviewStatus.OPEN:
        return Refused("REVIEW_CLOSED", f"review item {item.review_id} is {item.status} already")
    held_on_it = job.paused is not None and job.paused.on_review and job.review is not None
    if held_on_it and job.review is not None and job.review.review_id == item.review_id:
        _end_dismissed(changes)
    reviews.close(changes, item, ReviewStatus.DISCARDED, request.by, request.reason, "discard")
    return Applied()
