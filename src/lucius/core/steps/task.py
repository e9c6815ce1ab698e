"""Transitions of dispatched steps, one function each, applied to the changeset of the current decision."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.model.inputs import Failed, Succeeded
from lucius.core.model.records import Attempt, ErrorInfo, Failure, Instant, Step, Token
from lucius.core.model.statuses import WITH_SERVICE, AttemptOutcome, FailureClass, OutboxStatus, StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.policies import reviews
from lucius.core.policies.retry import delay_before_retry, is_retried, max_attempts, needs_compensation
from lucius.core.protocol.definition import Place, StepSpec, spec_id
from lucius.core.steps import external_call
from lucius.core.steps.new_step import CALLS, new_attempt, new_step


def begin(changes: Changeset, place: Place, token: Token) -> None:
    """Start the step: record its first attempt of this visit and its outbox row."""
    step = new_step(changes, place, token, StepStatus.DISPATCHING)
    if step.kind in CALLS:
        try:
            step = external_call.render_requests(changes, place.spec, step)
        except ToolError as error:
            step_completion.fail_at_start(changes, step, ErrorInfo("TEMPLATE_FAILED", str(error)))
            return
    changes.start_step(step)
    changes.put_row(step, OutboxStatus.PENDING)
    changes.emit("STEP_DISPATCHED", step, lease_id=step.attempt.lease_id)


def dispatch_again(changes: Changeset, step: Step, *, counts: bool = True) -> None:
    """Start a new attempt with a new lease. After a failed hand-over its outbox row, still PENDING, is reused."""
    changes.supersede(step)
    reused = step.attempt.outbox_id if step.attempt.outcome is AttemptOutcome.HANDOVER_FAILED else None
    number, key = step.attempt.attempt_no + 1, step.idempotency_key
    changed = changes.change_step(
        step,
        status=StepStatus.DISPATCHING,
        attempt=new_attempt(changes, step.step_id, number, key, step.visit, outbox_id=reused),
        tries=step.tries + (1 if counts else 0),
        retry_at=None,
    )
    changes.put_row(changed, OutboxStatus.PENDING)
    changes.emit("STEP_DISPATCHED", changed, lease_id=changed.attempt.lease_id)


def repair(changes: Changeset, step: Step) -> None:
    """Repair a step whose outbox row is missing: hand it over if its publish had begun, else record a new attempt.

    Drift is a fault of the store, so the new attempt does not count against the budget. The old row is
    withdrawn in case it exists after all, so that no attempt has two rows.
    """
    if step.attempt.claimed_at is not None:
        hand_over(changes, step)
        return
    changes.put_row(step, OutboxStatus.WITHDRAWN)
    ended = replace(step.attempt, ended_at=changes.now, outcome=AttemptOutcome.REPAIRED)
    dispatch_again(changes, replace(step, attempt=ended), counts=False)


def hand_over(changes: Changeset, step: Step, *, tenant_bound: bool = False) -> Step:
    """Move a step to INITIATED: the directive has left Lucius, and the ACK deadline starts."""
    deadline = _ack_deadline(changes, step)
    attempt = replace(
        step.attempt,
        handed_over_at=changes.now,
        ack_deadline=deadline,
        claimed_at=None,
        claimed_by="",
        held=False,
        tenant_bound=tenant_bound,
    )
    changed = changes.change_step(step, status=StepStatus.INITIATED, attempt=attempt)
    changes.put_row(changed, OutboxStatus.SENT)
    changes.emit("STEP_HANDED_OVER", changed)
    if not changes.job.under_way:
        changes.change_job(under_way=True)
    return changed


def _ack_deadline(changes: Changeset, step: Step) -> Instant:
    return changes.now + (changes.spec(step).ack_timeout_ms or changes.env.defaults.ack_timeout_ms)


def claim(changes: Changeset, step: Step, by: str) -> None:
    """Record that a publish is about to start. If the process dies during it, the outcome counts as handed over.

    The directive is rendered now, so the deadline that it contains is set now; hand-over sets the effective one.
    """
    claimed = replace(step.attempt, claimed_at=changes.now, claimed_by=by, ack_deadline=_ack_deadline(changes, step))
    changed = changes.change_step(step, attempt=claimed)
    changes.put_row(changed, OutboxStatus.PENDING)


def hold(changes: Changeset, step: Step, *, held: bool) -> None:
    """Hide the outbox row of a paused job, or make that of a resumed job available again."""
    changed = changes.change_step(step, attempt=replace(step.attempt, held=held))
    changes.put_row(changed, OutboxStatus.PENDING)


def release(changes: Changeset, step: Step) -> None:
    """Release a claim: the directive was not published, and the row is pending again."""
    changed = changes.change_step(
        step, attempt=replace(step.attempt, claimed_at=None, claimed_by="", ack_deadline=None)
    )
    changes.put_row(changed, OutboxStatus.PENDING)


def ensure_picked_up(changes: Changeset, step: Step) -> Step:
    """Record hand-over and pickup, if missing: a callback proves both."""
    if step.status is StepStatus.DISPATCHING:
        step = hand_over(changes, step)
    return pick_up(changes, step) if step.status is StepStatus.INITIATED else step


def pick_up(changes: Changeset, step: Step) -> Step:
    """Move a step to PROCESSING: a service has picked it up, and the lease starts."""
    spec = changes.spec(step)
    attempt = replace(
        step.attempt,
        picked_up_at=changes.now,
        lease_expires_at=changes.now + lease_ms(changes, spec),
        hard_deadline=changes.now + spec.timeout_ms if spec.timeout_ms else None,
    )
    return changes.change_step(step, status=StepStatus.PROCESSING, attempt=attempt)


def lease_ms(changes: Changeset, spec: StepSpec) -> int:
    if spec.kind in CALLS:
        return external_call.lease_ms(spec)
    return spec.lease_ms or changes.env.defaults.lease_ms


def succeed(changes: Changeset, step: Step, callback: Succeeded, digest: str) -> None:
    """Complete the step with a reported success, and continue its flow."""
    attempt = replace(step.attempt, ended_at=changes.now, outcome=AttemptOutcome.SUCCEEDED, digest=digest)
    if step.attempt.outcome is not None:
        attempt = replace(attempt, error=None, failure_class=None)
    changed = changes.change_step(
        step,
        status=StepStatus.SUCCEEDED,
        attempt=replace(attempt, extra=keep_logs_ref(attempt, callback.extra)),
        result=callback.result,
        artifact_refs=callback.artifact_refs,
        completed_at=changes.now,
        retry_at=None,
    )
    changes.emit("STEP_SUCCEEDED", changed)
    step_completion.follow_success(changes, changed)


def keep_logs_ref(attempt: Attempt, extra: dict[str, Any]) -> dict[str, Any] | None:
    """Return the extra fields of a new callback; an earlier `logs_ref` stays unless the callback brings another."""
    before = attempt.extra
    if not extra or not before or "logs_ref" not in before:
        return extra or before
    return {"logs_ref": before["logs_ref"], **extra}


def fail_as_reported(changes: Changeset, step: Step, callback: Failed, digest: str) -> None:
    ended = replace(step.attempt, digest=digest, extra=keep_logs_ref(step.attempt, callback.extra))
    _end_attempt(
        changes,
        replace(step, attempt=ended),
        AttemptOutcome.FAILED,
        callback.error,
        callback.failure_class,
        callback.retry_after_ms,
    )


def fail_hand_over(changes: Changeset, step: Step, error: ErrorInfo) -> None:
    step = replace(step, attempt=replace(step.attempt, claimed_at=None, claimed_by="", ack_deadline=None, held=False))
    _end_attempt(changes, step, AttemptOutcome.HANDOVER_FAILED, error, FailureClass.TRANSIENT)


def poison(changes: Changeset, step: Step, error: ErrorInfo) -> None:
    """End a dead-lettered attempt. It counts as handed over, and a retry would likely fail too."""
    if step.status is StepStatus.DISPATCHING:
        step = hand_over(changes, step)
    _end_attempt(changes, step, AttemptOutcome.POISONED, error, FailureClass.NON_RETRYABLE)


def time_out(changes: Changeset, step: Step, outcome: AttemptOutcome) -> None:
    _end_attempt(changes, step, outcome, _timeout_error(step, outcome), FailureClass.TRANSIENT)


def _timeout_error(step: Step, outcome: AttemptOutcome) -> ErrorInfo:
    messages = {
        AttemptOutcome.ACK_TIMEOUT: f"service {step.service} did not acknowledge the directive in time",
        AttemptOutcome.LEASE_EXPIRED: f"service {step.service} sent no heartbeat or result before its lease ended",
        AttemptOutcome.STEP_TIMEOUT: "the step ran longer than its timeout_ms allows",
    }
    return ErrorInfo(str(outcome), messages[outcome])


def _end_attempt(
    changes: Changeset,
    step: Step,
    outcome: AttemptOutcome,
    error: ErrorInfo,
    cause: FailureClass,
    retry_after_ms: int | None = None,
) -> None:
    """End an attempt without success: schedule a retry, fail the step, or cancel it if the job is being cancelled."""
    spec = changes.spec(step)
    attempt = replace(step.attempt, ended_at=changes.now, outcome=outcome, failure_class=cause, error=error)
    retryable = is_retried(spec, cause) and not _may_have_taken_effect(spec, attempt)
    if retryable and changes.cancelling:
        _finish_step(changes, step, attempt, StepStatus.CANCELLED, error)
    elif retryable and step.tries < max_attempts(spec, changes.env):
        delay = delay_before_retry(spec, step.tries, outcome, changes.env, cause, retry_after_ms)
        _await_retry(changes, step, attempt, error, changes.now + delay)
    else:
        _finish_step(changes, step, attempt, StepStatus.FAILED_FINAL, error)


def _may_have_taken_effect(spec: StepSpec, attempt: Attempt) -> bool:
    """Return whether a NOT_SAFE step may have been handed over: then only an operator may repeat it."""
    if spec.retry_safety != "NOT_SAFE_TO_RETRY" or attempt.outcome is AttemptOutcome.HANDOVER_FAILED:
        return False
    never_sent = attempt.extra is not None and attempt.extra.get("sent") is False
    return not (spec.kind in CALLS and never_sent)  # the engine's HTTP caller knows if nothing was sent


def _await_retry(changes: Changeset, step: Step, attempt: Attempt, error: ErrorInfo, retry_at: Instant) -> None:
    changed = changes.change_step(
        step, status=StepStatus.FAILED_RETRY, attempt=attempt, last_error=error, retry_at=retry_at
    )
    if attempt.outcome is AttemptOutcome.HANDOVER_FAILED:
        changes.put_row(changed, OutboxStatus.PENDING, next_attempt_at=retry_at)
    changes.emit(
        "STEP_RETRY_SCHEDULED",
        changed,
        cause=str(attempt.outcome),
        failure_class=str(attempt.failure_class),
        error_code=error.code,
        retry_at=retry_at,
    )


def _finish_step(changes: Changeset, step: Step, attempt: Attempt, status: StepStatus, error: ErrorInfo) -> None:
    changed = changes.change_step(
        step, status=status, attempt=attempt, last_error=error, retry_at=None, completed_at=changes.now
    )
    if attempt.outcome is AttemptOutcome.HANDOVER_FAILED:
        failed = status is StepStatus.FAILED_FINAL
        changes.put_row(changed, OutboxStatus.FAILED_FINAL if failed else OutboxStatus.WITHDRAWN)
    changes.emit(
        "STEP_FAILED" if status is StepStatus.FAILED_FINAL else "STEP_CANCELLED",
        changed,
        cause=str(attempt.outcome),
        failure_class=str(attempt.failure_class),
        error_code=error.code,
    )
    if status is StepStatus.FAILED_FINAL:
        _continue_after_failure(changes, changed, attempt, error)


def _continue_after_failure(changes: Changeset, step: Step, attempt: Attempt, error: ErrorInfo) -> None:
    failure = Failure(step.step_id, error, attempt.failure_class, attempt.outcome, attempt.attempt_no)
    undo = needs_compensation(attempt.failure_class) or _may_have_taken_effect(changes.spec(step), attempt)
    if undo and step_completion.place_of(changes, step).handler_of is None:
        asked = changes.job.paused is not None and reviews.open_immediately(changes, step, failure)
        changes.ready.append(Token(step_completion.UNDO, before=step.step_id, failure=failure, asked=asked))
    else:
        step_completion.follow_failure(changes, step, failure)


def fence(
    changes: Changeset,
    step: Step,
    status: StepStatus,
    outcome: AttemptOutcome,
    error: ErrorInfo | None,
    cause: FailureClass | None = None,
) -> None:
    """Fence a step in any state. Its row is withdrawn unless the directive may have left Lucius."""
    unsent = step.status in (StepStatus.DISPATCHING, StepStatus.FAILED_RETRY) and step.attempt.handed_over_at is None
    attempt = step.attempt
    if attempt.outcome is None:
        attempt = replace(attempt, ended_at=changes.now, outcome=outcome, failure_class=cause, error=error)
    claimed = step.attempt.claimed_at is not None
    changed = changes.change_step(
        step,
        status=status,
        attempt=replace(attempt, claimed_at=None, claimed_by=""),
        last_error=error or step.last_error,
        retry_at=None,
        wake_at=None,
        completed_at=changes.now,
    )
    if unsent:
        changes.put_row(changed, OutboxStatus.SENT if claimed else OutboxStatus.WITHDRAWN)
    changes.emit("STEP_CANCELLED" if status is StepStatus.CANCELLED else "STEP_FAILED", changed, cause=str(outcome))
    if changes.spec(step).retry_safety == "NOT_SAFE_TO_RETRY" and (step.status in WITH_SERVICE or claimed):
        _open_review_for_fenced(changes, changed, outcome)


def _open_review_for_fenced(changes: Changeset, step: Step, outcome: AttemptOutcome) -> None:
    """Open a review item for a fenced step that must not be repeated and was with a service: it may have taken effect.

    Its handler is kept for a compensation. If the job timed out, or a container around the step fails, and the protocol
    undoes completed steps then, the item is the job's own: `compensation` follows the policy once the job would end.
    """
    error = ErrorInfo(str(outcome), f"step {step.step_id} was stopped while a service had it; it may have taken effect")
    failure = Failure(step.step_id, error, FailureClass.COMPENSATION_REQUIRED, outcome, step.attempt.attempt_no)
    job, policies = changes.job, changes.protocol.policies
    undoes = policies.compensate_on_cancel if changes.cancelling else policies.compensate_on_failure
    if undoes and outcome is AttemptOutcome.JOB_TIMEOUT:
        asked = reviews.open_immediately(changes, step, failure)
        changes.ready.append(Token(step_completion.UNDO, before=step.step_id, failure=failure, asked=asked))
        return
    goes_on = job.paused is None and job.stopping is None and job.compensation is None
    if undoes and goes_on:
        reviews.open_immediately(changes, step, failure)
    else:
        reviews.open_for_step(changes, step, failure)
    if step_completion.place_of(changes, step).handler_of is None:
        record_effect(changes, step.step_id)


def record_effect(changes: Changeset, step_id: str) -> None:
    """Make a step that may have taken effect the first to be undone, then the containers around it.

    A container that a running compensation has yet to undo keeps its position: steps inside are undone before it.
    """
    job, plan = changes.job, changes.protocol.plan
    around = [
        name for name in plan.containers_of(step_id) if job.compensation is None or name not in job.compensation.todo
    ]
    begun = [*reversed(around), step_id]
    undoable = [name for name in begun if plan.places[spec_id(name)].spec.compensation is not None]
    others = tuple(name for name in job.compensable if name not in undoable)
    changes.change_job(compensable=(*others, *undoable))
