"""Retry rules: when a step is retried, after which delay, and which review item is opened otherwise."""

from typing import Literal

from msgspec import Struct

from lucius.core.model.decision import Env
from lucius.core.model.records import Millis
from lucius.core.model.statuses import AttemptOutcome, FailureClass, ReviewKind
from lucius.core.protocol.definition import RetryPolicy, StepSpec

DelaySource = Literal["policy", "dependency", "none"]


class Rule(Struct, frozen=True):
    """Rule for one failure class.

    `backoff` is the source of the delay: the step's policy, the policy but at least its `dependency_delay_ms`, or
    none. If `retry_after`, a delay requested by the failing side is a lower bound. `review` is the kind of review
    item if the class is not retried or no attempt is left.
    """

    retried: bool
    backoff: DelaySource
    retry_after: bool
    review: ReviewKind


_RETRIED = Rule(retried=True, backoff="policy", retry_after=True, review=ReviewKind.JOB_FAILED)

MATRIX: dict[FailureClass, Rule] = {
    FailureClass.TRANSIENT: _RETRIED,
    FailureClass.RETRYABLE: _RETRIED,
    FailureClass.RATE_LIMITED: _RETRIED,
    FailureClass.DEPENDENCY_FAILED: Rule(
        retried=True, backoff="dependency", retry_after=True, review=ReviewKind.JOB_FAILED
    ),
    FailureClass.NON_RETRYABLE: Rule(retried=False, backoff="none", retry_after=False, review=ReviewKind.JOB_FAILED),
    FailureClass.COMPENSATION_REQUIRED: Rule(
        retried=False, backoff="none", retry_after=False, review=ReviewKind.COMPENSATION
    ),
}


def is_retried(spec: StepSpec, cause: FailureClass) -> bool:
    """Return whether another attempt may follow, within the budget. `retry_on_classes` can only narrow the matrix."""
    wanted = spec.retry_policy.retry_on_classes
    return MATRIX[cause].retried and (wanted is None or cause in wanted)


def needs_compensation(cause: FailureClass | None) -> bool:
    """Return whether a failure of this class may have left a side effect that needs compensation."""
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
    """Return the delay after the `tries`-th attempt ended with this outcome."""
    policy, rule = spec.retry_policy, MATRIX[cause] if cause else _RETRIED
    if outcome is AttemptOutcome.HANDOVER_FAILED:
        backoff: float = _nth(policy.handover_backoff_ms, tries)
    elif outcome is AttemptOutcome.ACK_TIMEOUT:
        backoff = _nth(policy.ack_backoff_ms, tries)
    else:
        backoff = _by_policy(policy, tries, env, rule)
    requested = (retry_after_ms or 0) if rule.retry_after else 0
    return max(round(backoff * env.defaults.backoff_scale), requested)


def _nth(delays: tuple[Millis, ...], tries: int) -> Millis:
    return delays[min(tries, len(delays)) - 1] if delays else 0


def _by_policy(policy: RetryPolicy, tries: int, env: Env, rule: Rule) -> float:
    initial = policy.initial_delay_ms
    if rule.backoff == "dependency":
        initial = max(initial, policy.dependency_delay_ms)
    if policy.backoff_strategy == "fixed":
        return initial
    delay: float = min(max(policy.max_delay_ms, initial), initial * 2 ** min(tries - 1, 30))
    return delay * env.jitter() if policy.backoff_strategy == "jittered" else delay
