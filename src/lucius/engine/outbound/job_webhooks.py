"""Sends job webhooks, which notify clients that their jobs have ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from lucius.backoff import Backoff
from lucius.core.decide.job_webhook import reported_run_no
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.inputs import WebhookAttempted
from lucius.core.model.records import ErrorInfo, OutboxRow
from lucius.core.protocol.definition import WEBHOOK_SERVICE
from lucius.engine.outbound.host_queue import RequestTarget, Waiting
from lucius.ports.engine import Engine
from lucius.ports.errors import CallFailed, CallRefused, LedgerError
from lucius.ports.http import Caller, Closed, HttpResponse, Outgoing, Slot
from lucius.ports.ledger import Ledger
from lucius.usecases.queries.views import error_view, reported_output_ref
from lucius.usecases.timestamps import timestamp, timestamp_or_none

log = structlog.get_logger(__name__)

TIMEOUT_MS = 15_000
WAIT_MS = 2 * TIMEOUT_MS  # rows that wait longer for their receiver are put back
HOLD_MS = 300_000  # other replicas do not repeat what may be in flight, or not yet recorded by a slow ledger
MAX_CONCURRENT_CALLS = 256
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0


class JobWebhooks:
    """The webhooks of jobs. If a receiver asks for a pause, the row gets a retry time: every replica then waits."""

    service = WEBHOOK_SERVICE
    hold_ms = HOLD_MS
    patience_ms = WAIT_MS
    takes_postponed = True
    runs_while_paused = True

    def __init__(
        self,
        *,
        ledger: Ledger,
        engine: Engine,
        caller: Caller,
        jitter: Callable[[], float],
        on_failure: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._caller = caller
        self._jitter = jitter
        self._on_failure = on_failure

    async def target(self, row: OutboxRow) -> RequestTarget:
        view = await self._ledger.load(row.job_id)
        url = view.job.command.callback_urls.get("job", "") if view else ""
        return RequestTarget(self._caller.host(url, row.tenant_id), url)

    async def run(self, one: Waiting, admitted: Slot | Closed) -> bool:
        """Send one webhook and record the outcome."""
        if isinstance(admitted, Closed):
            attempted = WebhookAttempted(row=one.row, put_off_until=admitted.until)
        else:
            attempted = await self._outcome(one.row, one.target.url)
        await self._record(attempted)
        return True

    async def _outcome(self, row: OutboxRow, url: str) -> WebhookAttempted:
        try:
            return await self._send(row, url)
        except CallRefused as refused:
            log.warning("job webhook refused by policy", job_id=row.job_id, reason=str(refused))
            return WebhookAttempted(row=row, error=ErrorInfo("CALL_REFUSED", str(refused)), final=True)
        except CallFailed as failed:
            return WebhookAttempted(row=row, error=ErrorInfo("CALL_FAILED", str(failed)))
        except Exception as error:
            self._on_failure("webhooks")
            log.exception("job webhook failed unexpectedly", job_id=row.job_id)
            return WebhookAttempted(
                row=row, error=ErrorInfo("CALL_FAILED", f"the call failed ({type(error).__name__})")
            )

    async def _send(self, row: OutboxRow, url: str) -> WebhookAttempted:
        """Send the webhook and return what to record. Raises CallRefused or CallFailed."""
        view, run_no = await self._view(row.job_id), reported_run_no(row)
        call = Outgoing(
            method="POST",
            url=url,
            body=webhook_body(view, run_no),
            timeout_ms=TIMEOUT_MS,
            idempotency_key=webhook_id(row.job_id, run_no),
            from_client=True,
            tenant_id=row.tenant_id,
            traceparent=view.job.command.traceparent,
            tracestate=view.job.command.tracestate,
            correlation_id=view.job.command.correlation_id,
        )
        return _by_status(row, await self._caller.send(call))

    async def _view(self, job_id: str) -> JobSnapshot:
        """Load the job, with the step whose result is its output."""
        view = await self._ledger.load(job_id, fresh=True)
        if view is not None and view.job.output_step_id:
            view = await self._ledger.load(job_id, (view.job.output_step_id,), fresh=True)
        assert view is not None, "a job that has a row is there"
        return view

    async def _record(self, attempted: WebhookAttempted) -> None:
        """Record the outcome, with retries until the ledger accepts it: otherwise the webhook would be sent again."""
        backoff = Backoff(MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._jitter)
        while True:
            try:
                await self._engine.apply(attempted.row.job_id, (attempted,))
            except LedgerError as error:
                log.warning(
                    "could not record a job webhook, will try again", job_id=attempted.row.job_id, reason=str(error)
                )
                await asyncio.sleep(backoff.pause())
            else:
                return


def _by_status(row: OutboxRow, answer: HttpResponse) -> WebhookAttempted:
    if 200 <= answer.status < 300:
        return WebhookAttempted(row=row)
    error = ErrorInfo(f"HTTP_{answer.status}", "the receiver did not accept the webhook")
    return WebhookAttempted(row=row, error=error, retry_after_ms=answer.retry_after_ms, final=answer.status == 410)


def webhook_id(job_id: str, run_no: int) -> str:
    """Return the webhook's id, which is the same in every delivery, so that receivers can detect repeats."""
    return f"{job_id}~run{run_no}"


def webhook_body(view: JobSnapshot, run_no: int) -> dict[str, Any]:
    """Return the webhook's body; for an earlier run, only how it ended.

    `view` must have the step whose result is the job's output.
    """
    job, command = view.job, view.job.command
    past = next((run for run in job.runs if run.run_no == run_no), None)
    status, error, at = (
        (past.status, past.error, past.completed_at) if past else (job.status, job.error, job.completed_at)
    )
    output = view.steps.get(job.output_step_id) if job.output_step_id and past is None else None
    problem = error_view(error)
    return {
        "type": f"job.{str(status).lower()}",
        "timestamp": timestamp(at or job.updated_at),
        "data": {
            "jobId": job.job_id,
            "tenant_id": job.tenant_id,
            "request_type": command.request_type,
            "protocol_version": job.protocol_version,
            "status": str(status),
            "run_no": run_no,
            "error": {"code": problem.code, "message": problem.message} if problem else None,
            "output_ref": command.output_ref,
            "reported_output_ref": reported_output_ref(view) if past is None else None,
            "output": output.result if output else None,
            "correlation_id": command.correlation_id,
            "doc_id": command.doc_id,
            "created_at": timestamp(job.created_at),
            "completed_at": timestamp_or_none(at),
        },
    }
