"""Messages between API, workflow and activities, as JSON that is readable in Temporal's console."""

import hashlib
import uuid
from collections.abc import Sequence
from typing import get_args

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from lucius.core.model.decision import Decision, Defaults, EndedAttempt, JobSnapshot, Reply
from lucius.core.model.inputs import Cap, HandedOver, Heartbeat, Input, Submit
from lucius.core.model.records import Event, Instant, Job, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.inbox import InboxMessage

WORKFLOW_TYPE = "LuciusJob"
ACT_UPDATE = "act"


class JobMessage(Struct, frozen=True, omit_defaults=True):
    """Encoded input or reply of the core with its type name.

    `message` is the id of its inbox message, which the ledger keeps until the job's history has the input.
    """

    kind: str
    body: Raw
    message_id: str = ""


_INPUTS: dict[str, type[Input]] = {kind.__name__: kind for kind in get_args(Input) if kind is not Submit}
_REPLIES: dict[str, type[Reply]] = {kind.__name__: kind for kind in get_args(Reply)}

# Built here: msgspec builds a type's decoder at first use, which several threads, as of workflows, may not do at once
_INPUT_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in _INPUTS.items()}
_REPLY_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in _REPLIES.items()}
_MESSAGES_DECODER = msgspec.json.Decoder(list[JobMessage])


def encode_input(value: Input, message_id: str = "") -> JobMessage:
    return JobMessage(type(value).__name__, Raw(msgspec.json.encode(value)), message_id)


def decode_input(message: JobMessage) -> Input:
    return _INPUT_DECODERS[message.kind].decode(message.body)


def make_inbox_message(job_id: str, inputs: Sequence[Input], at: Instant) -> InboxMessage:
    """Make an inbox message with an id derived from its content; repeats share it, heartbeats never do.

    Hand-overs of one attempt share it, to whichever pull: only the first that is inserted counts.
    """
    packed = identity = msgspec.json.encode([encode_input(value) for value in inputs])
    if any(isinstance(one, HandedOver) and one.tenant_bound for one in inputs):
        identity = msgspec.json.encode([encode_input(_for_any_pull(value)) for value in inputs])
    nonce = uuid.uuid4().bytes if all(isinstance(one, Heartbeat) for one in inputs) else b""
    return InboxMessage(f"{job_id}/{hashlib.sha256(identity + nonce).hexdigest()[:32]}", job_id, packed.decode(), at)


def _for_any_pull(value: Input) -> Input:
    return replace(value, tenant_bound=UNSET) if isinstance(value, HandedOver) else value


REPEAT_MARKER = "/again-"


def make_repeat(message: InboxMessage) -> InboxMessage:
    """Copy the message under a new id: a repeat is recorded on its own."""
    return InboxMessage(
        f"{message.message_id}{REPEAT_MARKER}{uuid.uuid4().hex[:12]}", message.job_id, message.body, message.at
    )


def original_id(message_id: str) -> str:
    return message_id.partition(REPEAT_MARKER)[0]


CLAIM_MARKER = "/claim-"


def make_claim(job_id: str, handed_over: Input, at: Instant) -> InboxMessage:
    """Make the message that claims a publish or call; it is not redelivered while that is in progress."""
    message = make_inbox_message(job_id, [handed_over], at)
    return InboxMessage(message.message_id.replace("/", CLAIM_MARKER), job_id, message.body, at)


def decode_inbox_message(message: InboxMessage) -> list[JobMessage]:
    messages = _MESSAGES_DECODER.decode(message.body)
    return [JobMessage(one.kind, one.body, message.message_id) for one in messages]


class WorkflowArgs(Struct, frozen=True, omit_defaults=True):
    """Workflow argument; everything else is in the ledger.

    With `publishes`, directives are published by an activity; otherwise services pull them from the outbox.
    """

    job_id: str = ""
    publishes: bool = False
    defaults: Defaults = Defaults()
    searchable: bool = False
    job: "LoadedJob | None" = None
    """The job as accepted; loaded from the ledger if None."""


class LoadedJob(Struct, frozen=True, omit_defaults=True):
    """Job as stored in the ledger, with every step that has started. `job` is None if it no longer exists.

    If the steps exceed one payload, `asked` names the steps that are included.
    """

    job: Job | None = None
    protocol: ProtocolDefinition | None = None
    steps: list[Step] = []
    asked: list[str] | None = None


class Projection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decision to commit, without the data that the ledger already has."""

    job: Job
    steps: tuple[Step, ...] = ()
    attempts: tuple[EndedAttempt, ...] = ()
    outbox: tuple[OutboxRow, ...] = ()
    events: tuple[Event, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    reviews: tuple[ReviewItem, ...] = ()
    counters: dict[str, int] = {}
    caps: tuple[Cap, ...] = ()
    message_ids: tuple[str, ...] = ()
    protocol: ProtocolDefinition | None = None
    changes: bool = True
    creates: bool = False
    digest: str = ""
    is_urgent: bool = False
    """The activity must not wait for callbacks."""
    may_be_repeat: bool = False
    """Records only a repeat, perhaps one that a lost task has recorded: then its first inbox message is gone."""
    defaults: Defaults | None = None
    """Defaults for inline decisions; without them, the workflow decides about callbacks."""

    def decision(self, protocol: ProtocolDefinition) -> Decision:
        known = ("message_ids", "protocol", "digest", "is_urgent", "may_be_repeat", "defaults")
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in known}
        return Decision(**fields, replies=(), protocol=protocol)


def make_projection(decision: Decision, outbox: tuple[OutboxRow, ...], message_ids: tuple[str, ...]) -> Projection:
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
        message_ids=message_ids,
        protocol=decision.protocol if decision.creates else None,
        changes=decision.changes,
        creates=decision.creates,
        digest=digest_decision(decision),
    )


def digest_decision(decision: Decision) -> str:
    """Hash the parts of a decision that a replay must reproduce. Fields added by later versions are not included."""
    job, steps = decision.job, decision.steps
    leases = [(step.step_id, step.status, step.attempt.attempt_no, step.attempt.lease_id) for step in steps]
    parts = msgspec.json.encode((job.version, job.event_hash, job.status, job.due_at, leases))
    return hashlib.sha256(parts).hexdigest()[:16]


class InlineDecision(Struct, frozen=True):
    """Decision taken by the activity while a task was open: its messages, time and digest."""

    messages: list[JobMessage]
    at: Instant
    digest: str


class ProjectionResult(Struct, frozen=True, omit_defaults=True):
    """Result of a projection.

    `limit_reached` is the limit that refused it. `ledger` is the job found instead of the expected version: newer than
    Temporal knows if a worker died after its commit, or older if a backup was restored. `digest` is that of the
    projected decision, for replays.
    """

    limit_reached: Cap | None = None
    ledger: LoadedJob | None = None
    key_taken: bool = False
    """Another job holds its idempotency key."""
    downtime_end: Instant = 0
    """End of a downtime during which attempts would have timed out; 0 if there was none."""
    digest: str = ""
    early_messages: list[JobMessage] = []
    """Messages received meanwhile, which also arrive as signals."""
    inline_decisions: list[InlineDecision] = []
    """Inline decisions taken before `early_messages` arrived."""
    already_recorded: bool = False
    """It was projected before: its inbox messages are gone."""


class HandoverRequest(Struct, frozen=True):
    """Attempt whose directive is to be published, or whose external call is to be made."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    service: str
    topic: str


class ActResult(Struct, frozen=True, omit_defaults=True):
    """Result of an update: the core's replies, or the limit that refused it."""

    replies: list[JobMessage] = []
    limit_reached: Cap | None = None


def encode_replies(replies: tuple[Reply, ...]) -> list[JobMessage]:
    return [JobMessage(type(reply).__name__, Raw(msgspec.json.encode(reply))) for reply in replies]


def decode_replies(replies: list[JobMessage]) -> tuple[Reply, ...]:
    return tuple(_REPLY_DECODERS[reply.kind].decode(reply.body) for reply in replies)


def advance_snapshot(snapshot: JobSnapshot, decision: Decision) -> JobSnapshot:
    """Return the job after a decision."""
    changed = {step.step_id: step for step in decision.steps}
    asked = None if snapshot.asked is None else snapshot.asked | changed.keys()
    return JobSnapshot(decision.job, snapshot.protocol, {**snapshot.steps, **changed}, asked)


def is_due(job: Job, now: Instant) -> bool:
    return job.live and job.due_at is not None and job.due_at <= now
