"""Classification of failures by words, codes and statuses."""

import pytest

from lucius.core.model.statuses import FailureClass
from lucius.core.policies.failure_classes import (
    CODES,
    CODES_BY_CLASS,
    STATUSES,
    class_of_code,
    class_of_status,
    failure_class,
)

F = FailureClass


@pytest.mark.parametrize(
    ("word", "status", "expected"),
    [
        (None, "FAILED", F.RETRYABLE),
        (None, "FAILED_RETRY", F.RETRYABLE),
        (None, "FAILED_FINAL", F.NON_RETRYABLE),
        ("", "FAILED", F.RETRYABLE),
        ("RETRYABLE", "FAILED", F.RETRYABLE),
        ("NON_RETRYABLE", "FAILED", F.NON_RETRYABLE),
        (" non_retryable ", "FAILED", F.NON_RETRYABLE),
        ("NON_RETRYABLE", "FAILED_RETRY", F.NON_RETRYABLE),
        ("TRANSIENT", "FAILED_FINAL", F.TRANSIENT),
        ("GREMLINS", "FAILED", F.RETRYABLE),
        ("GREMLINS", "FAILED_FINAL", F.NON_RETRYABLE),
    ],
)
def test_reported_class_or_status_gives_the_failure_class(
    word: str | None, status: str, expected: FailureClass
) -> None:
    assert failure_class(word, status) is expected


@pytest.mark.parametrize("known", FailureClass)
def test_reported_class_name_overrides_the_error_code(known: FailureClass) -> None:
    assert failure_class(str(known), "FAILED") is known
    for code in ("TIMEOUT", "VALIDATION_ERROR", "HTTP_429"):
        assert failure_class(str(known).lower().replace("_", "-"), "FAILED", code) is known


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("TIMEOUT", F.TRANSIENT),
        ("CONNECTION_REFUSED", F.TRANSIENT),
        ("OPTIMISTIC_LOCK_CONFLICT", F.RETRYABLE),
        ("VALIDATION_ERROR", F.NON_RETRYABLE),
        ("PERMISSION_DENIED", F.NON_RETRYABLE),
        ("INVARIANT_VIOLATION", F.NON_RETRYABLE),
        ("TRANSITION_FORBIDDEN", F.NON_RETRYABLE),
        ("RATE_LIMITED", F.RATE_LIMITED),
        ("rate-limited", F.RATE_LIMITED),
        ("DEPENDENCY_FAILED", F.DEPENDENCY_FAILED),
        ("COMPENSATION_REQUIRED", F.COMPENSATION_REQUIRED),
        ("HTTP_503", F.TRANSIENT),
        ("HTTP_429", F.RATE_LIMITED),
        ("HTTP_404", F.NON_RETRYABLE),
        ("HTTP_5030", F.RETRYABLE),
        ("OUT_OF_PAPER", F.RETRYABLE),
    ],
)
def test_error_code_gives_the_failure_class_if_no_valid_class_is_reported(code: str, expected: FailureClass) -> None:
    assert failure_class(None, "FAILED", code) is expected
    assert failure_class("GREMLINS", "FAILED", code) is expected


def test_final_or_retry_status_overrides_the_error_code() -> None:
    assert failure_class(None, "FAILED_FINAL", "TIMEOUT") is F.NON_RETRYABLE
    assert failure_class(None, "FAILED_RETRY", "VALIDATION_ERROR") is F.RETRYABLE
    assert failure_class(None, "FAILED_RETRY", "RATE_LIMITED") is F.RATE_LIMITED


@pytest.mark.parametrize("status", ["FAILED", "FAILED_RETRY", "FAILED_FINAL"])
def test_partial_side_effect_always_requires_compensation(status: str) -> None:
    assert failure_class(None, status, "PARTIAL_SIDE_EFFECT") is F.COMPENSATION_REQUIRED
    assert class_of_status(503, "PARTIAL_SIDE_EFFECT") is F.COMPENSATION_REQUIRED


def documented(status: int) -> FailureClass:
    match status:
        case 408 | 502 | 503 | 504:
            return F.TRANSIENT
        case 409 | 412:
            return F.RETRYABLE
        case 424:
            return F.DEPENDENCY_FAILED
        case 429:
            return F.RATE_LIMITED
        case _:
            return F.NON_RETRYABLE if status < 500 else F.RETRYABLE


def test_every_status_has_the_documented_class() -> None:
    for status in range(300, 600):
        assert class_of_status(status) is documented(status), status
        assert class_of_status(status, "NOBODY_LISTED_THIS") is documented(status), status
        assert class_of_code(f"HTTP_{status}") is documented(status), status


@pytest.mark.parametrize("status", [409, 412])
@pytest.mark.parametrize("code", ["TRANSITION_FORBIDDEN", "INVALID_TRANSITION", "INVARIANT_VIOLATION"])
def test_conflict_with_a_forbidden_transition_code_is_final(status: int, code: str) -> None:
    assert class_of_status(status, code) is F.NON_RETRYABLE
    assert class_of_status(status, "VERSION_CONFLICT") is F.RETRYABLE
    assert class_of_status(503, code) is F.TRANSIENT


def test_each_code_is_listed_once_and_each_class_has_a_code() -> None:
    assert sum(map(len, CODES_BY_CLASS.values())) == len(CODES)
    assert set(CODES.values()) == set(FailureClass)
    assert set(STATUSES.values()) <= set(FailureClass)
