"""A ledger that has lost what its engine knows, as after a backup was put back, is told all of it anew."""

from msgspec.structs import replace

from lucius.core.decision import Decision, Env, JobView
from lucius.core.draft import Draft
from lucius.core.model import Instant, OutboxStatus, StepStatus


def restored(known: JobView, found: JobView | None, now: Instant, env: Env) -> Decision:
    """The decision that brings the ledger from what was `found` there to what is known, with an event that says so.

    Events and ended attempts in between are lost.
    """
    draft = Draft(found, now, env)
    version, seq, hash_ = (found.job.version, found.job.event_seq, found.job.event_hash) if found else (0, 0, "")
    head = replace(known.job, version=version, event_seq=seq, event_hash=hash_)
    if found is None:
        draft.create(head, known.protocol)
    else:
        draft.job = head
    for step in known.steps.values():
        draft.put_step(step)
        if step.step_id in head.active and step.status is StepStatus.DISPATCHING:
            draft.put_row(step, OutboxStatus.PENDING)
    draft.ready.clear()
    draft.ready.extend(head.ready)
    draft.scopes = {scope.container: scope for scope in head.scopes}
    draft.emit("LEDGER_RESTORED", from_version=version, to_version=known.job.version)
    return draft.finish(())
