"""Failure classes: a documented table from error codes and HTTP statuses to classes.

`docs/retries.md` is generated from these tables. A code may be added; an existing one never changes its class.
"""

import re

from lucius.core.model.statuses import FailureClass

CODES_BY_CLASS: dict[FailureClass, tuple[str, ...]] = {
    FailureClass.TRANSIENT: (
        "TIMEOUT",
        "CONNECT_TIMEOUT",
        "READ_TIMEOUT",
        "DEADLINE_EXCEEDED",
        "CONNECTION_FAILED",
        "CONNECTION_REFUSED",
        "CONNECTION_RESET",
        "CONNECTION_LOST",
        "NETWORK_ERROR",
        "NAME_NOT_RESOLVED",
        "TLS_FAILED",
        "UNAVAILABLE",
        "SERVICE_UNAVAILABLE",
        "BAD_GATEWAY",
        "GATEWAY_TIMEOUT",
    ),
    FailureClass.RETRYABLE: (
        "CONFLICT",
        "VERSION_CONFLICT",
        "OPTIMISTIC_LOCK",
        "OPTIMISTIC_LOCK_CONFLICT",
        "PRECONDITION_FAILED",
        "LOCK_TIMEOUT",
        "DEADLOCK",
        "INTERNAL",
        "INTERNAL_ERROR",
        "UNEXPECTED_ERROR",
    ),
    FailureClass.RATE_LIMITED: ("RATE_LIMITED", "RATE_LIMIT_EXCEEDED", "TOO_MANY_REQUESTS", "THROTTLED"),
    FailureClass.DEPENDENCY_FAILED: ("DEPENDENCY_FAILED", "FAILED_DEPENDENCY", "UPSTREAM_FAILED"),
    FailureClass.NON_RETRYABLE: (
        "VALIDATION_ERROR",
        "VALIDATION_FAILED",
        "BAD_REQUEST",
        "INVALID_ARGUMENT",
        "INVALID_INPUT",
        "INVALID_PAYLOAD",
        "UNAUTHENTICATED",
        "UNAUTHORIZED",
        "FORBIDDEN",
        "PERMISSION_DENIED",
        "NOT_FOUND",
        "UNSUPPORTED",
        "INVARIANT_VIOLATION",
        "TRANSITION_FORBIDDEN",
        "FORBIDDEN_TRANSITION",
        "INVALID_TRANSITION",
        "ILLEGAL_TRANSITION",
        "BAD_URL",
        "BAD_HEADER",
        "HOST_NOT_ALLOWED",
        "PRIVATE_ADDRESS",
        "SELF_CALL",
        "UNKNOWN_SECRET",
        "BODY_TOO_LARGE",
        "RESPONSE_TOO_LARGE",
        "RESPONSE_UNREADABLE",
        "RESULT_TOO_LARGE",
        "EXPRESSION_FAILED",
        "TEMPLATE_FAILED",
    ),
    FailureClass.COMPENSATION_REQUIRED: ("COMPENSATION_REQUIRED", "PARTIAL_SIDE_EFFECT"),
}

CODES: dict[str, FailureClass] = {code: cause for cause, codes in CODES_BY_CLASS.items() for code in codes}

STATUSES: dict[int, FailureClass] = {
    408: FailureClass.TRANSIENT,
    409: FailureClass.RETRYABLE,
    412: FailureClass.RETRYABLE,
    424: FailureClass.DEPENDENCY_FAILED,
    429: FailureClass.RATE_LIMITED,
    502: FailureClass.TRANSIENT,
    503: FailureClass.TRANSIENT,
    504: FailureClass.TRANSIENT,
}

UNKNOWN = FailureClass.RETRYABLE  # unknown failures are retried within the budget
CONFLICTS = frozenset({409, 412})

_STATUS_CODE = re.compile(r"HTTP_([1-5][0-9]{2})")


def class_of_status(status: int, code: str | None = None) -> FailureClass:
    """Return the class of a response other than 2xx.

    A conflict is retryable unless the body's code says otherwise, as for a forbidden transition. A code for a partial
    effect takes precedence over any status: a retry would repeat the effect.
    """
    known = CODES.get(normal(code))
    if known is FailureClass.COMPENSATION_REQUIRED:
        return known
    if status in CONFLICTS and known is FailureClass.NON_RETRYABLE:
        return known
    if status in STATUSES:
        return STATUSES[status]
    return FailureClass.RETRYABLE if status >= 500 else FailureClass.NON_RETRYABLE


def class_of_code(code: str | None) -> FailureClass | None:
    """Return the class of a known code, or None; `HTTP_503` stands for the status."""
    word = normal(code)
    if by_status := _STATUS_CODE.fullmatch(word):
        return class_of_status(int(by_status[1]))
    return CODES.get(word)


def failure_class(word: str | None, status: str, code: str | None = None) -> FailureClass:
    """Return the failure class of a service's RESULT.

    It is the class given, else the one that its status implies (FAILED_FINAL, FAILED_RETRY), else that of its error
    code. A code that requires compensation takes precedence over the status.
    """
    try:
        return FailureClass(normal(word))
    except ValueError:
        known = class_of_code(code)
    if known is FailureClass.COMPENSATION_REQUIRED:
        return known
    if status == "FAILED_FINAL":
        return FailureClass.NON_RETRYABLE
    if known is None or (status == "FAILED_RETRY" and known is FailureClass.NON_RETRYABLE):
        return UNKNOWN
    return known


def normal(word: str | None) -> str:
    """Normalise a word: `rate-limited`, ` Rate Limited ` and `RATE_LIMITED` are the same."""
    return (word or "").strip().upper().replace("-", "_").replace(" ", "_")
