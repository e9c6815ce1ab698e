"""Simulated operators: vote, signal, pause, resume, cancel, retry, skip, compensate, adopt and discard, concurrently.

While faults are on they act at random. Afterwards they settle every job that waits for an operator.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from msgspec import Struct

from lucius.adapters.ledger.memory.tables import JobEntry
from lucius.bootstrap.control_plane import ControlPlane
from lucius.core.model.records import ReviewItem, Step
from lucius.core.model.statuses import JobStatus, ReviewKind, ReviewStatus, StepStatus
from lucius.ports.errors import LedgerFull
from lucius.usecases.access.auth import ALL_SCOPES, Principal
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.operations.reviews import RequestedAct
from tests.simulation.clients import BUSY
from tests.simulation.clock import VirtualLoop
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.flow_rules import FROM_HERE
from tests.simulation.monitor import Monitor
from tests.simulation.process import Network, Process, Unanswered
from tests.simulation.protocols import FINANCE, PEOPLE

MAX_RUNS = 4
STRANGER, CARETAKER = "eve", "caretaker"
SUPPLIED = {"n": 5, "items": [2]}

# Relative weight of each act, in a world that has it at all.
LIKED: dict[str, float] = {
    "approve": 4,
    "reject": 1,
    "vote_oddly": 1,
    "signal": 3,
    "signal_oddly": 0.3,
    "pause": 3,
    "resume": 3,
    "cancel": 0.7,
    "retry": 2,
    "retry_from": 1.5,
    "retry_item": 1.5,
    "skip": 2,
    "compensate": 2.5,
    "adopt": 8,
    "discard": 1,
    "weigh": 0.5,
}

# Permitted refusals: the state of the job or the review item does not allow the act.
REFUSALS = BUSY | {
    RejectCode.JOB_TERMINAL,
    RejectCode.JOB_LIVE,
    RejectCode.JOB_CANCELLING,
    RejectCode.COMPENSATING,
    RejectCode.COMPENSATED,
    RejectCode.NOTHING_TO_COMPENSATE,
    RejectCode.STEP_NOT_FOUND,
    RejectCode.STEP_NOT_REACHED,
    RejectCode.STEP_SUCCEEDED,
    RejectCode.UNKNOWN_SIGNAL,
    RejectCode.TOO_MANY_SIGNALS,
    RejectCode.NOT_AN_APPROVER,
    RejectCode.ALREADY_VOTED,
    RejectCode.APPROVAL_ENDED,
    RejectCode.REVIEW_OPEN,
    RejectCode.REVIEW_CLOSED,
    RejectCode.ACT_NOT_APPLICABLE,
}


class Deed(Struct, frozen=True):
    """Request of an operator. `proof` is the event that must exist once it was granted."""

    name: str
    do: Callable[[ControlPlane], Coroutine[Any, Any, Any]]
    proof: tuple[str, str] | None = None


class People:
    def __init__(
        self, loop: VirtualLoop, rng: random.Random, disk: Disk, faults: Faults, monitor: Monitor, network: Network
    ) -> None:
        self._loop, self._rng, self._disk, self._faults = loop, rng, disk, faults
        self._monitor, self._network = monitor, network
        self._liked = {act: weight for act, weight in LIKED.items() if rng.random() < 0.75}
        self._pace = rng.choice((0.4, 0.8, 2.0))

    # Random acts while faults are on

    async def meddle(self) -> None:
        while self._faults.on:
            await asyncio.sleep(self._rng.uniform(0, self._pace))
            if self._liked and self._disk.records:
                self._begin(self._rng.choices([*self._liked], [*self._liked.values()])[0])

    def _begin(self, act: str) -> None:
        jobs = [record for record in self._disk.records.values() if self._is_apt(act, record)]
        if not jobs and self._rng.random() < 0.2:
            jobs = [*self._disk.records.values()]
        if not jobs:
            return
        record = self._rng.choice(jobs)
        deeds = [self._deed(act, record)]
        if self._rng.random() < 0.2:  # a second operator asks for the same or another act
            other = self._rng.choice([*self._liked])
            deeds.append(self._deed(other, record) if self._rng.random() < 0.5 else deeds[0])
        for deed in deeds:
            if deed is not None:
                self._monitor.watch(self._loop.create_task(self._ask(record.job.job_id, deed)))

    def _is_apt(self, act: str, record: JobEntry) -> bool:
        job = record.job
        held = job.paused is not None and job.paused.on_review
        match act:
            case "approve" | "reject" | "vote_oddly":
                return any(step.status is StepStatus.AWAITING_APPROVAL for step in record.steps.values())
            case "signal":
                return job.live and bool(_signals(record))
            case "signal_oddly" | "cancel":
                return job.live
            case "pause":
                return job.live and job.paused is None
            case "resume":
                return job.paused is not None
            case "adopt" | "discard" | "weigh":
                return bool(self._items(record, stale=act == "adopt"))
            case _:
                ended = job.status in (JobStatus.FAILED_FINAL, JobStatus.CANCELLED)
                return (held or ended) and job.run_no < MAX_RUNS

    def _deed(self, act: str, record: JobEntry) -> Deed | None:
        rng, job_id, who = self._rng, record.job.job_id, _person(self._rng.choice(PEOPLE))
        match act:
            case "approve" | "reject" | "vote_oddly":
                return self._vote(act, record)
            case "signal" | "signal_oddly":
                known = _signals(record) if act == "signal" else []
                return _signal(job_id, who, rng.choice(known) if known else "nobody-waits-for-this")
            case "pause":
                return Deed(act, lambda runtime: runtime.operations.pause(job_id, who, "let me see"))
            case "resume":
                return Deed(act, lambda runtime: runtime.operations.resume(job_id, who, "go on"))
            case "cancel":
                self._monitor.known.cancels_asked.add(job_id)
                return Deed(act, lambda runtime: runtime.operations.cancel(job_id, who, "changed my mind"))
            case "retry" | "retry_from":
                start = rng.choice(record.protocol.steps).step_id if act == "retry_from" else None
                why = FROM_HERE if start else "again"
                return Deed(act, lambda runtime: runtime.operations.retry(job_id, who, why, start))
            case _:
                items = self._items(record, stale=act == "adopt")
                return self._review(act, rng.choice(items), who) if items else None

    def _vote(self, act: str, record: JobEntry) -> Deed | None:
        """Return a vote; an odd one comes from a stranger, is a repeat, or is late."""
        rng, odd = self._rng, act == "vote_oddly"
        asked = [step for step in record.steps.values() if step.kind == "human_approval"]
        steps = asked if odd else [step for step in asked if step.status is StepStatus.AWAITING_APPROVAL]
        if not steps:
            return None
        step = rng.choice(steps)
        voter = rng.choice((*PEOPLE, STRANGER)) if odd else rng.choice(_may_vote(record, step) or list(PEOPLE))
        return _vote(record, step, _person(voter), approves=act != "reject")

    def _review(self, act: str, item: ReviewItem, who: Principal) -> Deed:
        weigh = act == "weigh"
        if weigh:
            act = self._rng.choice(("retry", "skip", "compensate", "discard", "adopt"))
        act = "retry" if act == "retry_item" else act
        result = SUPPLIED if act == "skip" else None
        requested = RequestedAct(act=act, reason="as I see it", result=result, dry_run=weigh)
        return Deed("weigh" if weigh else act, lambda runtime: runtime.reviews.act(item.review_id, requested, who))

    def _items(self, record: JobEntry, *, stale: bool) -> list[ReviewItem]:
        items = self._monitor.known.reviews.values()
        mine = [i for i in items if i.job_id == record.job.job_id and i.status is ReviewStatus.OPEN]
        return [item for item in mine if (item.kind is ReviewKind.STALE_RESULT) is stale]

    async def _ask(self, job_id: str, deed: Deed) -> None:
        """Perform the deed, and check that a refusal is a permitted one and that a granted act is recorded."""
        said = "GRANTED"
        try:
            await self._network.call(lambda process: _granted(process, deed))
        except (Unanswered, LedgerFull):
            return
        except Rejected as refused:
            self._monitor.require(refused.code in REFUSALS, "people are answered", job_id, f"{deed.name}: {refused}")
            said = refused.code
        self._monitor.trace.note("people", job_id, deed.name, said)
        self._faults.saw(f"{deed.name}_{said}")
        if said == "GRANTED" and deed.proof is not None:
            events = self._disk.records[job_id].events
            told = any((event.type, event.data.get("by")) == deed.proof for event in events)
            self._monitor.require(told, "what people did is told", job_id, f"{deed.name}: no {deed.proof}")

    # Settling afterwards

    async def settle(self) -> None:
        """Act once on every live job that waits for an operator."""
        for record in [*self._disk.records.values()]:
            for deed in [*self._due(record)] if record.job.live else ():
                await self._ask(record.job.job_id, deed)

    def _due(self, record: JobEntry) -> Iterator[Deed]:
        rng, job, who = self._rng, record.job, _person(CARETAKER)
        if job.paused is not None and job.paused.on_review:
            yield self._resolution(record, who)
        elif job.paused is not None:
            yield Deed("resume", lambda runtime: runtime.operations.resume(job.job_id, who, ""))
        else:
            for step in record.steps.values():
                if step.status is StepStatus.AWAITING_APPROVAL and rng.random() < 0.6:
                    approves = rng.random() < 0.8 or self._faults.calm
                    yield from (_vote(record, step, _person(v), approves=approves) for v in _may_vote(record, step)[:1])
                elif step.status is StepStatus.WAITING and step.awaits is not None and rng.random() < 0.6:
                    yield _signal(job.job_id, who, step.awaits)

    def _resolution(self, record: JobEntry, who: Principal) -> Deed:
        """Return the review act for a job that is held on its review item."""
        item = record.job.review
        assert item is not None, "a rule sees to that"
        spent = record.job.run_no >= MAX_RUNS
        return self._review(
            "discard" if spent else self._rng.choice(("compensate", "retry", "skip", "discard")), item, who
        )


async def _granted(process: Process, deed: Deed) -> None:
    await deed.do(process.runtime)


def _person(name: str) -> Principal:
    groups = frozenset({FINANCE}) if name in PEOPLE else frozenset[str]()
    return Principal(name, frozenset(ALL_SCOPES), frozenset({"*"}), groups=groups)


def _signals(record: JobEntry) -> list[str]:
    waits = [place.spec.wait for place in record.protocol.plan.places.values()]
    return sorted({wait.signal for wait in waits if wait is not None and wait.signal is not None})


def _signal(job_id: str, who: Principal, name: str) -> Deed:
    proof = ("SIGNAL_RECEIVED", who.name)
    return Deed("signal", lambda runtime: runtime.operations.signal(job_id, who, name, {"n": 1}, ""), proof)


def _vote(record: JobEntry, step: Step, who: Principal, *, approves: bool) -> Deed:
    job_id, step_id = record.job.job_id, step.step_id
    proof = ("STEP_APPROVED" if approves else "STEP_REJECTED", who.name)
    return Deed("vote", lambda runtime: runtime.operations.vote(job_id, step_id, who, approves, "as I see it"), proof)


def _may_vote(record: JobEntry, step: Step) -> list[str]:
    spec = record.protocol.step(step.step_id)
    approval = spec.human_approval if spec else None
    named = PEOPLE if approval is None or FINANCE in approval.approvers else approval.approvers
    return [name for name in named if name not in {vote.by for vote in step.votes}]
