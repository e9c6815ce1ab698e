"""Simulation of a job: the real core on a virtual clock, with services, hosts and people that follow a script."""

from typing import Any

from msgspec import Struct

from lucius.authoring.actors import CallSimulator, People, Services
from lucius.authoring.formatting import duration
from lucius.authoring.script import Script
from lucius.authoring.sim_state import SimState
from lucius.authoring.timeline import PathStep, TimelineEntry
from lucius.core.model.decision import EndedAttempt
from lucius.core.model.inputs import Start, Submit
from lucius.core.model.records import Command, Instant, Job, Millis, ReviewItem, Step
from lucius.core.model.routing import route
from lucius.core.model.statuses import Mode
from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition, digest

DEFAULT_START_MS: Instant = 1_767_225_600_000  # 2026-01-01 00:00 UTC, so that the time of day is the elapsed time
CLIENT = "client"


class SimulationLimits(Struct, frozen=True, kw_only=True):
    max_time_ms: Millis = 366 * 86_400_000
    max_decisions: int = 200_000


DEFAULT_LIMITS = SimulationLimits()


class SimulationResult(Struct, frozen=True, kw_only=True):
    """Outcome of a simulation.

    `stands_still` says what the job would wait for forever, `cut_off` why the simulation was stopped early.
    """

    job: Job
    protocol: ProtocolDefinition
    started_at: Instant
    ended_at: Instant
    steps: dict[str, Step]
    attempts: tuple[EndedAttempt, ...]
    reviews: tuple[ReviewItem, ...]
    timeline: tuple[TimelineEntry, ...]
    path: tuple[PathStep, ...]
    notes: tuple[str, ...]
    stands_still: str | None = None
    cut_off: str | None = None


def simulate(
    protocol: ProtocolDefinition,
    payload: dict[str, Any],
    script: Script,
    *,
    tools: Tools,
    calls: CallSimulator,
    seed: int = 0,
    limits: SimulationLimits = DEFAULT_LIMITS,
    start: Instant = DEFAULT_START_MS,
) -> SimulationResult:
    """Simulate one job and return the outcome: the same for the same arguments.

    `payload` must have passed the checks of ingress.
    """
    state = SimState(protocol, tools, seed, start)
    People(state, script)
    services = Services(state, script, calls)
    state.decide(_submit(protocol, payload), Start())
    while state.job.live:
        services.take()
        at = state.next_instant()
        if at is None:
            return _result(state, stands_still=state.explain_wait())
        if why := _exceeded_limit(state, at, limits):
            return _result(state, cut_off=why)
        state.advance_to(at)
    return _result(state)


def _exceeded_limit(state: SimState, at: Instant, limits: SimulationLimits) -> str | None:
    if at - state.start > limits.max_time_ms:
        return f"it would take longer than {duration(limits.max_time_ms)}: {state.explain_wait()}"
    if state.decisions >= limits.max_decisions:
        return f"it took more than {limits.max_decisions} decisions: {state.explain_wait()}"
    return None


def _submit(protocol: ProtocolDefinition, payload: dict[str, Any]) -> Submit:
    command = Command(
        tenant_id="author",
        request_type=protocol.request_type,
        input_ref="blob://in/document.pdf",
        output_ref="blob://out/result.json",
        payload=payload,
        schema_version="v1",
        workspace_ref="blob://work/lucius/author/simulation",
        correlation_id="simulation",
        doc_id="document",
        target={"type": "document", "id": "document"},
        submitted_by=CLIENT,
    )
    return Submit(
        job_id="simulation",
        command=command,
        protocol=protocol,
        protocol_digest=digest(protocol),
        routing=route(command.tenant_id, command.doc_id, Mode.DEFAULT, "SIMULATION", "a rehearsal"),
    )


def _result(state: SimState, *, stands_still: str | None = None, cut_off: str | None = None) -> SimulationResult:
    state.timeline.finish(state.view)
    return SimulationResult(
        job=state.job,
        protocol=state.protocol,
        started_at=state.start,
        ended_at=state.now,
        steps=dict(state.view.steps),
        attempts=tuple(state.attempts),
        reviews=tuple(state.reviews.values()),
        timeline=tuple(state.timeline.entries),
        path=tuple(state.timeline.path),
        notes=tuple(state.timeline.notes),
        stands_still=stands_still,
        cut_off=cut_off,
    )
