"""Exceptions that a step raises to fail its attempt; the failure class decides whether it is retried.

StepFailure                  any class, with a code of the author's
├── Transient                short-lived: a dropped connection, a timeout
├── RateLimited              a rate limit was hit; carries the time to wait if it is known
├── DependencyFailed         something this service needs is broken
├── NonRetryable             a retry cannot help: bad input, bad parameters
├── CompensationRequired     effects must be undone; opens a review item
└── Stopped                  raised by `ctx.raise_if_stopping()`
"""

import os
import traceback
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from lucius.retry_after import bound_seconds, parse_retry_after
from lucius.worker.failure_classes import BY_STATUS, FailureClass

MAX_CODE_CHARS = 128
MAX_MESSAGE_CHARS = 2000
REDACTED = "[redacted]"
MIN_SECRET_PREFIX_CHARS = 8
"""Shorter prefixes of a token are not redacted: they reveal nothing."""


class StepFailure(Exception):
    """Raised by a step: the RESULT is FAILED with this class and code. The message is shown to operators."""

    # Defaults for a subclass that does not call this __init__.
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
        self.code = _sendable(code)[:MAX_CODE_CHARS] or "UNSPECIFIED"
        self.message = _sendable(message)[:MAX_MESSAGE_CHARS]
        self.failure_class = FailureClass(failure_class)
        self.retry_after_seconds = bound_seconds(retry_after_seconds)


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
    """The job is being cancelled: stop soon, the result is not needed."""
    LEASE_LOST = "LEASE_LOST"
    """This attempt is no longer current: its result will not be applied."""
    SHUTDOWN = "SHUTDOWN"
    """The process is stopping and its grace period is over."""


_STOPPED = {
    StopReason.CANCELLED: ("CANCELLED", "the job is being cancelled"),
    StopReason.LEASE_LOST: ("LEASE_LOST", "another attempt is current"),
    StopReason.SHUTDOWN: ("SERVICE_STOPPING", "the service stopped before it was done"),
}


class Stopped(StepFailure):
    def __init__(self, reason: StopReason) -> None:
        super().__init__(*_STOPPED[reason], failure_class=FailureClass.TRANSIENT)


class ErrorMapping(NamedTuple):
    """Failure class and code that a library's exception maps to."""

    failure_class: FailureClass
    code: str | None = None


# Errors of HTTP clients without a status, by class name: the SDK does not depend on these libraries.
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


def classify_status(status: int) -> FailureClass:
    """Return the failure class of an HTTP status, as the orchestrator would classify it."""
    return BY_STATUS.get(status, FailureClass.RETRYABLE if status >= 500 else FailureClass.NON_RETRYABLE)


def failure_from_status(
    status: int, message: str = "", *, code: str | None = None, retry_after_seconds: float | None = None
) -> StepFailure:
    """Return the failure for an HTTP status answered by a system that the step called."""
    return StepFailure(
        code or f"HTTP_{status}",
        message or f"answered {status}",
        failure_class=classify_status(status),
        retry_after_seconds=retry_after_seconds,
    )


def classify_error(error: BaseException, mapped: Mapping[type[BaseException], ErrorMapping]) -> StepFailure | None:
    """Return the failure that an exception stands for; None if it is unknown."""
    try:
        return _known(error, mapped)
    except Exception:  # noqa: BLE001 - attributes of a foreign exception may be properties, and fail
        return None


def _known(error: BaseException, mapped: Mapping[type[BaseException], ErrorMapping]) -> StepFailure | None:
    if isinstance(error, StepFailure):
        return error
    kinds = type(error).__mro__
    found = next((mapped[kind] for kind in kinds if kind in mapped), None)
    if found is not None:
        code, after = found.code or type(error).__name__, _retry_after_of(error)
        return StepFailure(code, _first_line(error), failure_class=found.failure_class, retry_after_seconds=after)
    if isinstance(error, BaseExceptionGroup):  # such as a task group's: one member may be a StepFailure
        return next((known for inner in error.exceptions if (known := classify_error(inner, mapped))), None)
    status = _status_of(error)
    if status is not None:
        return failure_from_status(status, _first_line(error), retry_after_seconds=_retry_after_of(error))
    names = {kind.__name__ for kind in kinds}
    if names & _TIMEOUTS:
        return Transient("TIMEOUT", _first_line(error))
    return Transient("CONNECTION_FAILED", _first_line(error)) if names & _NO_CONNECTION else None


def unexpected_failure(error: BaseException) -> StepFailure:
    """Return the failure for an unknown exception, with its type and first line for the operator."""
    return StepFailure("UNEXPECTED_ERROR", _first_line(error))


def redact(failure: StepFailure, secret: str) -> StepFailure:
    """Remove the attempt's token, which an exception's text may quote, whole or truncated at the end."""
    failure.code = _without(_sendable(failure.code), secret)
    failure.message = _without(_sendable(failure.message), secret)
    return failure


def format_traceback(error: BaseException, secret: str) -> str:
    """Return the traceback for the service's log, without the token."""
    return "".join(traceback.format_exception(error)).replace(secret or REDACTED, REDACTED)


def _without(text: str, secret: str) -> str:
    if not secret:
        return text
    text = text.replace(secret, REDACTED)
    for length in range(len(secret) - 1, MIN_SECRET_PREFIX_CHARS - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + REDACTED
    return text


def _first_line(error: BaseException) -> str:
    try:
        text = str(error)
        if isinstance(error, OSError):
            text = _without_folders(text, error.filename, error.filename2)
    except Exception:  # noqa: BLE001 - it can't even say what it is
        text = ""
    return f"{type(error).__name__}: {text.partition(chr(10))[0]}"[:500]


def _without_folders(text: str, *paths: object) -> str:
    """Shorten absolute paths to the file's name: clients see the text, and the log has the traceback."""
    for path in paths:
        if isinstance(path, str) and os.path.isabs(path):
            text = text.replace(path, os.path.basename(path))
    return text


def _sendable(text: object) -> str:
    """Replace lone surrogates, which undecodable file names contain: they can't be encoded as UTF-8 and JSON."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def _status_of(error: BaseException) -> int | None:
    """Return the status of an HTTP client's exception, as aiohttp, httpx, requests, urllib and cloud SDKs name it."""
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
            return parse_retry_after(said)
    return None
