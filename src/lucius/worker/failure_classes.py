"""Failure classes of the orchestrator, for the SDK, which does not import the core.

Written by scripts/sdk_failure_classes.py from core/policies/failure_classes.py. It has classes and statuses only:
the core alone maps error codes. Run the script to change it.
"""

from enum import StrEnum


class FailureClass(StrEnum):
    TRANSIENT = "TRANSIENT"
    RETRYABLE = "RETRYABLE"
    RATE_LIMITED = "RATE_LIMITED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    NON_RETRYABLE = "NON_RETRYABLE"
    COMPENSATION_REQUIRED = "COMPENSATION_REQUIRED"


BY_STATUS = {
    408: FailureClass.TRANSIENT,
    409: FailureClass.RETRYABLE,
    412: FailureClass.RETRYABLE,
    424: FailureClass.DEPENDENCY_FAILED,
    429: FailureClass.RATE_LIMITED,
    502: FailureClass.TRANSIENT,
    503: FailureClass.TRANSIENT,
    504: FailureClass.TRANSIENT,
}
