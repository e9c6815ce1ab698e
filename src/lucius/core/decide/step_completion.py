"""Completion of steps and jobs. The step that follows an ended one is added as a token, which `scheduler` follows."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decide import job_webhook
from lucius.core.decide.changeset import Changeset
from lucius.core.model.records import ErrorInfo, Failure, Step, Token
from lucius.core.model.statuses import AttemptOutcome, FailureClass, JobStatus, StepStatus
from lucius.core.policies import reviews
from lucius.core.protocol.definition import FAIL, SUCCEED, Place, item_step_id, items_of, spec_id

UNDO = "UNDO"  # target of a failure that needs compensation
UNDONE, NOT_UNDONE = "UNDONE", "NOT_UNDONE"  # targets of its handlers
KINDS_WITHOUT_RESULT = frozenset({"decision", "notify"})  # kinds whose result is not the result of a flow


def place_of(changes: Changeset, step: Step) -> Place:
    return changes.protocol.plan.places[spec_id(step.step_id)]


def container_of(changes: Changeset, step: Step) -> str | None:
    """Return the id of the container around a step, if any.

    A step inside a map has one item number more than the map.
    """
    place = place_of(changes, step)
    if place.container is None:
        return None
    items = items_of(step.step_id)
    around = changes.protocol.plan.places[place.container].spec
    return item_step_id(place.container, items[:-1] if around.map is not None else items)


def follow_success(changes: Changeset, step: Step, target: str | None = None, *, keeps: bool = False) -> None:
    """Add the token for the step that follows, or for the target that a decision chose."""
    place = place_of(changes, step)
    if place.handler_of is not None:
        changes.ready.append(Token(UNDONE, before=step.step_id))
        return
    had_effect = step.status is StepStatus.SUCCEEDED and not (keeps and step.step_id in changes.job.compensable)
    if place.spec.compensation is not None and had_effect:
        others = tuple(s for s in changes.job.compensable if s != step.step_id)
        changes.change_job(compensable=(*others, step.step_id))
    add_token(changes, step, target or place.spec.on_success or place.following, keeps=keeps)


def chosen_target(changes: Changeset, step: Step) -> str | None:
    """Return the target of a done decision; a result given by an operator counts if it names a valid target."""
    target = step.result.get("then") if step.kind == "decision" and isinstance(step.result, dict) else None
    if target in (SUCCEED, FAIL):
        return str(target)
    here, there = place_of(changes, step), changes.protocol.plan.places.get(target) if isinstance(target, str) else None
    if (
        there is None
        or there.handler_of is not None
        or (there.container, there.branch) != (here.container, here.branch)
    ):
        return None
    return there.spec.step_id


def flow_error(step: Step) -> ErrorInfo:
    """Return the error of a flow that ended in FAIL although its last step did not fail."""
    if step.kind == "decision":
        return ErrorInfo("DECIDED_TO_FAIL", f"decision {spec_id(step.step_id)} chose to fail")
    return ErrorInfo("FAILED", f"the protocol says so after step {spec_id(step.step_id)}")


def follow_failure(changes: Changeset, step: Step, failure: Failure) -> None:
    """Add the token for the failure or timeout path of a failed step; without one its flow fails."""
    place = place_of(changes, step)
    if place.handler_of is not None:
        changes.ready.append(Token(NOT_UNDONE, before=step.step_id, failure=failure))
        return
    timed_out = failure.outcome in _TIMEOUTS and place.spec.on_timeout is not None
    changes.change_job(failure=failure)
    add_token(changes, step, (place.spec.on_timeout if timed_out else place.spec.on_failure) or FAIL, failure=failure)


_TIMEOUTS = frozenset({AttemptOutcome.ACK_TIMEOUT, AttemptOutcome.LEASE_EXPIRED, AttemptOutcome.STEP_TIMEOUT})


def add_token(
    changes: Changeset, step: Step, target: str, *, failure: Failure | None = None, keeps: bool = False
) -> None:
    container = container_of(changes, step)
    if container is not None and target in (SUCCEED, FAIL):
        step = changes.change_step(step, closes=target, closes_visit=changes.scopes[container].visit)
    has_result = step.status is not StepStatus.FAILED_FINAL and step.kind not in KINDS_WITHOUT_RESULT
    changes.ready.append(
        Token(
            target,
            container=container,
            items=items_of(step.step_id),
            before=step.step_id if has_result else step.before,
            failure=failure,
            keeps=keeps,
        )
    )


def end_job(changes: Changeset, status: JobStatus, failure: Failure | None = None) -> None:
    """End the run. No step may be active any more."""
    changes.ready.clear()
    if status is JobStatus.SUCCEEDED:
        changes.change_job(under_way=True)  # a new run may have had no step to execute
    changes.refresh_status()
    error = _job_error(failure) if failure else None
    failure = failure or changes.job.failure
    changes.change_job(status=status, error=error, failure=failure, completed_at=changes.now)
    changes.change_job(stopping=None, catching_up=False)
    if error:
        changes.emit(f"JOB_{status}", error_code=error.code)
    else:
        changes.emit(f"JOB_{status}")
    job_webhook.queue_webhook(changes)
    if status is JobStatus.FAILED_FINAL and failure is not None:
        reviews.open_for_failed_job(changes, failure)


def _job_error(failure: Failure) -> ErrorInfo:
    if failure.step_id is None or failure.attempt_no is None:
        return failure.error
    message = f"step {failure.step_id} failed for good on attempt {failure.attempt_no}: {failure.error.message}"
    return ErrorInfo(failure.error.code, message)


def close_container(changes: Changeset, step: Step, status: StepStatus, failure: Failure | None) -> Step:
    """End a container that failed, or that an outer one or the job stops; the caller adds the next token."""
    outcome = AttemptOutcome.FENCED if status is StepStatus.CANCELLED else AttemptOutcome.FAILED
    error = failure.error if failure else None
    cause = failure.failure_class if failure else None
    attempt = replace(step.attempt, ended_at=changes.now, outcome=outcome, error=error, failure_class=cause)
    changed = changes.change_step(
        step, status=status, attempt=attempt, last_error=error or step.last_error, completed_at=changes.now
    )
    changes.emit("STEP_CANCELLED" if status is StepStatus.CANCELLED else "STEP_FAILED", changed, cause=str(outcome))
    return changed


def complete(changes: Changeset, step: Step, result: Any) -> None:
    """Complete a step that no service executes, and continue its flow."""
    attempt = replace(step.attempt, ended_at=changes.now, outcome=AttemptOutcome.SUCCEEDED)
    done = changes.change_step(
        step, status=StepStatus.SUCCEEDED, attempt=attempt, result=result, completed_at=changes.now, wake_at=None
    )
    changes.emit("STEP_SUCCEEDED", done)
    follow_success(changes, done)


def fail(changes: Changeset, step: Step, outcome: AttemptOutcome, cause: FailureClass, error: ErrorInfo) -> None:
    """Fail a step that no service executes, without a retry, and continue its flow."""
    attempt = replace(step.attempt, ended_at=changes.now, outcome=outcome, failure_class=cause, error=error)
    ended = changes.change_step(
        step, status=StepStatus.FAILED_FINAL, attempt=attempt, last_error=error, completed_at=changes.now, wake_at=None
    )
    changes.emit("STEP_FAILED", ended, cause=str(outcome), failure_class=str(cause), error_code=error.code)
    follow_failure(changes, ended, Failure(step.step_id, error, cause, outcome, attempt.attempt_no))


def fail_at_start(changes: Changeset, step: Step, error: ErrorInfo, target: str | None = None) -> None:
    """Start a step as failed, since the protocol can't be followed with these values; a retry would not help."""
    cause = FailureClass.NON_RETRYABLE
    attempt = replace(
        step.attempt,
        ended_at=changes.now,
        outcome=AttemptOutcome.FAILED,
        failure_class=cause,
        error=error,
        outbox_id="",
    )
    ended = replace(
        step, status=StepStatus.FAILED_FINAL, attempt=attempt, last_error=error, completed_at=changes.now, wake_at=None
    )
    changes.start_step(ended)
    changes.emit(
        "STEP_FAILED", ended, cause=str(AttemptOutcome.FAILED), failure_class=str(cause), error_code=error.code
    )
    failure = Failure(step.step_id, error, cause, AttemptOutcome.FAILED, attempt.attempt_no)
    if target is None:
        follow_failure(changes, ended, failure)
    else:
        changes.change_job(failure=failure)
        add_token(changes, ended, target, failure=failure)
