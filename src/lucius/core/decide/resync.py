"""Restores the newer state of a job that its engine has to a ledger that lost it, as after a restored backup."""

from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.model.decision import Decision, Env, JobSnapshot
from lucius.core.model.records import Instant
from lucius.core.model.statuses import OutboxStatus, StepStatus


def decide_restore(known: JobSnapshot, found: JobSnapshot | None, now: Instant, env: Env) -> Decision:
    """Return the decision that brings the ledger from the `found` state to the `known` one, with an event.

    Events and ended attempts in between are lost.
    """
    changes = Changeset(found, now, env)
    version, seq, hash_ = (found.job.version, found.job.event_seq, found.job.event_hash) if found else (0, 0, "")
    head = replace(known.job, version=version, event_seq=seq, event_hash=hash_)
    if found is None:
        changes.create(head, known.protocol)
    else:
        changes.job = head
    for step in known.steps.values():
        changes.put_step(step)
        if step.step_id in head.active and step.status is StepStatus.DISPATCHING:
            changes.put_row(step, OutboxStatus.PENDING)
    changes.ready.clear()
    changes.ready.extend(head.ready)
    changes.scopes = {scope.container: scope for scope in head.scopes}
    changes.emit("LEDGER_RESTORED", from_version=version, to_version=known.job.version)
    return changes.finish(())
