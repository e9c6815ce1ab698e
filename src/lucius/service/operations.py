"""What people do to jobs. Each act is recorded with who and why."""

import asyncio

from lucius.contract import JobView
from lucius.core.decision import Applied, Refused
from lucius.core.inputs import Cancel, RetryHandOver
from lucius.core.model import Instant
from lucius.ports.clock import Clock
from lucius.ports.ledger import Ledger, PendingQuery
from lucius.service.auth import Principal
from lucius.service.errors import RejectCode, Rejected
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.queries import Queries

END_OF_TIME: Instant = 2**62
MOST_ROWS = 100_000
RETRY_BATCH = 200


class Operations:
    def __init__(self, ledger: Ledger, jobs: Jobs, queries: Queries, hub: Hub, clock: Clock) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._queries = queries
        self._hub = hub
        self._clock = clock

    async def cancel(self, job_id: str, who: Principal, reason: str) -> JobView:
        """Asking twice is fine; cancelling what has ended otherwise is refused."""
        await self._queries.require(job_id, who)
        decision = await self._jobs.apply(job_id, (Cancel(who.name, reason),))
        match decision.reply:
            case Refused(code=code, message=message):
                raise Rejected(RejectCode(code), message, job_id=job_id)
            case _:
                return await self._queries.job(job_id, who)

    async def retry_outbox(self, who: Principal, reason: str) -> dict[str, int]:
        """Try everything again that waits after a failed hand-over, and wake the relay for the rest.

        Of the tenants that `who` may see. What waits for a service is in the same outbox and may be much more.
        """
        found = await self._ledger.pending(PendingQuery(limit=MOST_ROWS, now=END_OF_TIME))
        rows = [row for row in found if who.sees(row.tenant_id)]
        waiting = sorted({row.job_id for row in rows if row.next_attempt_at is not None})
        asked = RetryHandOver(who.name, reason)
        retried = 0
        for i in range(0, len(waiting), RETRY_BATCH):
            retried += sum(
                await asyncio.gather(*(self._retry(job_id, asked) for job_id in waiting[i : i + RETRY_BATCH]))
            )
        self._hub.relay.set()
        return {"retried": retried, "pending": len(rows)}

    async def _retry(self, job_id: str, asked: RetryHandOver) -> bool:
        decision = await self._jobs.apply(job_id, (asked,))
        return isinstance(decision.reply, Applied)
