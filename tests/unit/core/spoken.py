"""Callbacks of a service, with the lease that it holds."""

from typing import Any, NamedTuple

from lucius.core.model.inputs import Failed, Succeeded
from lucius.core.model.records import ErrorInfo
from lucius.core.model.statuses import FailureClass


class Lease(NamedTuple):
    """The identifiers of an attempt that its callbacks must carry."""

    step_id: str
    attempt_no: int
    lease_id: str


def success(lease: Lease, result: Any = None, **extra: Any) -> Succeeded:
    return Succeeded(
        step_id=lease.step_id,
        attempt_no=lease.attempt_no,
        lease_id=lease.lease_id,
        extra=extra,
        result={"pages": 3} if result is None else result,
        artifact_refs=["file:///w/pages.json"],
    )


def failure(
    lease: Lease,
    failure_class: FailureClass = FailureClass.RETRYABLE,
    code: str = "OUT_OF_PAPER",
    retry_after_ms: int | None = None,
    **extra: Any,
) -> Failed:
    return Failed(
        step_id=lease.step_id,
        attempt_no=lease.attempt_no,
        lease_id=lease.lease_id,
        extra=extra,
        failure_class=failure_class,
        error=ErrorInfo(code, "it did not work"),
        retry_after_ms=retry_after_ms,
    )
