"""What people do to jobs. Each act is recorded with who and why."""

import asyncio
from collections.abc import Sequence
from typing import Any

from lucius.contract import JobView as JobAnswer
from lucius.contract import OutboxRetried
from lucius.core.decision import Applied, JobView
from lucius.core.inputs import Cancel, CastVote, GiveSignal, Input, Pause, Resume, Retry, RetryHandOver
from lucius.core.model import Instant
from lucius.ports.config import ANY
from lucius.ports.ledger import Outbox, PendingQuery
from lucius.service.acts import MAX_SIGNAL_BYTES, Limits, carry_out, require_small
from lucius.service.auth import Principal
from lucius.service.hub import Hub
from lucius.service.jobs import Inputs, Jobs
from lucius.service.queries import Queries

END_OF_TIME: Instant = 2**62
MOST_ROWS = 100_000
RETRY_BATCH = 200


class Operations:
    """Every act answers with the job as it stands then. Asking twice for the same is fine. Raises Rejected."""

    def __init__(self, outbox: Outbox, jobs: Jobs, queries: Queries, hub: Hub, limits: Limits) -> None:
        self._outbox = outbox
        self._jobs = jobs
        self._queries = queries
        self._hub = hub
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
        """A new run, which must find room within the limits as a new job must."""

        async def again(view: JobView) -> Sequence[Input]:
            return (Retry(by=who.name, reason=reason, from_step=from_step, caps=self._limits.of(view)),)

        return await self._act(job_id, who, again)

    async def vote(self, job_id: str, step_id: str, who: Principal, approves: bool, comment: str) -> JobAnswer:
        async def cast(view: JobView) -> Sequence[Input]:
            groups = _groups(who, view, step_id)
            return (CastVote(step_id=step_id, approves=approves, by=who.name, groups=groups, comment=comment),)

        return await self._act(job_id, who, cast, step_id)

    async def _act(self, job_id: str, who: Principal, inputs: Inputs, step_id: str | None = None) -> JobAnswer:
        await self._queries.require(job_id, who)
        await carry_out(self._jobs, job_id, inputs, step_id)
        return await self._queries.job(job_id, who)

    async def retry_outbox(self, who: Principal, reason: str) -> OutboxRetried:
        """Try everything again that waits after a failed hand-over, and wake the relay for the rest.

        Of the tenants that `who` may see. What waits for a service is in the same outbox and may be much more.
        """
        found = await self._outbox.pending(PendingQuery(limit=MOST_ROWS, now=END_OF_TIME))
        rows = [row for row in found if who.sees(row.tenant_id)]
        waiting = sorted({row.job_id for row in rows if row.next_attempt_at is not None})
        asked = RetryHandOver(who.name, reason)
        retried = 0
        for i in range(0, len(waiting), RETRY_BATCH):
            retried += sum(
                await asyncio.gather(*(self._retry(job_id, asked) for job_id in waiting[i : i + RETRY_BATCH]))
            )
        self._hub.relay.set()
        return OutboxRetried(retried=retried, pending=len(rows), message=self._jobs.needs_no_retry)

    async def _retry(self, job_id: str, asked: RetryHandOver) -> bool:
        decision = await self._jobs.apply(job_id, (asked,))
        return isinstance(decision.reply, Applied)


def _groups(who: Principal, view: JobView, step_id: str) -> tuple[str, ...]:
    """Those that the key names; "*" stands for whoever the step asks."""
    if ANY not in who.groups:
        return tuple(sorted(who.groups))
    spec = view.protocol.step(step_id)
    return spec.human_approval.approvers if spec is not None and spec.human_approval is not None else ()
