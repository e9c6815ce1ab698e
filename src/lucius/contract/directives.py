"""Directives, and the pull requests by which services fetch them."""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from lucius.contract.fields import Timestamp


class StepInput(Struct, frozen=True):
    """Result of an earlier step."""

    result: Any = None
    artifact_refs: list[str] = field(default_factory=list)


class CallbackUrls(Struct, frozen=True, omit_defaults=True):
    ack: str
    result: str
    heartbeat: str


class RefRules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rules for the refs of a job. An absent list permits everything; `{tenant}` is already replaced.

    `hosts` are names, or `*.name`, each with a port unless it is the scheme's default, and `containers` the first part
    of `blob:` refs and of Azure Blob Storage's URLs. `prefixes` are compared with container and path of such refs by
    whole segments, or with the whole ref if they have a scheme. For `file:` refs: they lie below `file_roots`, and not
    below `protected` unless they lie deeper, below `reachable`. No `blob:` ref leads to a `protected` file either.
    """

    input_schemes: list[str] | None = None
    output_schemes: list[str] | None = None
    hosts: list[str] | None = None
    containers: list[str] | None = None
    prefixes: list[str] | None = None
    file_roots: list[str] | None = None
    protected: list[str] = field(default_factory=list)
    reachable: list[str] = field(default_factory=list)


class Directive(Struct, frozen=True, kw_only=True):
    """Asks a service for one attempt at one step."""

    message_id: str
    jobId: str
    stepId: str
    tenant_id: str
    protocol_id: str
    protocol_version: int
    request_type: str
    step_type: str
    kind: str
    service: str
    attempt_no: int
    lease_id: str
    lease_seconds: float
    ack_deadline: Timestamp
    idempotency_key: str
    lane: int
    mode: str
    routing_key_used: str
    input_ref: str
    workspace_ref: str
    output_ref: str
    payload: dict[str, Any]
    callback_urls: CallbackUrls
    callback_token: str
    correlation_id: str
    last_step: bool
    inputs: dict[str, StepInput] = field(default_factory=dict)
    doc_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    timeout_ms: int | None = None
    retry_safety: str = "SAFE_TO_RETRY"
    guard: dict[str, Any] | None = None
    """Present on a repeated attempt of a guarded step: check first whether the previous attempt took effect."""
    item: Any = None
    item_index: int | None = None
    compensates: str | None = None
    ref_rules: list[RefRules] = field(default_factory=list)
    """Rules that every ref must satisfy; a service refuses other refs with FORBIDDEN_REF, NON_RETRYABLE."""


class PullRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=500)] = 1
    wait_seconds: Annotated[float, Meta(ge=0)] = 0
    lanes: Annotated[list[Annotated[int, Meta(ge=0, le=15)]], Meta(min_length=1, max_length=16)] | None = None


class PullAnswer(Struct, frozen=True):
    directives: list[Directive]
