"""Where a job goes when a step has ended, and how it ends. What comes next is put down as a token for `turns`."""

from typing import Any

from msgspec.structs import replace

from lucius.core import notices, reviews
from lucius.core.draft import Draft
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    Failure,
    FailureClass,
    JobStatus,
    Step,
    StepStatus,
    Token,
)
from lucius.core.protocol import FAIL, SUCCEED, Place, at_items, items_of, spec_id

UNDO = "UNDO"  # where a failure leads that needs compensation
UNDONE, NOT_UNDONE = "UNDONE", "NOT_UNDONE"  # and where its handlers do
SAYS_NOTHING = frozenset({"decision", "notify"})  # kinds whose result is not what a flow has come to


def place_of(draft: Draft, step: Step) -> Place:
    return draft.protocol.plan.places[spec_id(step.step_id)]


def container_of(draft: Draft, step: Step) -> str | None:
    """The job's step around this one. Inside a map, item numbers of the step go one deeper than its container's."""
    place = place_of(draft, step)
    if place.container is None:
        return None
    items = items_of(step.step_id)
    around = draft.protocol.plan.places[place.container].spec
    return at_items(place.container, items[:-1] if around.map is not None else items)


def succeeded(draft: Draft, step: Step, target: str | None = None, *, keeps: bool = False) -> None:
    """The step is done: on to what follows it, or to what a decision chose."""
    place = place_of(draft, step)
    if place.handler_of is not None:
        draft.ready.append(Token(UNDONE, before=step.step_id))
        return
    had_effect = step.status is StepStatus.SUCCEEDED and not (keeps and step.step_id in draft.job.compensable)
    if place.spec.compensation is not None and had_effect:
        others = tuple(s for s in draft.job.compensable if s != step.step_id)
        draft.change_job(compensable=(*others, step.step_id))
    go(draft, step, target or place.spec.on_success or place.following, keeps=keeps)


def chosen(draft: Draft, step: Step) -> str | None:
    """Where a decision goes that is done. What a person gave as its result counts if there is such a place."""
    target = step.result.get("then") if step.kind == "decision" and isinstance(step.result, dict) else None
    if target in (SUCCEED, FAIL):
        return str(target)
    here, there = place_of(draft, step), draft.protocol.plan.places.get(target) if isinstance(target, str) else None
    if (
        there is None
        or there.handler_of is not None
        or (there.container, there.branch) != (here.container, here.branch)
    ):
        return None
    return there.spec.step_id


def said_so(step: Step) -> ErrorInfo:
    """Why a flow failed whose last step did not."""
    if step.kind == "decision":
        return ErrorInfo("DECIDED_TO_FAIL", f"decision {spec_id(step.step_id)} chose to fail")
    return ErrorInfo("FAILED", f"the protocol says so after step {spec_id(step.step_id)}")


def failed(draft: Draft, step: Step, failure: Failure) -> None:
    """The step failed for good: on to its failure or timeout path, or its flow fails."""
    place = place_of(draft, step)
    if place.handler_of is not None:
        draft.ready.append(Token(NOT_UNDONE, before=step.step_id, failure=failure))
        return
    timed_out = failure.outcome in _TIMEOUTS and place.spec.on_timeout is not None
    draft.change_job(failure=failure)
    go(draft, step, (place.spec.on_timeout if timed_out else place.spec.on_failure) or FAIL, failure=failure)


_TIMEOUTS = frozenset({AttemptOutcome.ACK_TIMEOUT, AttemptOutcome.LEASE_EXPIRED, AttemptOutcome.STEP_TIMEOUT})


def go(draft: Draft, step: Step, target: str, *, failure: Failure | None = None, keeps: bool = False) -> None:
    container = container_of(draft, step)
    if container is not None and target in (SUCCEED, FAIL):
        step = draft.change_step(step, closes=target, closes_visit=draft.scopes[container].visit)
    says = step.status is not StepStatus.FAILED_FINAL and step.kind not in SAYS_NOTHING
    draft.ready.append(
        Token(
            target,
            container=container,
            items=items_of(step.step_id),
            before=step.step_id if says else step.before,
            failure=failure,
            keeps=keeps,
        )
    )


def end_job(draft: Draft, status: JobStatus, failure: Failure | None = None) -> None:
    """The run is over: nothing of it runs any more."""
    draft.ready.clear()
    if status is JobStatus.SUCCEEDED:
        draft.change_job(under_way=True)  # a new run may have had nothing left to do
    draft.refresh_status()
    error = _job_error(failure) if failure else None
    failure = failure or draft.job.failure
    draft.change_job(status=status, error=error, failure=failure, completed_at=draft.now)
    draft.change_job(stopping=None, catching_up=False)
    if error:
        draft.emit(f"JOB_{status}", error_code=error.code)
    else:
        draft.emit(f"JOB_{status}")
    notices.announce(draft)
    if status is JobStatus.FAILED_FINAL and failure is not None:
        reviews.open_for_failed_job(draft, failure)


def _job_error(failure: Failure) -> ErrorInfo:
    if failure.step_id is None or failure.attempt_no is None:
        return failure.error
    message = f"step {failure.step_id} failed for good on attempt {failure.attempt_no}: {failure.error.message}"
    return ErrorInfo(failure.error.code, message)


def close_container(draft: Draft, step: Step, status: StepStatus, failure: Failure | None) -> Step:
    """A container ends because what is around or inside it does. Where the job goes then is the caller's to say."""
    outcome = AttemptOutcome.FENCED if status is StepStatus.CANCELLED else AttemptOutcome.FAILED
    error = failure.error if failure else None
    cause = failure.failure_class if failure else None
    attempt = replace(step.attempt, ended_at=draft.now, outcome=outcome, error=error, failure_class=cause)
    changed = draft.change_step(
        step, status=status, attempt=attempt, last_error=error or step.last_error, completed_at=draft.now
    )
    draft.emit("STEP_CANCELLED" if status is StepStatus.CANCELLED else "STEP_FAILED", changed, cause=str(outcome))
    return changed


def complete(draft: Draft, step: Step, result: Any) -> None:
    """A step that no service had to do is done."""
    attempt = replace(step.attempt, ended_at=draft.now, outcome=AttemptOutcome.SUCCEEDED)
    done = draft.change_step(
        step, status=StepStatus.SUCCEEDED, attempt=attempt, result=result, completed_at=draft.now, wake_at=None
    )
    draft.emit("STEP_SUCCEEDED", done)
    succeeded(draft, done)


def fail(draft: Draft, step: Step, outcome: AttemptOutcome, cause: FailureClass, error: ErrorInfo) -> None:
    """A step that no service had to do has failed; there is nothing to try again."""
    attempt = replace(step.attempt, ended_at=draft.now, outcome=outcome, failure_class=cause, error=error)
    ended = draft.change_step(
        step, status=StepStatus.FAILED_FINAL, attempt=attempt, last_error=error, completed_at=draft.now, wake_at=None
    )
    draft.emit("STEP_FAILED", ended, cause=str(outcome), failure_class=str(cause), error_code=error.code)
    failed(draft, ended, Failure(step.step_id, error, cause, outcome, attempt.attempt_no))


def fail_at_start(draft: Draft, step: Step, error: ErrorInfo, target: str | None = None) -> None:
    """What the protocol says can't be done with the values at hand. Trying again would change nothing."""
    cause = FailureClass.NON_RETRYABLE
    attempt = replace(
        step.attempt, ended_at=draft.now, outcome=AttemptOutcome.FAILED, failure_class=cause, error=error, outbox_id=""
    )
    ended = replace(
        step, status=StepStatus.FAILED_FINAL, attempt=attempt, last_error=error, completed_at=draft.now, wake_at=None
    )
    draft.start_step(ended)
    draft.emit("STEP_FAILED", ended, cause=str(AttemptOutcome.FAILED), failure_class=str(cause), error_code=error.code)
    failure = Failure(step.step_id, error, cause, AttemptOutcome.FAILED, attempt.attempt_no)
    if target is None:
        failed(draft, ended, failure)
    else:
        draft.change_job(failure=failure)
        go(draft, ended, target, failure=failure)
