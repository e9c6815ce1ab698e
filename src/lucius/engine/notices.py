"""Tells clients that asked for it when their jobs have ended."""

import asyncio

import structlog

from lucius.core.inputs import NoticeTold
from lucius.core.model import ErrorInfo, OutboxRow
from lucius.core.protocol import WEBHOOK_SERVICE
from lucius.ports.calls import Answer, Caller, Closed, Outgoing
from lucius.ports.clock import Clock
from lucius.ports.errors import CallFailed, CallRefused
from lucius.ports.ledger import Ledger, PendingQuery
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.notices import notice_body, notice_id

log = structlog.get_logger(__name__)

BATCH = 50
TIMEOUT_MS = 15_000
SECRET = "default"


class NoticeRunner:
    def __init__(
        self, *, ledger: Ledger, jobs: Jobs, caller: Caller, hub: Hub, clock: Clock, interval: float, signs: bool
    ) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._caller = caller
        self._hub = hub
        self._clock = clock
        self._interval = interval
        self._sign_with = SECRET if signs else None

    async def turn(self) -> None:
        """Send what is due, then wait for more."""
        seen = self._hub.arrivals(WEBHOOK_SERVICE)
        if await self.send_due() < BATCH:
            await self._hub.wait_for_row(WEBHOOK_SERVICE, self._interval, seen)
        if self._hub.closed:
            await asyncio.sleep(self._interval)

    async def send_due(self) -> int:
        """How many notices had an outcome."""
        rows = await self._ledger.pending(PendingQuery(limit=BATCH, now=self._clock.now(), service=WEBHOOK_SERVICE))
        return sum(await asyncio.gather(*(self._send(row) for row in rows)))

    async def _send(self, row: OutboxRow) -> bool:
        view = await self._ledger.load(row.job_id)
        if view is None:
            return False
        if view.job.output_step_id:
            view = await self._ledger.load(row.job_id, (view.job.output_step_id,)) or view
        url, run_no = view.job.command.callback_urls["job"], int(row.lease_id)
        slot = self._caller.admit(self._caller.host(url))
        if isinstance(slot, Closed):
            return False
        call = Outgoing(
            method="POST",
            url=url,
            body=notice_body(view, run_no),
            timeout_ms=TIMEOUT_MS,
            idempotency_key=notice_id(row.job_id, run_no),
            sign_with=self._sign_with,
            traceparent=view.job.command.traceparent,
        )
        try:
            told = await self._outcome(row, call)
        finally:
            slot.release()
        await self._jobs.apply(row.job_id, (told,))
        return True

    async def _outcome(self, row: OutboxRow, call: Outgoing) -> NoticeTold:
        try:
            answer = await self._caller.send(call)
        except CallRefused as refused:
            log.warning("a job notice is refused by policy", job_id=row.job_id, reason=str(refused))
            return NoticeTold(row=row, error=ErrorInfo("CALL_REFUSED", str(refused)), final=True)
        except CallFailed as failed:
            return NoticeTold(row=row, error=ErrorInfo("CALL_FAILED", str(failed)))
        return _told(row, answer)


def _told(row: OutboxRow, answer: Answer) -> NoticeTold:
    if 200 <= answer.status < 300:
        return NoticeTold(row=row)
    error = ErrorInfo(f"HTTP_{answer.status}", "the receiver did not take the notice")
    return NoticeTold(row=row, error=error, retry_after_ms=answer.retry_after_ms, final=answer.status == 410)
