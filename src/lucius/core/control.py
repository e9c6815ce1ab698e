"""What people do to a job: cancel, pause, resume, open a new run, and act on what is under review."""

from msgspec.structs import replace

from lucius.core import compensation, containers, deadlines, flow, reviews
from lucius.core.decision import Applied, Ignored, Refused, Reply
from lucius.core.draft import Draft
from lucius.core.inputs import Adopt, Cancel, Compensate, DeadlinePassed, Discard, Resume, Retry, Skip
from lucius.core.inputs import Pause as PauseAsked
from lucius.core.model import (
    Attempt,
    AttemptOutcome,
    CancelRequest,
    ErrorInfo,
    Failure,
    Job,
    JobStatus,
    OutboxStatus,
    Pause,
    ReviewStatus,
    Run,
    Step,
    StepStatus,
    Token,
    Void,
)
from lucius.core.protocol import spec_id
from lucius.core.steps import DISPATCHED, new_attempt

MAX_RUNS_SHOWN = 50
_ROWS_OF_A_FENCE, _ROWS_OF_A_RUN = 5, 8


def cancel(draft: Draft, asked: Cancel) -> Reply:
    job = draft.job
    if job.status in (JobStatus.CANCELLING, JobStatus.CANCELLED):
        return Ignored("the job is cancelled already")
    if not job.live:
        return _ended(draft, "cancelled")
    if job.compensation is not None and job.paused is None:
        return Refused("COMPENSATING", f"job {job.job_id} has failed and is being compensated; it ends by itself")
    request = CancelRequest(asked.by, draft.now, asked.reason)
    failed_at = job.failure.step_id if job.compensation is not None and job.failure is not None else None
    stopped = Failure(failed_at or job.current_step_id, ErrorInfo("CANCELLED", f"cancelled by {asked.by}"))
    draft.change_job(status=JobStatus.CANCELLING, cancel=request, paused=None, failure=stopped)
    draft.change_job(compensation=None, compensable=_undoable(job), catching_up=False)
    draft.emit("CANCEL_REQUESTED", by=asked.by, reason=asked.reason)
    return Applied()


def _ended(draft: Draft, what: str) -> Refused:
    job = draft.job
    return Refused("JOB_TERMINAL", f"job {job.job_id} has ended {job.status} and cannot be {what}")


def pause(draft: Draft, asked: PauseAsked) -> Reply:
    job = draft.job
    if job.paused is not None:
        return Ignored("the job is paused already")
    if not job.live:
        return _ended(draft, "paused")
    if job.status is JobStatus.CANCELLING or job.stopping is not None:
        return Refused("JOB_CANCELLING", f"job {job.job_id} is being ended and cannot be paused")
    draft.change_job(paused=Pause(asked.by, draft.now, asked.reason), status=JobStatus.PAUSED)
    draft.emit("JOB_PAUSED", by=asked.by, reason=asked.reason)
    return Applied()


def resume(draft: Draft, asked: Resume) -> Reply:
    job = draft.job
    if job.paused is None:
        return Ignored("the job is not paused") if job.live else _ended(draft, "resumed")
    if job.paused.on_review:
        item = job.review.review_id if job.review else "-"
        return Refused("REVIEW_OPEN", f"job {job.job_id} waits for review item {item}; act on that instead")
    _go_on(draft, asked.by, asked.reason)
    deadlines.pass_deadlines(draft, DeadlinePassed(resumed_at=draft.now))  # nobody may have been looking until now
    return Applied()


def _go_on(draft: Draft, by: str, reason: str) -> None:
    """The time that it was paused does not count against the job's own."""
    job = draft.job
    assert job.paused is not None, "only a paused job goes on"
    deadline = job.deadline + draft.now - job.paused.at if job.deadline is not None else None
    status = JobStatus.IN_PROGRESS if job.under_way else JobStatus.DISPATCHING
    draft.change_job(paused=None, deadline=deadline, status=status, catching_up=True)
    draft.emit("JOB_RESUMED", by=by, reason=reason)


def retry(draft: Draft, asked: Retry) -> Reply:
    if refused := _not_restartable(draft):
        return refused
    if asked.from_step is not None and asked.from_step not in {spec.step_id for spec in draft.protocol.steps}:
        known = ", ".join(spec.step_id for spec in draft.protocol.steps)
        return Refused("STEP_NOT_FOUND", f"a run can start from a step of the protocol's own list: {known}")
    failed_at = _failed_at(draft)
    if asked.from_step is not None and draft.protocol.index(asked.from_step) > draft.protocol.index(failed_at):
        return Refused("STEP_NOT_REACHED", f"step {asked.from_step} comes after {failed_at}, where the job stopped")
    token = draft.job.resume_from if asked.from_step is None else None
    if token is None:
        start = asked.from_step or failed_at
        token = Token(start, before=_before(draft, start), keeps=asked.from_step is None, anew=True)
    _close_other(draft, asked, ReviewStatus.REPROCESSED, "retry")
    _open_run(draft, token.target, asked, "retry")
    draft.ready.append(token)
    return Applied()


def _close_other(draft: Draft, asked: Retry | Skip | Compensate, status: ReviewStatus, act: str) -> None:
    """The item that a person acted on, unless it is the job's own, which ends with what is done about it."""
    own = draft.job.review
    if asked.item is not None and (own is None or own.review_id != asked.item.review_id):
        reviews.close(draft, asked.item, status, asked.by, asked.reason, act)


def _not_restartable(draft: Draft) -> Refused | None:
    job = draft.job
    if job.status is JobStatus.SUCCEEDED:
        return Refused("JOB_TERMINAL", f"job {job.job_id} has SUCCEEDED; submit a new command to do it again")
    if job.live and not (job.paused is not None and job.paused.on_review):
        return Refused(
            "JOB_LIVE", f"job {job.job_id} is {job.status}; only one that has failed or was cancelled runs anew"
        )
    return _runs_too_much(draft)


def _failed_at(draft: Draft) -> str:
    """The step of the protocol's own list at which the last run stopped, or the first that was undone since."""
    job, plan = draft.job, draft.protocol.plan
    stopped = job.failure.step_id if job.failure and job.failure.step_id else job.current_step_id
    steps = [plan.ancestor(stopped)] if stopped is not None else [draft.protocol.steps[0].step_id]
    steps = [plan.places[s].handler_of or s for s in steps]
    steps += [plan.ancestor(undone) for undone in job.undone]
    return min(steps, key=lambda step_id: plan.places[step_id].index)


def _before(draft: Draft, start: str) -> str | None:
    step = draft.find(start)
    return step.before if step is not None else None


def _open_run(draft: Draft, start: str, asked: Retry | Skip | Adopt | Compensate, act: str) -> None:
    """The run before is closed as it ended; this one starts with what came before its first step."""
    if draft.job.live:
        _end_held(draft)
    job = draft.job
    plan = draft.protocol.plan
    index = plan.places[start].index if start in plan.places else len(plan.places)
    anew = isinstance(asked, Retry) and asked.from_step is not None
    ended = Run(job.run_no, job.status, job.run_started_at or job.created_at, job.completed_at or draft.now, job.error)
    if not isinstance(asked, Compensate):
        reviews.close_held(draft, ReviewStatus.REPROCESSED, asked.by, asked.reason, act)
    timeout = draft.protocol.policies.timeout_ms
    draft.change_job(
        status=JobStatus.QUEUED,
        run_no=job.run_no + 1,
        runs=(*job.runs[1 - MAX_RUNS_SHOWN :], ended),
        run_started_at=draft.now,
        voids=_voids(job, index) if anew else job.voids,
        undone=(),
        compensable=_undoable(job),
        deadline=draft.now + timeout if timeout else None,
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
    draft.emit("RUN_STARTED", by=asked.by, reason=asked.reason, act=act, run_no=draft.job.run_no, from_step=start)
    draft.caps = (*draft.caps, *asked.caps)
    draft.change_job(status=JobStatus.DISPATCHING)


def _voids(job: Job, index: int) -> tuple[Void, ...]:
    """The run that is opened now redoes all from `index` on. Of earlier ones only those matter that redid less."""
    return (*(void for void in job.voids if void.index < index), Void(job.run_no + 1, index))


def _undoable(job: Job) -> tuple[str, ...]:
    """Completed steps with a handler, in order; those too that a halted compensation did not get to."""
    left = tuple(reversed(job.compensation.todo)) if job.compensation is not None else ()
    return (*left, *job.compensable)


def _end_held(draft: Draft) -> None:
    """A person acted on the review that a job was held for: that run is over, and so is what else runs in it."""
    compensation.drop_what_is_ready(draft)
    containers.fence_some(draft, None, StepStatus.CANCELLED, AttemptOutcome.FENCED, None, all_at_once=True)
    draft.change_job(paused=None)
    if draft.job.status is JobStatus.CANCELLING:
        flow.end_job(draft, JobStatus.CANCELLED)
    else:
        draft.change_job(status=JobStatus.IN_PROGRESS if draft.job.under_way else JobStatus.DISPATCHING)
        compensation.end_as_failed(draft)


def _runs_too_much(draft: Draft) -> Refused | None:
    """What else runs in a held job ends with the act, so one decision must be able to end it all."""
    job = draft.job
    rows = _ROWS_OF_A_FENCE * (len(job.active) + len(draft.scopes)) + _ROWS_OF_A_RUN
    if not job.live or draft.has_room(rows):
        return None
    message = f"{len(job.active)} steps of job {job.job_id} still run; discard the item first, then retry the job"
    return Refused("JOB_LIVE", message)


def skip(draft: Draft, asked: Skip) -> Reply:
    """The failed step counts as done, with the result that a person supplies."""
    if refused := _not_restartable(draft):
        return refused
    failed_at = draft.job.failure.step_id if draft.job.failure else None
    old = draft.find(failed_at) if failed_at is not None else None
    if old is None or draft.protocol.plan.places[spec_id(old.step_id)].handler_of is not None:
        return Refused("STEP_NOT_FOUND", f"job {draft.job.job_id} has no failed step to skip")
    if draft.job.status is JobStatus.CANCELLED and old.status is StepStatus.SUCCEEDED:
        return Refused("STEP_SUCCEEDED", f"step {old.step_id} has a result already; a retry goes on after it")
    if refused := _undone_since(draft):
        return refused
    _close_other(draft, asked, ReviewStatus.REPROCESSED, "skip")
    _run_from_done(draft, old, asked, StepStatus.SKIPPED, asked.result, [], None)
    return Applied()


def _undone_since(draft: Draft) -> Refused | None:
    """A run that goes on after the failed step would build on what is no longer there."""
    undone = draft.job.undone
    if not undone:
        return None
    return Refused("COMPENSATED", f"{', '.join(undone)} of job {draft.job.job_id} was undone since; retry does it anew")


def adopt(draft: Draft, asked: Adopt) -> Reply:
    """A quarantined success becomes the step's result: now if the step still runs, else in a new run."""
    kept = asked.kept
    step = draft.find(kept.step_id)
    if step is None or step.kind not in DISPATCHED:
        return Refused("STEP_NOT_FOUND", f"no service was ever asked for step {kept.step_id} of job {kept.job_id}")
    if draft.job.status is JobStatus.SUCCEEDED or (step.status is StepStatus.SUCCEEDED and draft.current(step.step_id)):
        return Refused("STEP_SUCCEEDED", f"step {kept.step_id} has a result already")
    if asked.idempotency_key not in ("", step.idempotency_key):
        message = f"the result of attempt {kept.attempt_no} belongs to an earlier visit or run of step {kept.step_id}"
        return Refused("ACT_NOT_APPLICABLE", message)
    if draft.job.live and step.step_id in draft.job.active:
        _adopt_now(draft, step, asked)
    elif flow.place_of(draft, step).handler_of is not None:
        if not compensation.is_halted_at(draft, step):
            return Refused("STEP_NOT_FOUND", f"step {kept.step_id} undoes another; no run can start from it")
        _adopt_undoing(draft, step, asked)
    elif refused := _not_restartable(draft) or _undone_since(draft) or _beyond_failure(draft, step):
        return refused
    else:
        _run_from_done(draft, step, asked, StepStatus.SUCCEEDED, kept.result, kept.artifact_refs, kept.attempt_no)
    if asked.item is not None:
        reviews.close(draft, asked.item, ReviewStatus.RESOLVED, asked.by, asked.reason, "adopt")
    return Applied()


def _beyond_failure(draft: Draft, step: Step) -> Refused | None:
    """What comes after the step that failed can't be gone on from."""
    failed_at, start = _failed_at(draft), draft.protocol.plan.ancestor(step.step_id)
    if draft.protocol.index(start) <= draft.protocol.index(failed_at):
        return None
    return Refused("STEP_NOT_REACHED", f"step {step.step_id} comes after {failed_at}, where the job stopped")


def _adopt_now(draft: Draft, step: Step, asked: Adopt) -> None:
    """Fence the attempt that runs; the adopted result is an attempt of its own."""
    kept = asked.kept
    unsent = step.attempt.handed_over_at is None and step.status in (StepStatus.DISPATCHING, StepStatus.FAILED_RETRY)
    ended = step.attempt
    if ended.outcome is None:
        ended = replace(ended, ended_at=draft.now, outcome=AttemptOutcome.FENCED)
    if unsent:
        draft.put_row(step, OutboxStatus.SENT if step.attempt.claimed_at is not None else OutboxStatus.WITHDRAWN)
    draft.supersede(replace(step, attempt=replace(ended, claimed_at=None, claimed_by="")))
    done = draft.change_step(
        step,
        status=StepStatus.SUCCEEDED,
        attempt=_adopted(draft, step, kept.attempt_no),
        result=kept.result,
        artifact_refs=kept.artifact_refs,
        completed_at=draft.now,
        retry_at=None,
    )
    draft.emit("RESULT_ADOPTED", done, by=asked.by, reason=asked.reason, adopted_from=kept.attempt_no)
    flow.succeeded(draft, done)


def _adopt_undoing(draft: Draft, handler: Step, asked: Adopt) -> None:
    """A handler that was given up did its work after all: undoing goes on after it."""
    kept = asked.kept
    done = replace(
        handler,
        status=StepStatus.SUCCEEDED,
        attempt=_adopted(draft, handler, kept.attempt_no),
        result=kept.result,
        artifact_refs=kept.artifact_refs,
        completed_at=draft.now,
        updated_at=draft.now,
    )
    draft.start_step(done)
    draft.emit("RESULT_ADOPTED", done, by=asked.by, reason=asked.reason, adopted_from=kept.attempt_no)
    compensation.resume(draft, asked.by, asked.reason, done)


def _adopted(draft: Draft, step: Step, adopted_from: int | None) -> Attempt:
    number = step.attempt.attempt_no + 1
    attempt = new_attempt(draft, step.step_id, number, step.idempotency_key, step.visit, dispatched=False)
    return replace(attempt, ended_at=draft.now, outcome=AttemptOutcome.SUCCEEDED, adopted_from=adopted_from)


def _run_from_done(
    draft: Draft,
    old: Step,
    asked: Skip | Adopt,
    status: StepStatus,
    result: object,
    artifact_refs: list[str],
    adopted_from: int | None,
) -> None:
    """A new run in which this step is done already. Inside a container, what succeeded beside it stands too."""
    place, act = flow.place_of(draft, old), "adopt" if isinstance(asked, Adopt) else "skip"
    nested = place.container is not None
    start = draft.protocol.plan.ancestor(old.step_id)
    _open_run(draft, start, asked, act)
    old = old if nested else replace(old, visit=1)
    attempt = _adopted(draft, old, adopted_from)
    done = replace(
        old,
        status=status,
        attempt=attempt,
        result=result,
        artifact_refs=artifact_refs,
        last_error=None,
        completed_at=draft.now,
        updated_at=draft.now,
        retry_at=None,
        undone=False,
        run_no=draft.job.run_no - nested,  # nested, it is found again when its container gets to it
    )
    draft.start_step(done)
    draft.change_job(under_way=True)
    draft.emit("STEP_SKIPPED" if status is StepStatus.SKIPPED else "RESULT_ADOPTED", done, by=asked.by)
    if nested:
        compensation.void(draft, *draft.protocol.plan.around(old.step_id)[:-1])
        draft.ready.append(Token(start, before=_before(draft, start), keeps=True, anew=True))
    else:
        flow.succeeded(draft, done, flow.chosen(draft, done))


def compensate(draft: Draft, asked: Compensate) -> Reply:
    job = draft.job
    held = job.paused is not None and job.paused.on_review
    if job.compensation is not None and job.compensation.failed is not None and held:
        compensation.resume(draft, asked.by, asked.reason)
        return Applied()
    if job.status is JobStatus.SUCCEEDED or (job.live and not held):
        return _not_restartable(draft) or Refused("JOB_LIVE", f"job {job.job_id} is {job.status}")
    if not _undoable(job):
        return Refused("NOTHING_TO_COMPENSATE", f"no completed step of job {job.job_id} has a handler left to run")
    _close_other(draft, asked, ReviewStatus.RESOLVED, "compensate")
    if not held:
        _open_compensating_run(draft, asked)
    else:
        draft.change_job(status=JobStatus.IN_PROGRESS if job.under_way else JobStatus.DISPATCHING, paused=None)
    draft.emit("COMPENSATION_REQUESTED", by=asked.by, reason=asked.reason)
    compensation.start(draft, asked.by, asked.reason)
    return Applied()


def _open_compensating_run(draft: Draft, asked: Compensate) -> None:
    """A run that only undoes: all that was done before still counts."""
    failure = draft.job.failure
    _open_run(draft, flow.UNDO, asked, "compensate")
    draft.change_job(failure=failure, under_way=True)


def _dismiss(draft: Draft) -> None:
    """Nobody wants more of a held job: it ends as soon as what else runs in it is fenced."""
    compensation.drop_what_is_ready(draft)
    job = draft.job
    if job.status is not JobStatus.CANCELLING:
        draft.change_job(status=JobStatus.IN_PROGRESS if job.under_way else JobStatus.DISPATCHING)
    draft.change_job(paused=None, stopping=job.failure, dismissed=True)


def discard(draft: Draft, asked: Discard) -> Reply:
    job, item = draft.job, asked.item
    if item.status is not ReviewStatus.OPEN:
        return Refused("REVIEW_CLOSED", f"review item {item.review_id} is {item.status} already")
    held_on_it = job.paused is not None and job.paused.on_review and job.review is not None
    if held_on_it and job.review is not None and job.review.review_id == item.review_id:
        _dismiss(draft)
    reviews.close(draft, item, ReviewStatus.DISCARDED, asked.by, asked.reason, "discard")
    return Applied()
