"""How a service says that an attempt failed, and whether another one may help.

StepFailure                  any class, with a code of yours
├── Transient                gone in a moment: a dropped connection, a timeout
├── RateLimited              told to wait; says for how long if it knows
├── DependencyFailed         something this service needs is broken
├── NonRetryable             no retry will cure it: bad input, bad parameters
├── CompensationRequired     a part was done that must be undone; opens a review item
└── Stopped                  raised by `ctx.raise_if_stopping()`
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import NamedTuple

CODE_LIMIT = 128
MESSAGE_LIMIT = 2000
LONGEST_RETRY_AFTER = 86_400.0


class FailureClass(StrEnum):
    TRANSIENT = "TRANSIENT"
    RETRYABLE = "RETRYABLE"
    RATE_LIMITED = "RATE_LIMITED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    NON_RETRYABLE = "NON_RETRYABLE"
    COMPENSATION_REQUIRED = "COMPENSATION_REQUIRED"


class StepFailure(Exception):
    """Raised by a step: the RESULT is FAILED with this class and code. The message is shown to operators."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        failure_class: FailureClass = FailureClass.RETRYABLE,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code[:CODE_LIMIT] or "UNSPECIFIED"
        self.message = message[:MESSAGE_LIMIT]
        self.failure_class = failure_class
        self.retry_after_seconds = _bounded(retry_after_seconds)


class Transient(StepFailure):
    def __init__(self, code: str, message: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(code, message, failure_class=FailureClass.TRANSIENT, retry_after_seconds=retry_after_seconds)


class RateLimited(StepFailure):
    def __init__(self, code: str, message: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(
            code, message, failure_class=FailureClass.RATE_LIMITED, retry_after_seconds=retry_after_seconds
        )


class DependencyFailed(StepFailure):
    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message, failure_class=FailureClass.DEPENDENCY_FAILED)


class NonRetryable(StepFailure):
    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message, failure_class=FailureClass.NON_RETRYABLE)


class CompensationRequired(StepFailure):
    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message, failure_class=FailureClass.COMPENSATION_REQUIRED)


class StopReason(StrEnum):
    CANCELLED = "CANCELLED"
    """Someone cancels the job: stop soon, nobody waits for the result."""
    LEASE_LOST = "LEASE_LOST"
    """Another attempt counts now, or none: whatever this one does is in vain."""
    SHUTDOWN = "SHUTDOWN"
    """The process ends and its grace period is over."""


_STOPPED = {
    StopReason.CANCELLED: ("CANCELLED", "the job is being cancelled"),
    StopReason.LEASE_LOST: ("LEASE_LOST", "another attempt is current"),
    StopReason.SHUTDOWN: ("SERVICE_STOPPING", "the service stopped before it was done"),
}


class Stopped(StepFailure):
    def __init__(self, reason: StopReason) -> None:
        super().__init__(*_STOPPED[reason], failure_class=FailureClass.TRANSIENT)


class Mapped(NamedTuple):
    """What an exception of a library stands for."""

    failure_class: FailureClass
    code: str | None = None


_BY_STATUS = {
    408: FailureClass.TRANSIENT,
    409: FailureClass.RETRYABLE,
    412: FailureClass.RETRYABLE,
    424: FailureClass.DEPENDENCY_FAILED,
    429: FailureClass.RATE_LIMITED,
    502: FailureClass.TRANSIENT,
    503: FailureClass.TRANSIENT,
    504: FailureClass.TRANSIENT,
}


def class_of_status(status: int) -> FailureClass:
    """As the orchestrator would classify it."""
    if 400 <= status < 500:
        return _BY_STATUS.get(status, FailureClass.NON_RETRYABLE)
    return _BY_STATUS.get(status, FailureClass.RETRYABLE)


def failure_from_status(
    status: int, message: str = "", *, code: str | None = None, retry_after_seconds: float | None = None
) -> StepFailure:
    """The failure that an HTTP answer of something you called stands for."""
    return StepFailure(
        code or f"HTTP_{status}",
        message or f"answered {status}",
        failure_class=class_of_status(status),
        retry_after_seconds=retry_after_seconds,
    )


def failure_of(error: BaseException, mapped: Mapping[type[BaseException], Mapped]) -> StepFailure | None:
    """What an exception stands for; None if it is a surprise."""
    if isinstance(error, StepFailure):
        return error
    for kind in type(error).__mro__:
        if kind in mapped:
            found = mapped[kind]
            code = found.code or type(error).__name__
            return StepFailure(code, _first_line(error), failure_class=found.failure_class)
    status = _status_of(error)
    if status is not None:
        return failure_from_status(status, _first_line(error), retry_after_seconds=_retry_after_of(error))
    if isinstance(error, TimeoutError):
        return Transient("TIMEOUT", _first_line(error))
    if isinstance(error, ConnectionError):
        return Transient("CONNECTION_FAILED", _first_line(error))
    return None


def unexpected(error: BaseException) -> StepFailure:
    """An exception nobody foresaw: its type and first line, so that an operator has a start."""
    return StepFailure("UNEXPECTED_ERROR", _first_line(error))


def redacted(failure: StepFailure, secret: str) -> StepFailure:
    """Without the attempt's token, which an exception's text may quote."""
    if secret and secret in failure.message:
        failure.message = failure.message.replace(secret, "[redacted]")
    return failure


def retry_after_seconds(header: str | None) -> float | None:
    """The seconds a `Retry-After` header names, in either of its forms."""
    if not header:
        return None
    try:
        return _bounded(float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return _bounded((until - datetime.now(UTC)).total_seconds())


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:500]


def _status_of(error: BaseException) -> int | None:
    """The status of an HTTP client's exception, as aiohttp, httpx, requests and the cloud SDKs name it."""
    response = getattr(error, "response", None)
    for owner, name in ((error, "status"), (error, "status_code"), (response, "status_code"), (response, "status")):
        found = getattr(owner, name, None)
        if isinstance(found, int) and 400 <= found <= 599:
            return int(found)
    return None


def _retry_after_of(error: BaseException) -> float | None:
    for owner in (error, getattr(error, "response", None)):
        headers = getattr(owner, "headers", None)
        if isinstance(headers, Mapping):
            said = headers.get("Retry-After") or headers.get("retry-after")
            return retry_after_seconds(said) if isinstance(said, str) else None
    return None


def _bounded(seconds: float | None) -> float | None:
    return None if seconds is None or seconds != seconds else min(LONGEST_RETRY_AFTER, max(0.0, seconds))
