"""The record of a step whose turn has come: which visit and attempt it is, and the key its side effects go by."""

import hashlib
from typing import Any

from lucius.core.draft import Draft
from lucius.core.model import Attempt, Step, StepStatus, Token, message_id
from lucius.core.protocol import HTTP_SERVICE, Place, at_items, items_of, spec_id

CALLS = frozenset({"external_call", "notify"})
DISPATCHED = CALLS | {"task"}


def step_idempotency_key(tenant_id: str, job_id: str, step_id: str, visit: int = 1, run_no: int = 1) -> str:
    """The same for every attempt, so that a side effect is made once however often the step is tried.

    A later visit of a loop, and a run that repeats a step which had succeeded, are meant to have effects of their own.
    """
    parts = [tenant_id, job_id, spec_id(step_id)]
    parts += [f"item={item}" for item in items_of(step_id)]
    if visit > 1:
        parts.append(f"visit={visit}")
    if run_no > 1:
        parts.append(f"run={run_no}")
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()


def visit_of(draft: Draft, old: Step | None, place: Place) -> int:
    """A handler that is tried again by a person is still at its first visit."""
    if old is None or old.run_no != draft.job.run_no:
        return 1
    return old.visit if place.handler_of is not None else old.visit + 1


def new_step(draft: Draft, place: Place, token: Token, status: StepStatus) -> Step:
    """The step at its turn, with its first attempt of this visit."""
    job, spec = draft.job, place.spec
    step_id = at_items(spec.step_id, token.items)
    old = draft.find(step_id)
    visit = visit_of(draft, old, place)
    key = _key(draft, step_id, old, visit, token)
    attempt_no = old.attempt.attempt_no + 1 if old else 1
    return Step(
        job_id=job.job_id,
        step_id=step_id,
        index=place.index,
        kind=spec.kind,
        step_type=spec.step_type,
        service=HTTP_SERVICE if spec.kind in CALLS else spec.service,
        status=status,
        attempt=new_attempt(draft, step_id, attempt_no, key, visit, dispatched=status is StepStatus.DISPATCHING),
        tries=1,
        idempotency_key=key,
        created_at=old.created_at if old else draft.now,
        updated_at=draft.now,
        visit=visit,
        before=token.before,
        run_no=job.run_no,
        repeats=old is not None and old.idempotency_key == key,
        effect=_effect(old) if spec.compensation is not None and old is not None else None,
    )


def _effect(old: Step) -> Any:
    if old.undone:
        return None
    return old.result if old.status is StepStatus.SUCCEEDED else old.effect


def _key(draft: Draft, step_id: str, old: Step | None, visit: int, token: Token) -> str:
    """A later visit that failed is gone on with only by a run that starts there; any other starts with visit one."""
    job = draft.job
    continues = old is not None and (token.keeps or old.visit == 1)
    same_work = continues and old is not None and _never_got_done(old) and old.run_no != job.run_no
    if old is not None and (same_work or (old.visit == visit and old.run_no == job.run_no)):
        return old.idempotency_key  # its side effect is still the same one
    run_no = job.run_no if old is not None else 1
    return step_idempotency_key(job.tenant_id, job.job_id, step_id, visit, run_no)


def _never_got_done(step: Step) -> bool:
    """What was undone has to be done anew: under its old key it would be taken for done."""
    return step.status is not StepStatus.SUCCEEDED and not step.undone


def new_attempt(
    draft: Draft,
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
        lease_id=draft.env.new_id(),
        run_no=draft.job.run_no,
        routing=draft.job.routing,
        outbox_id=(outbox_id or message_id(draft.job.job_id, step_id, attempt_no)) if dispatched else "",
        created_at=draft.now,
        idempotency_key=key,
        visit=visit,
    )
