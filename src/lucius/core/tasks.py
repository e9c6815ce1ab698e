"""How a step moves that is dispatched: one function per transition, each on the draft of the decision at hand."""

from msgspec.structs import replace

from lucius.core import calls, flow, reviews
from lucius.core.draft import Draft
from lucius.core.inputs import Failed, Succeeded
from lucius.core.model import (
    WITH_SERVICE,
    Attempt,
    AttemptOutcome,
    ErrorInfo,
    Failure,
    FailureClass,
    Instant,
    OutboxStatus,
    Step,
    StepStatus,
    Token,
)
from lucius.core.protocol import Place, StepSpec
from lucius.core.retry import delay_before_retry, is_retried, max_attempts, needs_undoing
from lucius.core.steps import CALLS, new_attempt, new_step
from lucius.core.tools import ToolError


def begin(draft: Draft, place: Place, token: Token) -> None:
    """Its turn has come: the step's first attempt of this visit, and its outbox row."""
    step = new_step(draft, place, token, StepStatus.DISPATCHING)
    if step.kind in CALLS:
        try:
            step = calls.with_requests(draft, place.spec, step)
        except ToolError as error:
            flow.fail_at_start(draft, step, ErrorInfo("TEMPLATE_FAILED", str(error)))
            return
    draft.start_step(step)
    draft.put_row(step, OutboxStatus.PENDING)
    draft.emit("STEP_DISPATCHED", step, lease_id=step.attempt.lease_id)


def dispatch_again(draft: Draft, step: Step, *, counts: bool = True) -> None:
    """A new attempt with a new lease. After a failed hand-over its outbox row, still PENDING, is used again."""
    draft.supersede(step)
    reused = step.attempt.outbox_id if step.attempt.outcome is AttemptOutcome.HANDOVER_FAILED else None
    number, key = step.attempt.attempt_no + 1, step.idempotency_key
    changed = draft.change_step(
        step,
        status=StepStatus.DISPATCHING,
        attempt=new_attempt(draft, step.step_id, number, key, step.visit, outbox_id=reused),
        tries=step.tries + (1 if counts else 0),
        retry_at=None,
    )
    draft.put_row(changed, OutboxStatus.PENDING)
    draft.emit("STEP_DISPATCHED", changed, lease_id=changed.attempt.lease_id)


def repair(draft: Draft, step: Step) -> None:
    """Its outbox row is gone. If it was being published it may have left us; if not, it is recorded anew.

    Drift is a store's fault, not the service's: the new attempt is not counted against the budget. The old row is
    withdrawn in case it was only out of sight, so that no attempt has two.
    """
    if step.attempt.claimed_at is not None:
        hand_over(draft, step)
        return
    draft.put_row(step, OutboxStatus.WITHDRAWN)
    ended = replace(step.attempt, ended_at=draft.now, outcome=AttemptOutcome.REPAIRED)
    dispatch_again(draft, replace(step, attempt=ended), counts=False)


def hand_over(draft: Draft, step: Step) -> Step:
    """DISPATCHING → INITIATED: it has left us, and the ACK clock starts."""
    deadline = _ack_deadline(draft, step)
    attempt = replace(
        step.attempt, handed_over_at=draft.now, ack_deadline=deadline, claimed_at=None, claimed_by="", held=False
    )
    changed = draft.change_step(step, status=StepStatus.INITIATED, attempt=attempt)
    draft.put_row(changed, OutboxStatus.SENT)
    draft.emit("STEP_HANDED_OVER", changed)
    if not draft.job.under_way:
        draft.change_job(under_way=True)
    return changed


def _ack_deadline(draft: Draft, step: Step) -> Instant:
    return draft.now + (draft.spec(step).ack_timeout_ms or draft.env.defaults.ack_timeout_ms)


def claim(draft: Draft, step: Step, by: str) -> None:
    """A publish is about to start. Should we die in it, the outcome is unknown and counts as handed over.

    The directive is written now, so the deadline that it names is stamped now; hand-over stamps the one that counts.
    """
    claimed = replace(step.attempt, claimed_at=draft.now, claimed_by=by, ack_deadline=_ack_deadline(draft, step))
    changed = draft.change_step(step, attempt=claimed)
    draft.put_row(changed, OutboxStatus.PENDING)


def hold(draft: Draft, step: Step, *, held: bool) -> None:
    """A paused job's row stays in the outbox, out of sight; a resumed one's is back in it."""
    changed = draft.change_step(step, attempt=replace(step.attempt, held=held))
    draft.put_row(changed, OutboxStatus.PENDING)


def release(draft: Draft, step: Step) -> None:
    """The publish surely did not happen: the row waits as before."""
    changed = draft.change_step(step, attempt=replace(step.attempt, claimed_at=None, claimed_by="", ack_deadline=None))
    draft.put_row(changed, OutboxStatus.PENDING)


def imply_pick_up(draft: Draft, step: Step) -> Step:
    """A callback proves that the directive arrived and was taken, whatever became of the reports."""
    if step.status is StepStatus.DISPATCHING:
        step = hand_over(draft, step)
    return pick_up(draft, step) if step.status is StepStatus.INITIATED else step


def pick_up(draft: Draft, step: Step) -> Step:
    """INITIATED → PROCESSING: a service has it, and the lease starts."""
    spec = draft.spec(step)
    attempt = replace(
        step.attempt,
        picked_up_at=draft.now,
        lease_expires_at=draft.now + lease_ms(draft, spec),
        hard_deadline=draft.now + spec.timeout_ms if spec.timeout_ms else None,
    )
    return draft.change_step(step, status=StepStatus.PROCESSING, attempt=attempt)


def lease_ms(draft: Draft, spec: StepSpec) -> int:
    if spec.kind in CALLS:
        return calls.lease_ms(spec)
    return spec.lease_ms or draft.env.defaults.lease_ms


def succeed(draft: Draft, step: Step, said: Succeeded, digest: str) -> None:
    """The step is done: its flow goes on."""
    attempt = replace(step.attempt, ended_at=draft.now, outcome=AttemptOutcome.SUCCEEDED, digest=digest)
    if step.attempt.outcome is not None:
        attempt = replace(attempt, error=None, failure_class=None)
    changed = draft.change_step(
        step,
        status=StepStatus.SUCCEEDED,
        attempt=replace(attempt, extra=said.extra or attempt.extra),
        result=said.result,
        artifact_refs=said.artifact_refs,
        completed_at=draft.now,
        retry_at=None,
    )
    draft.emit("STEP_SUCCEEDED", changed)
    flow.succeeded(draft, changed)


def fail_as_reported(draft: Draft, step: Step, said: Failed, digest: str) -> None:
    ended = replace(step.attempt, digest=digest, extra=said.extra or step.attempt.extra)
    _end_attempt(
        draft,
        replace(step, attempt=ended),
        AttemptOutcome.FAILED,
        said.error,
        said.failure_class,
        said.retry_after_ms,
    )


def fail_hand_over(draft: Draft, step: Step, error: ErrorInfo) -> None:
    step = replace(step, attempt=replace(step.attempt, claimed_at=None, claimed_by="", ack_deadline=None, held=False))
    _end_attempt(draft, step, AttemptOutcome.HANDOVER_FAILED, error, FailureClass.TRANSIENT)


def poison(draft: Draft, step: Step, error: ErrorInfo) -> None:
    """It was on the bus, so it has left us; a new attempt would most likely end like this one."""
    if step.status is StepStatus.DISPATCHING:
        step = hand_over(draft, step)
    _end_attempt(draft, step, AttemptOutcome.POISONED, error, FailureClass.NON_RETRYABLE)


def time_out(draft: Draft, step: Step, outcome: AttemptOutcome) -> None:
    _end_attempt(draft, step, outcome, _timeout_error(step, outcome), FailureClass.TRANSIENT)


def _timeout_error(step: Step, outcome: AttemptOutcome) -> ErrorInfo:
    messages = {
        AttemptOutcome.ACK_TIMEOUT: f"service {step.service} did not acknowledge the directive in time",
        AttemptOutcome.LEASE_EXPIRED: f"service {step.service} sent no heartbeat or result before its lease ended",
        AttemptOutcome.STEP_TIMEOUT: "the step ran longer than its timeout_ms allows",
    }
    return ErrorInfo(str(outcome), messages[outcome])


def _end_attempt(
    draft: Draft,
    step: Step,
    outcome: AttemptOutcome,
    error: ErrorInfo,
    cause: FailureClass,
    retry_after_ms: int | None = None,
) -> None:
    """An attempt ended without success: retry, fail for good, or let a cancel through."""
    spec = draft.spec(step)
    attempt = replace(step.attempt, ended_at=draft.now, outcome=outcome, failure_class=cause, error=error)
    retryable = is_retried(spec, cause) and not _may_have_an_effect(spec, attempt)
    if retryable and draft.cancelling:
        _finish_step(draft, step, attempt, StepStatus.CANCELLED, error)
    elif retryable and step.tries < max_attempts(spec, draft.env):
        delay = delay_before_retry(spec, step.tries, outcome, draft.env, cause, retry_after_ms)
        _await_retry(draft, step, attempt, error, draft.now + delay)
    else:
        _finish_step(draft, step, attempt, StepStatus.FAILED_FINAL, error)


def _may_have_an_effect(spec: StepSpec, attempt: Attempt) -> bool:
    """Whether a step that must not be repeated may have left us: then nothing but a person repeats it."""
    if spec.retry_safety != "NOT_SAFE_TO_RETRY" or attempt.outcome is AttemptOutcome.HANDOVER_FAILED:
        return False
    never_sent = attempt.extra is not None and attempt.extra.get("sent") is False
    return not (spec.kind in CALLS and never_sent)  # our own caller knows when no byte of it went out


def _await_retry(draft: Draft, step: Step, attempt: Attempt, error: ErrorInfo, retry_at: Instant) -> None:
    changed = draft.change_step(
        step, status=StepStatus.FAILED_RETRY, attempt=attempt, last_error=error, retry_at=retry_at
    )
    if attempt.outcome is AttemptOutcome.HANDOVER_FAILED:
        draft.put_row(changed, OutboxStatus.PENDING, next_attempt_at=retry_at)
    draft.emit(
        "STEP_RETRY_SCHEDULED",
        changed,
        cause=str(attempt.outcome),
        failure_class=str(attempt.failure_class),
        error_code=error.code,
        retry_at=retry_at,
    )


def _finish_step(draft: Draft, step: Step, attempt: Attempt, status: StepStatus, error: ErrorInfo) -> None:
    changed = draft.change_step(
        step, status=status, attempt=attempt, last_error=error, retry_at=None, completed_at=draft.now
    )
    if attempt.outcome is AttemptOutcome.HANDOVER_FAILED:
        failed = status is StepStatus.FAILED_FINAL
        draft.put_row(changed, OutboxStatus.FAILED_FINAL if failed else OutboxStatus.WITHDRAWN)
    draft.emit(
        "STEP_FAILED" if status is StepStatus.FAILED_FINAL else "STEP_CANCELLED",
        changed,
        cause=str(attempt.outcome),
        failure_class=str(attempt.failure_class),
        error_code=error.code,
    )
    if status is StepStatus.FAILED_FINAL:
        _go_on_without(draft, changed, attempt, error)


def _go_on_without(draft: Draft, step: Step, attempt: Attempt, error: ErrorInfo) -> None:
    failure = Failure(step.step_id, error, attempt.failure_class, attempt.outcome, attempt.attempt_no)
    undo = needs_undoing(attempt.failure_class) or _may_have_an_effect(draft.spec(step), attempt)
    if undo and flow.place_of(draft, step).handler_of is None:
        asked = draft.job.paused is not None and reviews.ask_at_once(draft, step, failure)
        draft.ready.append(Token(flow.UNDO, before=step.step_id, failure=failure, asked=asked))
    else:
        flow.failed(draft, step, failure)


def fence(
    draft: Draft,
    step: Step,
    status: StepStatus,
    outcome: AttemptOutcome,
    error: ErrorInfo | None,
    cause: FailureClass | None = None,
) -> None:
    """End a step from outside, whatever it was doing. Its row is withdrawn unless it may have left us."""
    unsent = step.status in (StepStatus.DISPATCHING, StepStatus.FAILED_RETRY) and step.attempt.handed_over_at is None
    attempt = step.attempt
    if attempt.outcome is None:
        attempt = replace(attempt, ended_at=draft.now, outcome=outcome, failure_class=cause, error=error)
    claimed = step.attempt.claimed_at is not None
    changed = draft.change_step(
        step,
        status=status,
        attempt=replace(attempt, claimed_at=None, claimed_by=""),
        last_error=error or step.last_error,
        retry_at=None,
        wake_at=None,
        completed_at=draft.now,
    )
    if unsent:
        draft.put_row(changed, OutboxStatus.SENT if claimed else OutboxStatus.WITHDRAWN)
    draft.emit("STEP_CANCELLED" if status is StepStatus.CANCELLED else "STEP_FAILED", changed, cause=str(outcome))
    if draft.spec(step).retry_safety == "NOT_SAFE_TO_RETRY" and (step.status in WITH_SERVICE or claimed):
        _ask_about_fenced(draft, changed, outcome)


def _ask_about_fenced(draft: Draft, step: Step, outcome: AttemptOutcome) -> None:
    """It was with a service and must not be repeated: whether it took effect is for a person to find out."""
    error = ErrorInfo(str(outcome), f"step {step.step_id} was stopped while a service had it; it may have taken effect")
    failure = Failure(step.step_id, error, FailureClass.COMPENSATION_REQUIRED, outcome, step.attempt.attempt_no)
    reviews.open_for_step(draft, step, failure)
