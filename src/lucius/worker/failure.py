"""How a service says that an attempt failed, and whether another one may help."""

from enum import StrEnum

CODE_LIMIT = 128
MESSAGE_LIMIT = 2000


class FailureClass(StrEnum):
    TRANSIENT = "TRANSIENT"
    RETRYABLE = "RETRYABLE"
    RATE_LIMITED = "RATE_LIMITED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    NON_RETRYABLE = "NON_RETRYABLE"
    COMPENSATION_REQUIRED = "COMPENSATION_REQUIRED"


class StepFailure(Exception):
    """Raised by `execute`: the RESULT is FAILED with this class and code. The message is shown to operators."""

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
        self.retry_after_seconds = retry_after_seconds


def never(code: str, message: str) -> StepFailure:
    """A failure that no retry will cure."""
    return StepFailure(code, message, failure_class=FailureClass.NON_RETRYABLE)


def unexpected(error: BaseException, secrets: tuple[str, ...] = ()) -> StepFailure:
    """An exception nobody foresaw: its type and first line, without tokens, so that an operator has a start."""
    first_line = str(error).partition("\n")[0]
    for secret in secrets:
        if secret:
            first_line = first_line.replace(secret, "[redacted]")
    return StepFailure("UNEXPECTED_ERROR", f"{type(error).__name__}: {first_line}"[:500])
