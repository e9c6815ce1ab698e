"""Commands of clients, and requests of operators about jobs and the outbox."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from lucius.contract.fields import Identifier, PositiveInt, Reason, Timestamp
from lucius.contract.problems import Fault


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    type: Identifier
    id: Identifier


class ClientCallbackUrls(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    ack: Annotated[str, Meta(max_length=2048)] | None = None
    result: Annotated[str, Meta(max_length=2048)] | None = None
    job: Annotated[str, Meta(max_length=2048)] | None = None


class CommandEnvelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Command of a client, version v1. A null member counts as absent."""

    tenant_id: Annotated[str, Meta(min_length=1, max_length=256)]
    request_type: Annotated[str, Meta(min_length=1, max_length=128)]
    input_ref: Annotated[str, Meta(min_length=1, max_length=4096)]
    output_ref: Annotated[str, Meta(min_length=1, max_length=4096)]
    payload: dict[str, Any]
    schema_version: Literal["v1"]
    mode: Literal["DEFAULT", "SAFE", "BURST"] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    doc_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    callback_urls: ClientCallbackUrls | None = None
    correlation_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    traceparent: Annotated[str, Meta(max_length=256)] | None = None
    target: Target | None = None
    protocol_version: PositiveInt | None = None


class Accepted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    jobId: str
    status: str
    duplicate: bool
    accepted_at: Timestamp | None = None
    """Time at which the job of a duplicate was accepted; absent for a new job."""


class CancelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Cancels a job. `reason` is recorded in the job's events."""

    reason: Reason | None = None


class OutboxRetryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason | None = None


class CommandBatch(Struct, frozen=True, forbid_unknown_fields=True):
    commands: Annotated[list[CommandEnvelope], Meta(max_length=500)]


class CommandOutcome(Struct, frozen=True, kw_only=True):
    """Answer to one command of a batch: `status_code` and members of the answer that it would get as a single request.

    An accepted command has `jobId`, `status` (of the job) and `duplicate`, and a duplicate also `accepted_at`. A
    refused command has the members of a problem.
    """

    status_code: int
    status: str | int
    jobId: str | None = None
    duplicate: bool | None = None
    accepted_at: Timestamp | None = None
    code: str | None = None
    type: str | None = None
    title: str | None = None
    detail: str | None = None
    errors: list[Fault] | None = None
    retry_after_seconds: int | None = None


class CommandBatchAnswer(Struct, frozen=True):
    """Answers to a batch, in the order of its commands."""

    results: list[CommandOutcome]
