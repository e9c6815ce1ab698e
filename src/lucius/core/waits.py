"""Waits: a time to pass, an instant to come, or a signal. A signal that comes early is kept."""

from msgspec.structs import replace

from lucius.core import flow
from lucius.core.decision import Applied, Refused, Reply
from lucius.core.draft import Draft
from lucius.core.inputs import GiveSignal
from lucius.core.instants import instant
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    FailureClass,
    Instant,
    Signal,
    Step,
    StepStatus,
    Token,
)
from lucius.core.protocol import Place, Wait
from lucius.core.steps import new_step
from lucius.core.tools import ToolError
from lucius.core.values import evaluate

MAX_SIGNALS = 32


def begin(draft: Draft, place: Place, token: Token) -> None:
    spec = place.spec
    step = new_step(draft, place, token, StepStatus.WAITING)
    assert spec.wait is not None, "a wait says for what"
    if spec.wait.signal is not None:
        step = replace(step, awaits=spec.wait.signal, wake_at=draft.now + spec.timeout_ms if spec.timeout_ms else None)
    else:
        try:
            step = replace(step, wake_at=_instant(draft, spec.wait, spec.step_id, token.items))
        except ToolError as error:
            flow.fail_at_start(draft, step, ErrorInfo("EXPRESSION_FAILED", str(error)))
            return
    draft.start_step(step)
    draft.emit("STEP_WAITING", step, until=step.wake_at, signal=step.awaits)
    if step.awaits is not None:
        take_kept(draft, step)


def _instant(draft: Draft, wait: Wait, step_id: str, items: tuple[int, ...]) -> Instant:
    if wait.duration_ms is not None:
        return draft.now + wait.duration_ms
    text = wait.until or ""
    at = instant(text)
    if at is None:
        at = instant(evaluate(draft, text, step_id, items))
    if at is None:
        reason = "until must give an instant as RFC 3339 text with its offset from UTC, or in milliseconds"
        raise ToolError(f"{reason}: {text}")
    return at


def time_passed(draft: Draft, step: Step) -> None:
    """A timer has run out: the end of a wait for time, a timeout of a wait for a signal."""
    if step.awaits is None:
        flow.complete(draft, step, None)
        return
    error = ErrorInfo("SIGNAL_TIMEOUT", f"signal {step.awaits} did not come in time")
    flow.fail(draft, step, AttemptOutcome.STEP_TIMEOUT, FailureClass.TRANSIENT, error)


def _take(draft: Draft, step: Step, signal: Signal) -> None:
    flow.complete(draft, step, {"signal": signal.name, "by": signal.by, "payload": signal.payload})


def take_kept(draft: Draft, step: Step) -> bool:
    """Whether a signal that came before this step did was for it."""
    early = next((signal for signal in draft.job.signals if signal.name == step.awaits), None)
    if early is None:
        return False
    draft.change_job(signals=tuple(signal for signal in draft.job.signals if signal is not early))
    _take(draft, step, early)
    return True


def receive(draft: Draft, said: GiveSignal) -> Reply:
    """To the step that waits for it, else kept for one that will."""
    job = draft.job
    if not job.live:
        return Refused("JOB_TERMINAL", f"job {job.job_id} has ended {job.status} and takes no signal")
    known = signals_of(draft)
    if said.name not in known:
        names = ", ".join(sorted(known)) or "none"
        return Refused("UNKNOWN_SIGNAL", f"no step of this job waits for a signal {said.name}; known: {names}")
    waiting = next((step for step in draft.active_steps() if step.awaits == said.name), None)
    taken = waiting is not None and job.paused is None
    if len(job.signals) >= MAX_SIGNALS and not taken:
        return Refused("TOO_MANY_SIGNALS", f"{MAX_SIGNALS} signals of this job wait for a step to take them already")
    draft.emit("SIGNAL_RECEIVED", name=said.name, by=said.by, reason=said.reason)
    signal = Signal(said.name, said.by, draft.now, said.payload)
    if waiting is None or not taken:
        draft.change_job(signals=(*job.signals, signal))
    else:
        _take(draft, waiting, signal)
    return Applied()


def signals_of(draft: Draft) -> set[str]:
    places = draft.protocol.plan.places.values()
    return {place.spec.wait.signal for place in places if place.spec.wait is not None and place.spec.wait.signal}
