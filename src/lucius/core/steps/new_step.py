"""Creates the record of a step that starts: its visit, first attempt and idempotency key."""

import hashlib
from typing import Any

from lucius.core.decide.changeset import Changeset
from lucius.core.model.records import Attempt, Step, Token, message_id
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import HTTP_SERVICE, Place, item_step_id, items_of, spec_id

CALLS = frozenset({"external_call", "notify"})
DISPATCHED = CALLS | {"task"}


def step_idempotency_key(tenant_id: str, job_id: str, step_id: str, visit: int = 1, run_no: int = 1) -> str:
    """Return a key that is the same for every attempt, so that side effects happen once over all attempts.

    A later visit in a loop, and a run that repeats a succeeded step, get new keys: they should have new effects.
    """
    parts = [tenant_id, job_id, spec_id(step_id)]
    parts += [f"item={item}" for item in items_of(step_id)]
    if visit > 1:
        parts.append(f"visit={visit}")
    if run_no > 1:
        parts.append(f"run={run_no}")
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def visit_of(changes: Changeset, old: Step | None, place: Place) -> int:
    """Return the visit number; a compensation handler that an operator retries stays in its first visit."""
    if old is None or old.run_no != changes.job.run_no:
        return 1
    return old.visit if place.handler_of is not None else old.visit + 1


def new_step(changes: Changeset, place: Place, token: Token, status: StepStatus) -> Step:
    """Return the step's record with the first attempt of this visit."""
    job, spec = changes.job, place.spec
    step_id = item_step_id(spec.step_id, token.items)
    old = changes.find(step_id)
    visit = visit_of(changes, old, place)
    key = _idempotency_key(changes, step_id, old, visit, token)
    attempt_no = old.attempt.attempt_no + 1 if old else 1
    return Step(
        job_id=job.job_id,
        step_id=step_id,
        index=place.index,
        kind=spec.kind,
        step_type=spec.step_type,
        service=HTTP_SERVICE if spec.kind in CALLS else spec.service,
        status=status,
        attempt=new_attempt(changes, step_id, attempt_no, key, visit, dispatched=status is StepStatus.DISPATCHING),
        tries=1,
        idempotency_key=key,
        created_at=old.created_at if old else changes.now,
        updated_at=changes.now,
        visit=visit,
        before=token.before,
        run_no=job.run_no,
        repeats=old is not None and old.idempotency_key == key,
        effect=_earlier_effect(old) if spec.compensation is not None and old is not None else None,
    )


def _earlier_effect(old: Step) -> Any:
    if old.undone:
        return None
    return old.result if old.status is StepStatus.SUCCEEDED else old.effect


def _idempotency_key(changes: Changeset, step_id: str, old: Step | None, visit: int, token: Token) -> str:
    """Return the step's key: the old one while the same side effect is meant, else a new one.

    A failed later visit is continued only by a run that starts there; any other run begins with visit one.
    """
    job = changes.job
    continues = old is not None and (token.keeps or old.visit == 1)
    same_work = continues and old is not None and _remains_to_be_done(old) and old.run_no != job.run_no
    if old is not None and (same_work or (old.visit == visit and old.run_no == job.run_no)):
        return old.idempotency_key  # it is still the same side effect
    run_no = job.run_no if old is not None else 1
    return step_idempotency_key(job.tenant_id, job.job_id, step_id, visit, run_no)


def _remains_to_be_done(step: Step) -> bool:
    """Return whether the step has yet to succeed. An undone success needs a new key, as its old one would match it."""
    return step.status is not StepStatus.SUCCEEDED and not step.undone


def new_attempt(
    changes: Changeset,
    step_id: str,
    attempt_no: int,
    key: str,
    visit: int,
    *,
    dispatched: bool = True,
    outbox_id: str | None = None,
) -> Attempt:
    return Attempt(
        attempt_no=attempt_no,
        lease_id=changes.env.new_id(),
        run_no=changes.job.run_no,
        routing=changes.job.routing,
        outbox_id=(outbox_id or message_id(changes.job.job_id, step_id, attempt_no)) if dispatched else "",
        created_at=changes.now,
        idempotency_key=key,
        visit=visit,
    )
