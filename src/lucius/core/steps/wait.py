"""Waits: for a duration, an instant or a signal. A signal that arrives early is kept."""

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.decide.values import evaluate
from lucius.core.model.decision import Applied, Refused, Reply
from lucius.core.model.inputs import GiveSignal
from lucius.core.model.instants import parse_instant
from lucius.core.model.records import ErrorInfo, Instant, Signal, Step, Token
from lucius.core.model.statuses import AttemptOutcome, FailureClass, StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.protocol.definition import Place, Wait
from lucius.core.steps.new_step import new_step

MAX_STORED_SIGNALS = 32


def begin(changes: Changeset, place: Place, token: Token) -> None:
    spec = place.spec
    step = new_step(changes, place, token, StepStatus.WAITING)
    assert spec.wait is not None, "a wait has a timer or a signal"
    if spec.wait.signal is not None:
        step = replace(
            step, awaits=spec.wait.signal, wake_at=changes.now + spec.timeout_ms if spec.timeout_ms else None
        )
    else:
        try:
            step = replace(step, wake_at=_instant(changes, spec.wait, spec.step_id, token.items))
        except ToolError as error:
            step_completion.fail_at_start(changes, step, ErrorInfo("EXPRESSION_FAILED", str(error)))
            return
    changes.start_step(step)
    changes.emit("STEP_WAITING", step, until=step.wake_at, signal=step.awaits)
    if step.awaits is not None:
        take_stored_signal(changes, step)


def _instant(changes: Changeset, wait: Wait, step_id: str, items: tuple[int, ...]) -> Instant:
    if wait.duration_ms is not None:
        return changes.now + wait.duration_ms
    text = wait.until or ""
    at = parse_instant(text)
    if at is None:
        at = parse_instant(evaluate(changes, text, step_id, items))
    if at is None:
        reason = "until must give an instant as RFC 3339 text with its offset from UTC, or in milliseconds"
        raise ToolError(f"{reason}: {text}")
    return at


def handle_deadline(changes: Changeset, step: Step) -> None:
    """Handle an elapsed timer: the end of a timed wait, or the timeout of a wait for a signal."""
    if step.awaits is None:
        step_completion.complete(changes, step, None)
        return
    error = ErrorInfo("SIGNAL_TIMEOUT", f"signal {step.awaits} did not come in time")
    step_completion.fail(changes, step, AttemptOutcome.STEP_TIMEOUT, FailureClass.TRANSIENT, error)


def _take(changes: Changeset, step: Step, signal: Signal) -> None:
    step_completion.complete(changes, step, {"signal": signal.name, "by": signal.by, "payload": signal.payload})


def take_stored_signal(changes: Changeset, step: Step) -> bool:
    """Complete the step with a signal that was received before it started; return whether there was one."""
    early = next((signal for signal in changes.job.signals if signal.name == step.awaits), None)
    if early is None:
        return False
    changes.change_job(signals=tuple(signal for signal in changes.job.signals if signal is not early))
    _take(changes, step, early)
    return True


def receive(changes: Changeset, request: GiveSignal) -> Reply:
    """Deliver a signal to the step that waits for it, else keep it for a later one."""
    job = changes.job
    if not job.live:
        return Refused("JOB_TERMINAL", f"job {job.job_id} has ended {job.status} and takes no signal")
    known = signals_of(changes)
    if request.name not in known:
        names = ", ".join(sorted(known)) or "none"
        return Refused("UNKNOWN_SIGNAL", f"no step of this job waits for a signal {request.name}; known: {names}")
    waiting = next((step for step in changes.active_steps() if step.awaits == request.name), None)
    taken = waiting is not None and job.paused is None
    if len(job.signals) >= MAX_STORED_SIGNALS and not taken:
        return Refused(
            "TOO_MANY_SIGNALS", f"{MAX_STORED_SIGNALS} signals of this job wait for a step to take them already"
        )
    changes.emit("SIGNAL_RECEIVED", name=request.name, by=request.by, reason=request.reason)
    signal = Signal(request.name, request.by, changes.now, request.payload)
    if waiting is None or not taken:
        changes.change_job(signals=(*job.signals, signal))
    else:
        _take(changes, waiting, signal)
    return Applied()


def signals_of(changes: Changeset) -> set[str]:
    places = changes.protocol.plan.places.values()
    return {place.spec.wait.signal for place in places if place.spec.wait is not None and place.spec.wait.signal}
