"""Protocols as data: an ordered list of steps, chosen by request type and pinned by every job it starts."""

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from lucius.core.model import Millis

BackoffStrategy = Literal["fixed", "exponential", "jittered"]


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a step is tried again. What is absent comes from the deployment's defaults."""

    max_attempts: int | None = None
    backoff_strategy: BackoffStrategy = "jittered"
    initial_delay_ms: Millis = 5_000
    max_delay_ms: Millis = 300_000
    handover_backoff_ms: tuple[Millis, ...] = (30_000, 120_000, 600_000)
    ack_backoff_ms: tuple[Millis, ...] = (60_000, 300_000, 900_000)


class StepSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    step_id: str
    step_type: str
    service: str
    kind: Literal["task"] = "task"
    name: str = ""
    ack_timeout_ms: Millis | None = None
    lease_ms: Millis | None = None
    timeout_ms: Millis | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    payload_schema: dict[str, Any] = field(default_factory=dict)


class Policies(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    timeout_ms: Millis | None = None
    max_inflight: int | None = None


class Protocol(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    protocol_id: str
    version: int
    request_type: str
    steps: tuple[StepSpec, ...]
    title: str = ""
    description: str = ""
    aliases: tuple[str, ...] = ()
    policies: Policies = Policies()

    def step(self, step_id: str) -> StepSpec | None:
        return next((spec for spec in self.steps if spec.step_id == step_id), None)

    def index(self, step_id: str) -> int:
        return next(i for i, spec in enumerate(self.steps) if spec.step_id == step_id)

    def after(self, step_id: str) -> StepSpec | None:
        following = self.index(step_id) + 1
        return self.steps[following] if following < len(self.steps) else None


def digest(protocol: Protocol) -> str:
    """Content address of a protocol: jobs pin it, so an edited file can never change a running job."""
    return hashlib.sha256(msgspec.json.encode(protocol, order="deterministic")).hexdigest()
