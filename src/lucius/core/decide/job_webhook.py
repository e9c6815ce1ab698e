"""Job webhooks: notify the client of the end of a run, with retries."""

from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.model.decision import Applied, Reply
from lucius.core.model.inputs import WebhookAttempted
from lucius.core.model.records import OutboxRow
from lucius.core.model.statuses import OutboxStatus
from lucius.core.protocol.definition import WEBHOOK_SERVICE

WEBHOOK_STEP_ID = "~job"
"""`step_id` of the outbox rows of job webhooks."""

BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 21_600_000)


def queue_webhook(changes: Changeset) -> None:
    """Queue the webhook for the end of a run, if the client gave a URL for it."""
    job = changes.job
    if "job" not in job.command.callback_urls:
        return
    changes.put_webhook_row(
        OutboxRow(
            outbox_id=f"{job.job_id}/{WEBHOOK_STEP_ID}/{job.run_no}",
            job_id=job.job_id,
            tenant_id=job.tenant_id,
            step_id=WEBHOOK_STEP_ID,
            attempt_no=1,
            lease_id="",  # no attempt of a step, so no lease
            service=WEBHOOK_SERVICE,
            topic="",
            lane=job.routing.lane,
            status=OutboxStatus.PENDING,
            created_at=changes.now,
        )
    )


def reported_run_no(row: OutboxRow) -> int:
    """Return the number of the run whose end a webhook row reports. It is the last part of the row's id."""
    return int(row.outbox_id.rpartition("/")[2])


def record_outcome(changes: Changeset, outcome: WebhookAttempted) -> Reply:
    """Record the outcome of a try: accepted, to be retried, postponed or given up."""
    row, run_no = outcome.row, reported_run_no(outcome.row)
    if outcome.put_off_until is not None:  # calls to its receiver are on hold: no try is used up
        changes.put_webhook_row(replace(row, next_attempt_at=outcome.put_off_until))
    elif outcome.error is None:
        changes.put_webhook_row(replace(row, status=OutboxStatus.SENT, next_attempt_at=None, settled_at=changes.now))
        changes.emit("JOB_NOTICE_SENT", tries=row.attempt_no, run_no=run_no)
    elif outcome.final or row.attempt_no > len(BACKOFF_MS):
        changes.put_webhook_row(
            replace(row, status=OutboxStatus.FAILED_FINAL, next_attempt_at=None, settled_at=changes.now)
        )
        changes.emit("JOB_NOTICE_FAILED", tries=row.attempt_no, run_no=run_no, error_code=outcome.error.code)
    else:
        backoff = BACKOFF_MS[row.attempt_no - 1] * (0.5 + changes.env.jitter() / 2) * changes.env.defaults.backoff_scale
        again_at = changes.now + max(round(backoff), outcome.retry_after_ms or 0)
        changes.put_webhook_row(replace(row, attempt_no=row.attempt_no + 1, next_attempt_at=again_at))
    return Applied()
