"""Telling a client that its job has ended: one webhook for each run, tried until it is taken or given up."""

from msgspec.structs import replace

from lucius.core.decision import Applied, Reply
from lucius.core.draft import Draft
from lucius.core.inputs import NoticeTold
from lucius.core.model import OutboxRow, OutboxStatus
from lucius.core.protocol import WEBHOOK_SERVICE

OF_THE_JOB = "~job"
"""Where a row would name its step."""

BACKOFF_MS = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 21_600_000)


def announce(draft: Draft) -> None:
    """The end of a run, for whoever asked to be told."""
    job = draft.job
    if "job" not in job.command.callback_urls:
        return
    draft.put_notice(
        OutboxRow(
            outbox_id=f"{job.job_id}/{OF_THE_JOB}/{job.run_no}",
            job_id=job.job_id,
            tenant_id=job.tenant_id,
            step_id=OF_THE_JOB,
            attempt_no=1,
            lease_id=str(job.run_no),
            service=WEBHOOK_SERVICE,
            topic="",
            lane=job.routing.lane,
            status=OutboxStatus.PENDING,
            created_at=draft.now,
        )
    )


def told(draft: Draft, said: NoticeTold) -> Reply:
    """It was taken, will be tried again, or is given up."""
    row = said.row
    if said.put_off_until is not None:  # its receiver is left alone: out of the way of others, and nothing burned
        draft.put_notice(replace(row, next_attempt_at=said.put_off_until))
    elif said.error is None:
        draft.put_notice(replace(row, status=OutboxStatus.SENT, next_attempt_at=None, settled_at=draft.now))
        draft.emit("JOB_NOTICE_SENT", tries=row.attempt_no, run_no=int(row.lease_id))
    elif said.final or row.attempt_no > len(BACKOFF_MS):
        draft.put_notice(replace(row, status=OutboxStatus.FAILED_FINAL, next_attempt_at=None, settled_at=draft.now))
        draft.emit("JOB_NOTICE_FAILED", tries=row.attempt_no, run_no=int(row.lease_id), error_code=said.error.code)
    else:
        backoff = BACKOFF_MS[row.attempt_no - 1] * (0.5 + draft.env.jitter() / 2) * draft.env.defaults.backoff_scale
        again_at = draft.now + max(round(backoff), said.retry_after_ms or 0)
        draft.put_notice(replace(row, attempt_no=row.attempt_no + 1, next_attempt_at=again_at))
    return Applied()
