"""What goes between API, workflow and activities: JSON that a person can read in Temporal's own console."""

import hashlib
import uuid
from collections.abc import Sequence
from typing import get_args

import msgspec
from msgspec import Raw, Struct

from lucius.core.decision import Decision, Defaults, EndedAttempt, JobView, Reply
from lucius.core.inputs import Cap, Heartbeat, Input, Submit
from lucius.core.model import Event, Instant, Job, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.protocol import Protocol
from lucius.ports.inbox import Letter

WORKFLOW = "LuciusJob"
ACT = "act"


class Happened(Struct, frozen=True, omit_defaults=True):
    """An input of the core by name. `letter` is where the inbox has it, until it is in the job's history."""

    kind: str
    body: Raw
    letter: str = ""


_INPUTS: dict[str, type[Input]] = {kind.__name__: kind for kind in get_args(Input) if kind is not Submit}
_REPLIES: dict[str, type[Reply]] = {kind.__name__: kind for kind in get_args(Reply)}


def pack(happened: Input, letter: str = "") -> Happened:
    return Happened(type(happened).__name__, Raw(msgspec.json.encode(happened)), letter)


def unpack(happened: Happened) -> Input:
    return msgspec.json.decode(happened.body, type=_INPUTS[happened.kind])


def letter_of(job_id: str, said: Sequence[Input], at: Instant) -> Letter:
    """The same thing said twice is the same letter; but each heartbeat counts."""
    packed = msgspec.json.encode([pack(happened) for happened in said])
    nonce = uuid.uuid4().bytes if all(isinstance(one, Heartbeat) for one in said) else b""
    return Letter(f"{job_id}/{hashlib.sha256(packed + nonce).hexdigest()[:32]}", job_id, packed.decode(), at)


REPEATED = "/again-"


def repeated(letter: Letter) -> Letter:
    """What is said again is a letter of its own: it is recorded by itself, or was."""
    return Letter(f"{letter.letter_id}{REPEATED}{uuid.uuid4().hex[:12]}", letter.job_id, letter.body, letter.at)


def first_of(letter_id: str) -> str:
    return letter_id.partition(REPEATED)[0]


CLAIM = "/claim-"


def claim_of(job_id: str, handed_over: Input, at: Instant) -> Letter:
    """Of who is about to publish, or to call: while that is under way, nobody else is to tell of it."""
    letter = letter_of(job_id, [handed_over], at)
    return Letter(letter.letter_id.replace("/", CLAIM), job_id, letter.body, at)


def packed_letter(letter: Letter) -> list[Happened]:
    said = msgspec.json.decode(letter.body, type=list[Happened])
    return [Happened(happened.kind, happened.body, letter.letter_id) for happened in said]


class Begin(Struct, frozen=True, omit_defaults=True):
    """A workflow's argument; all else is in the ledger. `publishes` if directives go out by an activity; else services
    pull them out of the outbox."""

    job_id: str = ""
    publishes: bool = False
    defaults: Defaults = Defaults()
    searchable: bool = False
    job: "Loaded | None" = None
    """As it was accepted, or else it is loaded."""


class Loaded(Struct, frozen=True, omit_defaults=True):
    """A job as the ledger has it, with every step that has started; None if it is gone. If that is too much, `asked`
    names the steps that are here."""

    job: Job | None = None
    protocol: Protocol | None = None
    steps: list[Step] = []
    asked: list[str] | None = None


class Projection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision without what the ledger has already."""

    job: Job
    steps: tuple[Step, ...] = ()
    attempts: tuple[EndedAttempt, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    events: tuple[Event, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    reviews: tuple[ReviewItem, ...] = ()
    counters: dict[str, int] = {}
    caps: tuple[Cap, ...] = ()
    letters: tuple[str, ...] = ()
    protocol: Protocol | None = None
    changes: bool = True
    creates: bool = False
    decided: str = ""
    hurries: bool = False
    """It is not to wait for what services say."""
    doubted: bool = False
    """It says only what was said before, perhaps by a task that was lost: then the first of its letters is gone."""
    defaults: Defaults | None = None
    """With which what services answer at once is decided, too; or else it is for the workflow."""

    def decision(self, protocol: Protocol) -> Decision:
        known = ("letters", "protocol", "decided", "hurries", "doubted", "defaults")
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in known}
        return Decision(**fields, replies=(), protocol=protocol)


def projection(decision: Decision, outbox: tuple[OutboxRow, ...], letters: tuple[str, ...]) -> Projection:
    return Projection(
        job=decision.job,
        steps=decision.steps,
        attempts=decision.attempts,
        outbox=outbox,
        events=decision.events,
        quarantined=decision.quarantined,
        reviews=decision.reviews,
        counters=decision.counters,
        caps=decision.caps,
        letters=letters,
        protocol=decision.protocol if decision.creates else None,
        changes=decision.changes,
        creates=decision.creates,
        decided=digest(decision),
    )


def digest(decision: Decision) -> str:
    """What a replay must decide, too. Fields that a later version adds are no part of it."""
    job, steps = decision.job, decision.steps
    leases = [(step.step_id, step.status, step.attempt.attempt_no, step.attempt.lease_id) for step in steps]
    said = msgspec.json.encode((job.version, job.event_hash, job.status, job.due_at, leases))
    return hashlib.sha256(said).hexdigest()[:16]


class Turn(Struct, frozen=True):
    """A further decision, taken while a task was open: about what, when, and its digest."""

    happened: list[Happened]
    at: Instant
    decided: str


class Projected(Struct, frozen=True, omit_defaults=True):
    """`full` names the limit that refused it. `ledger` is what was found there instead of the version before: more than
    Temporal knows of, if a worker died that had written it; or less, if a backup was put back. `decided` is the digest
    of what was projected, for replays."""

    full: Cap | None = None
    ledger: Loaded | None = None
    taken: bool = False
    """Another job has its idempotency key."""
    away: Instant = 0
    """Until when the ledger was, while time passed that would be held against services."""
    decided: str = ""
    heard: list[Happened] = []
    """What was said of the job meanwhile; signals will say so, too."""
    turns: list[Turn] = []
    """What was decided before that about more of the same."""
    is_old: bool = False
    """It was projected before, as its letters show."""


class HandOver(Struct, frozen=True):
    """Which attempt is to be published, or called out for."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    service: str
    topic: str


class Answer(Struct, frozen=True, omit_defaults=True):
    """What became of an act: the core's replies, or the limit that stands in its way."""

    replies: list[Happened] = []
    full: Cap | None = None


def packed_replies(replies: tuple[Reply, ...]) -> list[Happened]:
    return [Happened(type(reply).__name__, Raw(msgspec.json.encode(reply))) for reply in replies]


def unpacked_replies(replies: list[Happened]) -> tuple[Reply, ...]:
    return tuple(msgspec.json.decode(reply.body, type=_REPLIES[reply.kind]) for reply in replies)


def advanced(view: JobView, decision: Decision) -> JobView:
    """The job as it stands after a decision."""
    changed = {step.step_id: step for step in decision.steps}
    asked = None if view.asked is None else view.asked | changed.keys()
    return JobView(decision.job, view.protocol, {**view.steps, **changed}, asked)


def is_due(job: Job, now: Instant) -> bool:
    return job.live and job.due_at is not None and job.due_at <= now
