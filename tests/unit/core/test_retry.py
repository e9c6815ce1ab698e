"""Delay of retries, and every cell of the retry matrix."""

from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lucius.core.model.decision import Defaults, Env
from lucius.core.model.statuses import AttemptOutcome, FailureClass, ReviewKind, StepStatus
from lucius.core.policies.retry import MATRIX, delay_before_retry, max_attempts
from lucius.core.protocol.definition import (
    BackoffStrategy,
    Map,
    Policies,
    ProtocolDefinition,
    RetriedClass,
    RetryPolicy,
    StepSpec,
)
from tests.unit.core.builders import MINUTE, SECOND, Story, three_steps

FIRST, NO_ACK, REPORTED = AttemptOutcome.HANDOVER_FAILED, AttemptOutcome.ACK_TIMEOUT, AttemptOutcome.FAILED


def delay(
    outcome: AttemptOutcome,
    tries: int,
    *,
    cause: FailureClass = FailureClass.RETRYABLE,
    retry_after_ms: int | None = None,
    jitter: float = 0.5,
    scale: float = 1.0,
    **policy: Any,
) -> int:
    spec = StepSpec(step_id="ocr", step_type="OCR", service="ocr", retry_policy=RetryPolicy(**policy))
    env = Env(lambda: "id", lambda: jitter, Defaults(backoff_scale=scale))
    return delay_before_retry(spec, tries, outcome, env, cause, retry_after_ms)


def test_hand_over_failures_wait_30_s_2_min_10_min_and_no_longer() -> None:
    assert [delay(FIRST, n) for n in (1, 2, 3, 4)] == [30 * SECOND, 2 * MINUTE, 10 * MINUTE, 10 * MINUTE]


def test_missing_acks_wait_1_5_and_15_min_and_no_longer() -> None:
    assert [delay(NO_ACK, n) for n in (1, 2, 3, 4)] == [MINUTE, 5 * MINUTE, 15 * MINUTE, 15 * MINUTE]


def test_protocol_overrides_hand_over_and_ack_backoff() -> None:
    assert [delay(FIRST, n, handover_backoff_ms=(1, 2)) for n in (1, 2, 3)] == [1, 2, 2]
    assert [delay(NO_ACK, n, ack_backoff_ms=(7,)) for n in (1, 2)] == [7, 7]


@pytest.mark.parametrize("outcome", [REPORTED, AttemptOutcome.LEASE_EXPIRED, AttemptOutcome.STEP_TIMEOUT])
def test_failures_and_lost_leases_wait_exponentially_from_5_s_to_5_min(outcome: AttemptOutcome) -> None:
    waits = [delay(outcome, n, backoff_strategy="exponential") for n in range(1, 9)]
    assert waits == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]


def test_the_default_has_full_jitter() -> None:
    assert [delay(REPORTED, 2, jitter=j) for j in (0.0, 0.25, 0.9)] == [0, 2_500, 9_000]


def test_a_fixed_backoff_does_not_grow() -> None:
    assert [delay(REPORTED, n, backoff_strategy="fixed", initial_delay_ms=700) for n in (1, 5)] == [700, 700]


def test_a_failed_dependency_waits_from_1_min() -> None:
    waits = [
        delay(REPORTED, n, cause=FailureClass.DEPENDENCY_FAILED, backoff_strategy="exponential") for n in (1, 2, 3, 4)
    ]
    assert waits == [MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE]


def test_protocol_overrides_the_dependency_delay() -> None:
    dependency = FailureClass.DEPENDENCY_FAILED
    longer: dict[str, Any] = {"backoff_strategy": "exponential", "dependency_delay_ms": 2 * MINUTE}
    assert [delay(REPORTED, n, cause=dependency, **longer) for n in (1, 2, 3)] == [2 * MINUTE, 4 * MINUTE, 5 * MINUTE]
    assert delay(REPORTED, 1, cause=dependency, backoff_strategy="fixed", dependency_delay_ms=7_000) == 7_000
    assert delay(REPORTED, 1, cause=dependency, backoff_strategy="fixed", dependency_delay_ms=1) == 5_000
    assert (
        delay(REPORTED, 1, cause=FailureClass.TRANSIENT, backoff_strategy="fixed", dependency_delay_ms=7_000) == 5_000
    )


def test_a_retry_after_is_a_lower_bound_that_jitter_and_scale_do_not_touch() -> None:
    rate_limited = FailureClass.RATE_LIMITED
    assert delay(REPORTED, 1, cause=rate_limited, retry_after_ms=90_000, jitter=0.0, scale=0.01) == 90_000
    assert delay(REPORTED, 3, cause=rate_limited, retry_after_ms=1, backoff_strategy="exponential") == 20_000


@pytest.mark.parametrize("outcome", [FIRST, NO_ACK, REPORTED])
def test_the_scale_multiplies_every_backoff(outcome: AttemptOutcome) -> None:
    unscaled = delay(outcome, 2, backoff_strategy="exponential")
    assert delay(outcome, 2, backoff_strategy="exponential", scale=0.01) == round(unscaled * 0.01)
    assert delay(outcome, 2, backoff_strategy="exponential", scale=0.0) == 0
    assert delay(outcome, 2, backoff_strategy="exponential", scale=3.0) == unscaled * 3


@settings(max_examples=200, deadline=None)
@given(
    tries=st.integers(1, 100),
    jitter=st.floats(0, 1, exclude_max=True),
    scale=st.floats(0, 10),
    initial=st.integers(0, 10 * MINUTE),
    longest=st.integers(0, 60 * MINUTE),
    cause=st.sampled_from(FailureClass),
)
def test_a_jittered_wait_stays_in_its_bounds(
    tries: int, jitter: float, scale: float, initial: int, longest: int, cause: FailureClass
) -> None:
    waits = delay(
        REPORTED, tries, cause=cause, jitter=jitter, scale=scale, initial_delay_ms=initial, max_delay_ms=longest
    )
    floor = MINUTE if cause is FailureClass.DEPENDENCY_FAILED else 0
    assert 0 <= waits <= max(initial, longest, floor) * scale + 1
    assert isinstance(waits, int)


def test_the_budget_is_the_steps_or_the_deployments() -> None:
    env = Env(lambda: "id", lambda: 0.0, Defaults(max_attempts=4))
    spec = StepSpec(step_id="ocr", step_type="OCR", service="ocr")
    assert max_attempts(spec, env) == 4
    own = StepSpec(step_id="ocr", step_type="OCR", service="ocr", retry_policy=RetryPolicy(max_attempts=9))
    assert max_attempts(own, env) == 9


# By failure class (docs/retries.md): whether to retry, the first delay, and the review item otherwise.
DOCUMENTED: dict[FailureClass, tuple[bool, int, ReviewKind]] = {
    FailureClass.TRANSIENT: (True, 5 * SECOND, ReviewKind.JOB_FAILED),
    FailureClass.RETRYABLE: (True, 5 * SECOND, ReviewKind.JOB_FAILED),
    FailureClass.RATE_LIMITED: (True, 5 * SECOND, ReviewKind.JOB_FAILED),
    FailureClass.DEPENDENCY_FAILED: (True, MINUTE, ReviewKind.JOB_FAILED),
    FailureClass.NON_RETRYABLE: (False, 0, ReviewKind.JOB_FAILED),
    FailureClass.COMPENSATION_REQUIRED: (False, 0, ReviewKind.COMPENSATION),
}
FACTORS: dict[BackoffStrategy, float] = {"fixed": 1.0, "exponential": 2.0, "jittered": 2.0 * 0.25}
CLASSES: tuple[tuple[RetriedClass, ...] | None, ...] = (
    None,
    (),
    ("TRANSIENT", "RETRYABLE"),
    ("RATE_LIMITED", "DEPENDENCY_FAILED"),
    ("TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED"),
)


class Cell(NamedTuple):
    """A failure of the second attempt under one policy."""

    cause: FailureClass
    strategy: BackoffStrategy
    retry_after_ms: int | None
    attempts_left: int
    retry_on_classes: tuple[RetriedClass, ...] | None

    @property
    def spec(self) -> StepSpec:
        policy = RetryPolicy(
            max_attempts=2 + self.attempts_left,
            backoff_strategy=self.strategy,
            retry_on_classes=self.retry_on_classes,
        )
        return StepSpec(step_id="ocr", step_type="OCR", service="ocr", retry_policy=policy)

    @property
    def retries_transient(self) -> bool:
        return self.retry_on_classes is None or "TRANSIENT" in self.retry_on_classes

    @property
    def expected(self) -> int | None:
        """Return the delay before the third attempt in ms, or None if there is none."""
        retried, first_ms, _ = DOCUMENTED[self.cause]
        wanted = self.retry_on_classes is None or str(self.cause) in self.retry_on_classes
        if not retried or not wanted or not self.attempts_left:
            return None
        return max(round(first_ms * FACTORS[self.strategy]), self.retry_after_ms or 0)


CELLS = [Cell(*cell) for cell in product(FailureClass, FACTORS, (None, 1, 10 * MINUTE), (0, 1), CLASSES)]


def reviewed(story: Story) -> ReviewKind:
    """Return the kind of the review item that the last decision opened."""
    (item,) = story.decision.reviews
    return item.kind


def decided(cell: Cell) -> int | None:
    """Return the delay in ms that the core chooses before another attempt, or None if the step failed permanently."""
    story = Story(three_steps(retry=cell.spec.retry_policy), jitter=0.25).processing()
    story.fail(failure_class=FailureClass.TRANSIENT if cell.retries_transient else cell.cause)
    if story.step.status == "FAILED_FINAL":
        assert reviewed(story) is DOCUMENTED[cell.cause][2]
        return None
    story.next_attempt().hand_over()
    story.ack()
    story.fail(failure_class=cell.cause, retry_after_ms=cell.retry_after_ms)
    if story.step.status is StepStatus.FAILED_FINAL:
        assert reviewed(story) is DOCUMENTED[cell.cause][2]
        return None
    assert story.step.status is StepStatus.FAILED_RETRY
    assert story.step.retry_at is not None
    return story.step.retry_at - story.now


@pytest.mark.parametrize("cause", FailureClass)
def test_each_cell_of_the_retry_matrix_is_as_documented(cause: FailureClass) -> None:
    cells = [cell for cell in CELLS if cell.cause is cause]
    assert len(cells) == 3 * 3 * 2 * 5
    assert [(cell, decided(cell)) for cell in cells] == [(cell, cell.expected) for cell in cells]


def test_matrix_names_the_review_kind_of_a_final_failure_for_each_class() -> None:
    assert {cause: (rule.retried, rule.review) for cause, rule in MATRIX.items()} == {
        cause: (retried, review) for cause, (retried, _, review) in DOCUMENTED.items()
    }


def test_retry_policy_of_the_protocol_applies_to_steps_without_their_own() -> None:
    quick, patient = RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=5)
    silent = StepSpec(step_id="silent", step_type="OCR", service="ocr")
    inner = StepSpec(step_id="inner", step_type="OCR", service="ocr")
    mapped = StepSpec(step_id="mapped", kind="map", map=Map(items="input.pages", steps=(inner,)))
    protocol = ProtocolDefinition(
        protocol_id="p",
        version=1,
        request_type="P",
        steps=(silent, replace(silent, step_id="loud", retry_policy=quick), mapped),
        policies=Policies(retry_policy=patient),
    )
    found = {name: place.spec.retry_policy.max_attempts for name, place in protocol.plan.places.items()}
    assert (found["silent"], found["loud"], found["inner"]) == (5, 1, 5)
