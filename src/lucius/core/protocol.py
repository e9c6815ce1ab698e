"""Protocols as data: an ordered list of steps, chosen by request type and pinned by every job it starts."""

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

BackoffStrategy = Literal["fixed", "exponential", "jittered"]

# Checked whenever a protocol is decoded, from a file or from the ledger: they may be widened, never narrowed.
MONTH_MS = 31 * 24 * 3600 * 1000
Delay = Annotated[int, Meta(ge=0, le=MONTH_MS)]
Timeout = Annotated[int, Meta(ge=1, le=MONTH_MS)]
Backoffs = Annotated[tuple[Delay, ...], Meta(min_length=1, max_length=100)]
Text = Annotated[str, Meta(max_length=4096)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?!\n)$")]
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}(?!\n)$")]
Alias = Annotated[str, Meta(min_length=1, max_length=128)]


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a step is tried again. What is absent comes from the deployment's defaults."""

    max_attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    backoff_strategy: BackoffStrategy = "jittered"
    initial_delay_ms: Delay = 5_000
    max_delay_ms: Delay = 300_000
    handover_backoff_ms: Backoffs = (30_000, 120_000, 600_000)
    ack_backoff_ms: Backoffs = (60_000, 300_000, 900_000)


class StepSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    step_id: Slug
    step_type: Word
    service: Slug
    kind: Literal["task"] = "task"
    name: Text = ""
    ack_timeout_ms: Timeout | None = None
    lease_ms: Timeout | None = None
    timeout_ms: Timeout | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    payload_schema: dict[str, Any] = field(default_factory=dict)


class Policies(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    timeout_ms: Timeout | None = None
    max_inflight: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class Protocol(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    protocol_id: Word
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    request_type: Word
    steps: Annotated[tuple[StepSpec, ...], Meta(min_length=1, max_length=200)]
    title: Text = ""
    description: Text = ""
    aliases: Annotated[tuple[Alias, ...], Meta(max_length=100)] = ()
    policies: Policies = Policies()

    def step(self, step_id: str) -> StepSpec | None:
        return next((spec for spec in self.steps if spec.step_id == step_id), None)

    def index(self, step_id: str) -> int:
        return next(i for i, spec in enumerate(self.steps) if spec.step_id == step_id)

    def after(self, step_id: str) -> StepSpec | None:
        following = self.index(step_id) + 1
        return self.steps[following] if following < len(self.steps) else None


def payload_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """What a payload schema gives for top-level members that a client leaves out."""
    properties = schema.get("properties", {})
    return {name: part["default"] for name, part in properties.items() if isinstance(part, dict) and "default" in part}


def digest(protocol: Protocol) -> str:
    """Content address of a protocol: jobs pin it, so an edited file can never change a running job."""
    return hashlib.sha256(msgspec.json.encode(protocol, order="deterministic")).hexdigest()
