"""Callbacks of services: ACK, heartbeat and RESULT."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from lucius.contract.fields import Error, Identifier, PositiveInt, ProgressCounts, Timestamp
from lucius.contract.problems import Fault


class AckCallback(Struct, kw_only=True):
    jobId: Identifier
    stepId: Identifier
    tenant_id: Identifier
    attempt_no: PositiveInt
    lease_id: Identifier


class HeartbeatCallback(AckCallback, kw_only=True):
    progress: Annotated[float, Meta(ge=0, le=1)] | ProgressCounts | None = None


class ResultCallback(AckCallback, kw_only=True):
    status: Literal["SUCCEEDED", "FAILED", "FAILED_RETRY", "FAILED_FINAL"]
    result: Any = None
    artifact_refs: Annotated[list[Annotated[str, Meta(max_length=4096)]], Meta(max_length=1000)] | None = None
    failure_class: Annotated[str, Meta(max_length=64)] | None = None
    error: Error | None = None
    retry_after_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None


class CallbackAnswer(Struct, frozen=True, kw_only=True):
    disposition: Literal["APPLIED", "DUPLICATE", "LATE", "STALE"]
    lease_expires_at: Timestamp | None = None
    cancel_requested: bool = False


class CallbackItem(ResultCallback, kw_only=True):
    """One callback of a batch. `status`, `result` and the other members of a RESULT are only for type `result`."""

    type: Literal["ack", "heartbeat", "result"]
    callback_token: str
    status: Literal["SUCCEEDED", "FAILED", "FAILED_RETRY", "FAILED_FINAL"] | None = None  # type: ignore[assignment]
    progress: Annotated[float, Meta(ge=0, le=1)] | ProgressCounts | None = None


class CallbackBatch(Struct, frozen=True, forbid_unknown_fields=True):
    callbacks: Annotated[list[CallbackItem], Meta(max_length=500)]


class CallbackOutcome(Struct, frozen=True, kw_only=True):
    """Answer to one callback of a batch: `status_code` and members of the answer that it would get as a single request.

    `disposition` is present in every answer and with STALE_CALLBACK. A refused callback has the members of a problem.
    """

    status_code: int
    status: int
    disposition: str | None = None
    lease_expires_at: Timestamp | None = None
    cancel_requested: bool | None = None
    jobId: str | None = None
    code: str | None = None
    type: str | None = None
    title: str | None = None
    detail: str | None = None
    errors: list[Fault] | None = None
    retry_after_seconds: int | None = None


class CallbackBatchAnswer(Struct, frozen=True):
    """Answers to a batch, in the order of its callbacks."""

    results: list[CallbackOutcome]
