"""A rehearsal: the real core on a virtual clock, with services, callers and people that do what a script says."""

from typing import Any

from msgspec import Struct

from lucius.authoring.players import Calls, People, Services
from lucius.authoring.script import Script
from lucius.authoring.stage import Stage
from lucius.authoring.timeline import Entry, Leg
from lucius.authoring.words import duration
from lucius.core.decision import EndedAttempt
from lucius.core.inputs import Start, Submit
from lucius.core.model import Command, Instant, Job, Millis, Mode, ReviewItem, Step
from lucius.core.protocol import Protocol, digest
from lucius.core.routing import route
from lucius.core.tools import Tools

MIDNIGHT: Instant = 1_767_225_600_000  # of 2026-01-01; the time of day is then the time that has passed
CLIENT = "client"


class Limits(Struct, frozen=True, kw_only=True):
    max_time: Millis = 366 * 86_400_000
    max_decisions: int = 200_000


USUAL_LIMITS = Limits()


class Rehearsal(Struct, frozen=True, kw_only=True):
    """What came of it. `stands_still` says for what the job would wait for ever, `cut_off` why it was not ended."""

    job: Job
    protocol: Protocol
    started_at: Instant
    ended_at: Instant
    steps: dict[str, Step]
    attempts: tuple[EndedAttempt, ...]
    reviews: tuple[ReviewItem, ...]
    timeline: tuple[Entry, ...]
    path: tuple[Leg, ...]
    notes: tuple[str, ...]
    stands_still: str | None = None
    cut_off: str | None = None


def simulate(
    protocol: Protocol,
    payload: dict[str, Any],
    script: Script,
    *,
    tools: Tools,
    calls: Calls,
    seed: int = 0,
    limits: Limits = USUAL_LIMITS,
    start: Instant = MIDNIGHT,
) -> Rehearsal:
    """The same arguments have the same outcome. The payload is one that ingress has taken."""
    stage = Stage(protocol, tools, seed, start)
    People(stage, script)
    services = Services(stage, script, calls)
    stage.decide(_submit(protocol, payload), Start())
    while stage.job.live:
        services.take()
        at = stage.next()
        if at is None:
            return _rehearsal(stage, stands_still=stage.why())
        if why := _over(stage, at, limits):
            return _rehearsal(stage, cut_off=why)
        stage.go_to(at)
    return _rehearsal(stage)


def _over(stage: Stage, at: Instant, limits: Limits) -> str | None:
    if at - stage.start > limits.max_time:
        return f"it would take longer than {duration(limits.max_time)}: {stage.why()}"
    if stage.decisions >= limits.max_decisions:
        return f"it took more than {limits.max_decisions} decisions: {stage.why()}"
    return None


def _submit(protocol: Protocol, payload: dict[str, Any]) -> Submit:
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


def _rehearsal(stage: Stage, *, stands_still: str | None = None, cut_off: str | None = None) -> Rehearsal:
    stage.teller.conclude(stage.view)
    return Rehearsal(
        job=stage.job,
        protocol=stage.protocol,
        started_at=stage.start,
        ended_at=stage.now,
        steps=dict(stage.view.steps),
        attempts=tuple(stage.attempts),
        reviews=tuple(stage.reviews.values()),
        timeline=tuple(stage.teller.entries),
        path=tuple(stage.teller.path),
        notes=tuple(stage.teller.notes),
        stands_still=stands_still,
        cut_off=cut_off,
    )
