"""When a step is tried again, and how long it waits before."""

from lucius.core.decision import Env
from lucius.core.model import AttemptOutcome, FailureClass, Millis
from lucius.core.protocol import RetryPolicy, StepSpec

NEVER_RETRIED = frozenset({FailureClass.NON_RETRYABLE, FailureClass.COMPENSATION_REQUIRED})
DEPENDENCY_INITIAL_MS = 60_000


def failure_class(word: str | None, status: str) -> FailureClass:
    """The class a service's words stand for. What we don't know is worth another try within the budget."""
    try:
        return FailureClass((word or "").strip().upper().replace("-", "_"))
    except ValueError:
        return FailureClass.NON_RETRYABLE if status == "FAILED_FINAL" else FailureClass.RETRYABLE


def max_attempts(spec: StepSpec, env: Env) -> int:
    return spec.retry_policy.max_attempts or env.defaults.max_attempts


def delay_before_retry(
    spec: StepSpec,
    tries: int,
    outcome: AttemptOutcome,
    env: Env,
    cause: FailureClass | None = None,
    retry_after_ms: Millis | None = None,
) -> Millis:
    """How long to wait after the `tries`-th attempt ended like this."""
    policy = spec.retry_policy
    if outcome is AttemptOutcome.HANDOVER_FAILED:
        backoff: float = _nth(policy.handover_backoff_ms, tries)
    elif outcome is AttemptOutcome.ACK_TIMEOUT:
        backoff = _nth(policy.ack_backoff_ms, tries)
    else:
        backoff = _by_policy(policy, tries, env, cause)
    return max(round(backoff * env.defaults.backoff_scale), retry_after_ms or 0)


def _nth(delays: tuple[Millis, ...], tries: int) -> Millis:
    return delays[min(tries, len(delays)) - 1] if delays else 0


def _by_policy(policy: RetryPolicy, tries: int, env: Env, cause: FailureClass | None) -> float:
    initial = policy.initial_delay_ms
    if cause is FailureClass.DEPENDENCY_FAILED:
        initial = max(initial, DEPENDENCY_INITIAL_MS)
    if policy.backoff_strategy == "fixed":
        return initial
    grown: float = min(max(policy.max_delay_ms, initial), initial * 2 ** min(tries - 1, 30))
    return grown * env.jitter() if policy.backoff_strategy == "jittered" else grown
