"""How a service says that an attempt failed, and whether another one may help.

StepFailure                  any class, with a code of yours
├── Transient                gone in a moment: a dropped connection, a timeout
├── RateLimited              told to wait; says for how long if it knows
├── DependencyFailed         something this service needs is broken
├── NonRetryable             no retry will cure it: bad input, bad parameters
├── CompensationRequired     a part was done that must be undone; opens a review item
└── Stopped                  raised by `ctx.raise_if_stopping()`
"""

import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import NamedTuple

CODE_LIMIT = 128
MESSAGE_LIMIT = 2000
LONGEST_RETRY_AFTER = 86_400.0
REDACTED = "[redacted]"
TELLING_LENGTH = 8
"""A piece of a token that is shorter than this tells nobody anything."""


class FailureClass(StrEnum):
    TRANSIENT = "TRANSIENT"
    RETRYABLE = "RETRYABLE"
    RATE_LIMITED = "RATE_LIMITED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    NON_RETRYABLE = "NON_RETRYABLE"
    COMPENSATION_REQUIRED = "COMPENSATION_REQUIRED"


class StepFailure(Exception):
    """Raised by a step: the RESULT is FAILED with this class and code. The message is shown to operators."""

    # What a subclass says that never calls our __init__.
    code: str = "UNSPECIFIED"
    message: str = ""
    failure_class: FailureClass = FailureClass.RETRYABLE
    retry_after_seconds: float | None = None

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        failure_class: FailureClass = FailureClass.RETRYABLE,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = _sendable(code)[:CODE_LIMIT] or "UNSPECIFIED"
        self.message = _sendable(message)[:MESSAGE_LIMIT]
        self.failure_class = FailureClass(failure_class)
        self.retry_after_seconds = _bounded(retry_after_seconds)


class Transient(StepFailure):
    failure_class = FailureClass.TRANSIENT

    def __init__(self, code: str, message: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(code, message, failure_class=FailureClass.TRANSIENT, retry_after_seconds=retry_after_seconds)


class RateLimited(StepFailure):
    failure_class = FailureClass.RATE_LIMITED

    def __init__(self, code: str, message: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(
            code, message, failure_class=FailureClass.RATE_LIMITED, retry_after_seconds=retry_after_seconds
        )


class DependencyFailed(StepFailure):
    failure_class = FailureClass.DEPENDENCY_FAILED

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message, failure_class=FailureClass.DEPENDENCY_FAILED)


class NonRetryable(StepFailure):
    failure_class = FailureClass.NON_RETRYABLE

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message, failure_class=FailureClass.NON_RETRYABLE)


class CompensationRequired(StepFailure):
    failure_class = FailureClass.COMPENSATION_REQUIRED

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


# Errors of HTTP clients that have no status, by the names their classes bear: none of them is a dependency of ours.
_TIMEOUTS = frozenset({"TimeoutError", "Timeout", "TimeoutException", "APITimeoutError", "ServiceResponseTimeoutError"})
_NO_CONNECTION = frozenset(
    {
        "ConnectionError",
        "ClientConnectionError",
        "ClientPayloadError",
        "ChunkedEncodingError",
        "IncompleteRead",
        "TransportError",
        "APIConnectionError",
        "ServiceRequestError",
        "ServiceResponseError",
        "gaierror",
    }
)


def class_of_status(status: int) -> FailureClass:
    """As the orchestrator would classify it."""
    return _BY_STATUS.get(status, FailureClass.RETRYABLE if status >= 500 else FailureClass.NON_RETRYABLE)


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
    try:
        return _known(error, mapped)
    except Exception:  # noqa: BLE001 - attributes of a foreign exception may be properties, and fail
        return None


def _known(error: BaseException, mapped: Mapping[type[BaseException], Mapped]) -> StepFailure | None:
    if isinstance(error, StepFailure):
        return error
    kinds = type(error).__mro__
    found = next((mapped[kind] for kind in kinds if kind in mapped), None)
    if found is not None:
        code, after = found.code or type(error).__name__, _retry_after_of(error)
        return StepFailure(code, _first_line(error), failure_class=found.failure_class, retry_after_seconds=after)
    if isinstance(error, BaseExceptionGroup):  # of a task group, say: one of them may be a word from the author
        return next((known for inner in error.exceptions if (known := failure_of(inner, mapped))), None)
    status = _status_of(error)
    if status is not None:
        return failure_from_status(status, _first_line(error), retry_after_seconds=_retry_after_of(error))
    names = {kind.__name__ for kind in kinds}
    if names & _TIMEOUTS:
        return Transient("TIMEOUT", _first_line(error))
    return Transient("CONNECTION_FAILED", _first_line(error)) if names & _NO_CONNECTION else None


def unexpected(error: BaseException) -> StepFailure:
    """An exception nobody foresaw: its type and first line, so that an operator has a start."""
    return StepFailure("UNEXPECTED_ERROR", _first_line(error))


def redacted(failure: StepFailure, secret: str) -> StepFailure:
    """Without the attempt's token, which an exception's text may quote, whole or cut off at the end."""
    failure.code = _without(_sendable(failure.code), secret)
    failure.message = _without(_sendable(failure.message), secret)
    return failure


def traceback_of(error: BaseException, secret: str) -> str:
    """For our own log, and it is not to hold the token either."""
    return "".join(traceback.format_exception(error)).replace(secret or REDACTED, REDACTED)


def _without(text: str, secret: str) -> str:
    if not secret:
        return text
    text = text.replace(secret, REDACTED)
    for length in range(len(secret) - 1, TELLING_LENGTH - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + REDACTED
    return text


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
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it can't even say what it is
        text = ""
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"[:500]


def _sendable(text: object) -> str:
    """Without half characters, as the names of odd files have them: they are not UTF-8, and so not JSON."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def _status_of(error: BaseException) -> int | None:
    """The status of an HTTP client's exception, as aiohttp, httpx, requests, urllib and the cloud SDKs name it."""
    response = getattr(error, "response", None)
    for owner in (error, response):
        for name in ("status", "status_code", "code"):
            found = getattr(owner, name, None)
            if isinstance(found, int) and 300 <= found <= 599:
                return int(found)
    return None


def _retry_after_of(error: BaseException) -> float | None:
    for owner in (error, getattr(error, "response", None)):
        get = getattr(getattr(owner, "headers", None), "get", None)
        said = (get("Retry-After") or get("retry-after")) if callable(get) else None
        if isinstance(said, str):
            return retry_after_seconds(said)
    return None


def _bounded(seconds: float | None) -> float | None:
    """A plain number: what a library calls a float need not be one that JSON knows."""
    return None if seconds is None or seconds != seconds else min(LONGEST_RETRY_AFTER, max(0.0, float(seconds)))
