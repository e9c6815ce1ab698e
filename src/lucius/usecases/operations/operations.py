"""Actions of people on jobs, each recorded with the actor and the reason."""

import asyncio
from collections.abc import Sequence
from typing import Any

from lucius.contract import JobView as JobAnswer
from lucius.contract import OutboxRetried
from lucius.core.model.decision import Applied, JobSnapshot
from lucius.core.model.inputs import Cancel, CastVote, GiveSignal, Input, Pause, Resume, Retry, RetryHandOver
from lucius.core.model.records import Instant
from lucius.ports.config import ANY
from lucius.ports.engine import Engine, Inputs
from lucius.ports.outbox import Outbox, PendingQuery
from lucius.usecases.access.auth import Principal
from lucius.usecases.notifier import Notifier
from lucius.usecases.operations.operator_actions import MAX_SIGNAL_BYTES, RunLimits, carry_out, require_small
from lucius.usecases.queries.jobs import Queries

END_OF_TIME: Instant = 2**62
MAX_ROWS = 100_000
RETRY_BATCH_JOBS = 200


class Operations:
    """Every action returns the job's resulting state. Repeating an action is harmless. Raises Rejected."""

    def __init__(self, outbox: Outbox, engine: Engine, queries: Queries, notifier: Notifier, limits: RunLimits) -> None:
        self._outbox = outbox
        self._engine = engine
        self._queries = queries
        self._notifier = notifier
        self._limits = limits

    async def cancel(self, job_id: str, who: Principal, reason: str) -> JobAnswer:
        return await self._act(job_id, who, (Cancel(who.name, reason),))

    async def pause(self, job_id: str, who: Principal, reason: str) -> JobAnswer:
        return await self._act(job_id, who, (Pause(who.name, reason),))

    async def resume(self, job_id: str, who: Principal, reason: str) -> JobAnswer:
        return await self._act(job_id, who, (Resume(who.name, reason),))

    async def signal(self, job_id: str, who: Principal, name: str, payload: Any, reason: str) -> JobAnswer:
        require_small(payload, MAX_SIGNAL_BYTES, "/payload")
        return await self._act(job_id, who, (GiveSignal(name, who.name, payload, reason),))

    async def retry(self, job_id: str, who: Principal, reason: str, from_step: str | None) -> JobAnswer:
        """Open a new run, which must pass the limits as a new job must."""

        async def again(view: JobSnapshot) -> Sequence[Input]:
            return (Retry(by=who.name, reason=reason, from_step=from_step, caps=self._limits.of(view)),)

        return await self._act(job_id, who, again)

    async def vote(self, job_id: str, step_id: str, who: Principal, approves: bool, comment: str) -> JobAnswer:
        async def cast(view: JobSnapshot) -> Sequence[Input]:
            groups = _groups(who, view, step_id)
            return (CastVote(step_id=step_id, approves=approves, by=who.name, groups=groups, comment=comment),)

        return await self._act(job_id, who, cast, step_id)

    async def _act(self, job_id: str, who: Principal, inputs: Inputs, step_id: str | None = None) -> JobAnswer:
        await self._queries.require(job_id, who)
        await carry_out(self._engine, job_id, inputs, step_id)
        return await self._queries.job(job_id, who)

    async def retry_outbox(self, who: Principal, reason: str) -> OutboxRetried:
        """Retry all hand-overs that wait after a failure, and wake the relay for the other rows.

        Covers the tenants that `who` may see. `pending` counts rows that wait for a service, too, which may be many.
        """
        query = PendingQuery(limit=MAX_ROWS, now=END_OF_TIME, tenants=who.seen_tenants)
        rows = [row for row in await self._outbox.pending(query) if who.sees(row.tenant_id)]
        waiting = sorted({row.job_id for row in rows if row.next_attempt_at is not None})
        asked = RetryHandOver(who.name, reason)
        retried = 0
        for i in range(0, len(waiting), RETRY_BATCH_JOBS):
            retried += sum(
                await asyncio.gather(*(self._retry(job_id, asked) for job_id in waiting[i : i + RETRY_BATCH_JOBS]))
            )
        self._notifier.relay.set()
        return OutboxRetried(retried=retried, pending=len(rows), message=self._engine.outbox_retry_notice)

    async def _retry(self, job_id: str, asked: RetryHandOver) -> bool:
        decision = await self._engine.apply(job_id, (asked,))
        return isinstance(decision.reply, Applied)


def _groups(who: Principal, view: JobSnapshot, step_id: str) -> tuple[str, ...]:
    """Return the groups that the key names; "*" stands for the groups that the step asks."""
    if ANY not in who.groups:
        return tuple(sorted(who.groups))
    spec = view.protocol.step(step_id)
    return spec.human_approval.approvers if spec is not None and spec.human_approval is not None else ()
