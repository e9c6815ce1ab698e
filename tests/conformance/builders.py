"""Small decisions built directly from records: a ledger must not depend on the rules of the core."""

from typing import Any

from msgspec.structs import replace

from lucius.core.model.decision import Applied, Decision, EndedAttempt
from lucius.core.model.inputs import Cap
from lucius.core.model.records import (
    Attempt,
    Blocked,
    Command,
    Event,
    Job,
    OutboxRow,
    Quarantined,
    Routing,
    Step,
    message_id,
)
from lucius.core.model.statuses import AttemptOutcome, BlockedReason, JobStatus, Mode, OutboxStatus, StepStatus
from lucius.core.protocol.definition import ProtocolDefinition, StepSpec, digest

ROUTING = Routing(Mode.DEFAULT, 3, "acme", "default", "no mode was asked for")


def protocol(version: int = 1, **fields: Any) -> ProtocolDefinition:
    steps = (
        StepSpec(step_id="ocr", step_type="OCR", service="ocr"),
        StepSpec(step_id="embedding", step_type="EMBEDDING", service="embedding"),
    )
    return ProtocolDefinition(
        **{"protocol_id": "p", "version": version, "request_type": "OCR", "steps": steps, **fields}
    )


PROTOCOL = protocol()


def command(job_id: str, **fields: Any) -> Command:
    given = {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": "blob://in/a.pdf",
        "output_ref": "blob://out/a.json",
        "payload": {"ocr": {"language": "de"}},
        "schema_version": "v1",
        "workspace_ref": f"file:///w/lucius/acme/{job_id}",
        "correlation_id": f"c-{job_id}",
        "idempotency_hash": f"hash-of-{job_id}",
    }
    return Command(**{**given, **fields})


def job(job_id: str, *, asked: Command | None = None, pinned: ProtocolDefinition = PROTOCOL, **fields: Any) -> Job:
    created_at = fields.get("created_at", 1_000)
    given = {
        "job_id": job_id,
        "command": asked or command(job_id),
        "protocol_id": pinned.protocol_id,
        "protocol_version": pinned.version,
        "protocol_digest": digest(pinned),
        "routing": ROUTING,
        "status": JobStatus.DISPATCHING,
        "created_at": created_at,
        "updated_at": created_at,
        "version": 1,
    }
    return Job(**{**given, **fields})


def accept(
    job_id: str, *, asked: Command | None = None, pinned: ProtocolDefinition = PROTOCOL, **fields: Any
) -> Decision:
    """Return a new job without steps or rows. `counters` and `caps` go to the decision, the rest to the job."""
    counters: dict[str, int] = fields.pop("counters", {})
    caps: tuple[Cap, ...] = fields.pop("caps", ())
    new = job(job_id, asked=asked, pinned=pinned, **fields)
    return Decision(job=new, replies=(Applied(),), protocol=pinned, creates=True, counters=counters, caps=caps)


def dispatch(job_id: str, *, service: str = "ocr", asked: Command | None = None, **row_fields: Any) -> Decision:
    """Return a new job whose step `ocr` is in the outbox."""
    first = step(job_id, service=service)
    new = accept(
        job_id,
        asked=asked,
        active=("ocr",),
        current_step_id="ocr",
        event_seq=2,
        blocked=Blocked(BlockedReason.HANDOVER, 1_000, None, "ocr", "ocr"),
    )
    events = (Event(job_id, 1, "JOB_ACCEPTED", 1_000), Event(job_id, 2, "STEP_DISPATCHED", 1_000, "ocr", 1))
    rows = (row(first, service=service, **row_fields),)
    return replace(new, steps=(first,), outbox=rows, events=events)


def then(before: Decision, **fields: Any) -> Decision:
    """Return the next decision about the job. Fields named like records go to the decision, the rest to the job."""
    names = ("steps", "attempts", "outbox", "events", "quarantined", "counters", "caps")
    records = {name: fields.pop(name) for name in names if name in fields}
    pinned = fields.pop("protocol", before.protocol)
    changed = replace(before.job, version=before.job.version + 1, **fields)
    return Decision(job=changed, replies=(Applied(),), protocol=pinned, **records)


def attempt(job_id: str, step_id: str = "ocr", attempt_no: int = 1, **fields: Any) -> Attempt:
    given = {
        "attempt_no": attempt_no,
        "lease_id": f"lease-{attempt_no}",
        "run_no": 1,
        "routing": ROUTING,
        "outbox_id": message_id(job_id, step_id, attempt_no),
        "created_at": 1_000,
    }
    return Attempt(**{**given, **fields})


def step(job_id: str, step_id: str = "ocr", **fields: Any) -> Step:
    given = {
        "job_id": job_id,
        "step_id": step_id,
        "index": 0 if step_id == "ocr" else 1,
        "kind": "task",
        "step_type": step_id.upper(),
        "service": step_id,
        "status": StepStatus.DISPATCHING,
        "attempt": attempt(job_id, step_id),
        "tries": 1,
        "idempotency_key": f"key-{step_id}",
        "created_at": 1_000,
        "updated_at": 1_000,
    }
    return Step(**{**given, **fields})


def row(of: Step, **fields: Any) -> OutboxRow:
    given = {
        "outbox_id": of.attempt.outbox_id,
        "job_id": of.job_id,
        "tenant_id": "acme",
        "step_id": of.step_id,
        "attempt_no": of.attempt.attempt_no,
        "lease_id": of.attempt.lease_id,
        "service": of.service,
        "topic": "global-bus-p3",
        "lane": 3,
        "status": OutboxStatus.PENDING,
        "created_at": 1_000,
    }
    return OutboxRow(**{**given, **fields})


def ended(job_id: str, attempt_no: int, step_id: str = "ocr", **fields: Any) -> EndedAttempt:
    outcome = fields.pop("outcome", AttemptOutcome.FAILED)
    return EndedAttempt(step_id, attempt(job_id, step_id, attempt_no, outcome=outcome, **fields))


def stale_success(job_id: str, attempt_no: int, received_at: int = 5_000, result: Any = None) -> Quarantined:
    return Quarantined(job_id, "ocr", attempt_no, f"lease-{attempt_no}", received_at, result, ["blob://out/x"])
