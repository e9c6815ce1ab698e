"""When a step is tried again, how long it waits before, and where it goes when it is not."""

from typing import Literal

from msgspec import Struct

from lucius.core.decision import Env
from lucius.core.model import AttemptOutcome, FailureClass, Millis, ReviewKind
from lucius.core.protocol import RetryPolicy, StepSpec

Backoff = Literal["policy", "dependency", "none"]


class Rule(Struct, frozen=True):
    """A row of the matrix.

    `backoff` is where the wait comes from: the step's policy, the policy but not below its `dependency_delay_ms`, or
    nowhere. `retry_after` says whether a wait that the failing side asks for is a lower bound. `review` is the kind
    of review item once the class is not retried, or the attempts are used up.
    """

    retried: bool
    backoff: Backoff
    retry_after: bool
    review: ReviewKind


_AGAIN = Rule(retried=True, backoff="policy", retry_after=True, review=ReviewKind.JOB_FAILED)

MATRIX: dict[FailureClass, Rule] = {
    FailureClass.TRANSIENT: _AGAIN,
    FailureClass.RETRYABLE: _AGAIN,
    FailureClass.RATE_LIMITED: _AGAIN,
    FailureClass.DEPENDENCY_FAILED: Rule(
        retried=True, backoff="dependency", retry_after=True, review=ReviewKind.JOB_FAILED
    ),
    FailureClass.NON_RETRYABLE: Rule(retried=False, backoff="none", retry_after=False, review=ReviewKind.JOB_FAILED),
    FailureClass.COMPENSATION_REQUIRED: Rule(
        retried=False, backoff="none", retry_after=False, review=ReviewKind.COMPENSATION
    ),
}


def is_retried(spec: StepSpec, cause: FailureClass) -> bool:
    """Whether another attempt may follow, while the budget lasts. `retry_on_classes` can only narrow the matrix."""
    wanted = spec.retry_policy.retry_on_classes
    return MATRIX[cause].retried and (wanted is None or cause in wanted)


def needs_undoing(cause: FailureClass | None) -> bool:
    """Whether a step that failed for good like this has left something behind."""
    return cause is not None and MATRIX[cause].review is ReviewKind.COMPENSATION


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
    policy, rule = spec.retry_policy, MATRIX[cause] if cause else _AGAIN
    if outcome is AttemptOutcome.HANDOVER_FAILED:
        backoff: float = _nth(policy.handover_backoff_ms, tries)
    elif outcome is AttemptOutcome.ACK_TIMEOUT:
        backoff = _nth(policy.ack_backoff_ms, tries)
    else:
        backoff = _by_policy(policy, tries, env, rule)
    asked_for = (retry_after_ms or 0) if rule.retry_after else 0
    return max(round(backoff * env.defaults.backoff_scale), asked_for)


def _nth(delays: tuple[Millis, ...], tries: int) -> Millis:
    return delays[min(tries, len(delays)) - 1] if delays else 0


def _by_policy(policy: RetryPolicy, tries: int, env: Env, rule: Rule) -> float:
    initial = policy.initial_delay_ms
    if rule.backoff == "dependency":
        initial = max(initial, policy.dependency_delay_ms)
    if policy.backoff_strategy == "fixed":
        return initial
    grown: float = min(max(policy.max_delay_ms, initial), initial * 2 ** min(tries - 1, 30))
    return grown * env.jitter() if policy.backoff_strategy == "jittered" else grown
