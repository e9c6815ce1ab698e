"""Deployment of one seed: its protocols and settings, with short times and tight limits."""

import random

from lucius.bootstrap.settings import Settings
from lucius.core.model.decision import Defaults
from lucius.core.protocol.definition import Policies, ProtocolDefinition, RetryPolicy, StepSpec
from lucius.ports.errors import ProtocolError
from tests.simulation.protocols import SERVICES, draw_protocol

LEASE_SLACK_MS = 1_500  # added to the timeout of the engine's own calls
WEBHOOK_MASTER = "whsec_YSBtYXN0ZXIgc2VjcmV0IG9mIHRoZSBzaW11bGF0aW9u"
RETRY_INTERVAL = 1.0  # seconds between retries of a bus that is down


class FixedProtocols:
    """ProtocolSource with the seed's protocols: one to three tasks in sequence, or of every kind."""

    def __init__(self, rng: random.Random, *, varied: bool) -> None:
        draw = draw_protocol if varied else _protocol
        self._protocols = {protocol.request_type: protocol for protocol in (draw(rng, n) for n in (1, 2, 3))}

    def resolve(self, request_type: str, version: int | None = None) -> ProtocolDefinition | None:
        return self._protocols.get(request_type)

    def list(self) -> tuple[ProtocolDefinition, ...]:
        return tuple(self._protocols.values())

    def refresh(self) -> bool:
        return False

    def problems(self) -> tuple[ProtocolError, ...]:
        return ()


def _protocol(rng: random.Random, steps: int) -> ProtocolDefinition:
    retry = RetryPolicy(
        max_attempts=rng.choice((None, None, 2, 6)),
        backoff_strategy=rng.choice(("fixed", "exponential", "jittered")),
        initial_delay_ms=rng.choice((0, 300, 1_000)),
        max_delay_ms=3_000,
        handover_backoff_ms=(400, 1_500, 4_000),
        ack_backoff_ms=(400, 1_500, 4_000),
    )
    specs = tuple(
        StepSpec(
            step_id=service,
            step_type=service.upper(),
            service=service,
            ack_timeout_ms=rng.choice((None, None, 1_500)),
            lease_ms=rng.choice((None, None, 3_000)),
            timeout_ms=rng.choice((None, None, None, 9_000)),
            retry_policy=retry,
        )
        for service in rng.sample(SERVICES, steps)
    )
    policies = Policies(timeout_ms=rng.choice((None, None, None, 20_000, 60_000)))
    return ProtocolDefinition(
        protocol_id=f"p{steps}", version=1, request_type=f"P{steps}", steps=specs, policies=policies
    )


def draw_settings(rng: random.Random, pushes: bool) -> Settings:
    defaults = Defaults(
        ack_timeout_ms=rng.choice((2_000, 4_000)),
        lease_ms=rng.choice((3_000, 6_000)),
        max_attempts=rng.choice((3, 3, 5)),
    )
    return Settings(
        bus_url="memory:" if pushes else "local:",
        workspace_root="file:///workspace",
        token_secrets=("a secret of the simulation",),
        webhook_master=WEBHOOK_MASTER,
        defaults=defaults,
        tenant_inflight=rng.choice((2, 4, 100, 100)),
        max_unacked=rng.choice((1, 2, 100)),
        outbox_retry_interval=RETRY_INTERVAL,
        publish_timeout=1.5,
        sweep_interval=rng.choice((0.2, 0.5)),
        repair_interval=3.0,
    )
