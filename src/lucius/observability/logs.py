"""Structured logs: JSON, or coloured text for a terminal. Payloads and secrets are never logged."""

import logging
import sys
from typing import TextIO

import structlog

from lucius.core.model.decision import Decision
from lucius.terminal import strip_log_entry

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

log = structlog.get_logger("lucius.jobs")

# Events that operators need for every job, with their levels; the job's event list has all of them.
LOG_LEVELS = {
    "JOB_ACCEPTED": "info",
    "JOB_SUCCEEDED": "info",
    "JOB_FAILED_FINAL": "warning",
    "JOB_CANCELLED": "info",
    "CANCEL_REQUESTED": "info",
    "JOB_PAUSED": "info",
    "JOB_RESUMED": "info",
    "JOB_HELD": "warning",
    "RUN_STARTED": "info",
    "SIGNAL_RECEIVED": "info",
    "STEP_APPROVED": "info",
    "STEP_REJECTED": "info",
    "STEP_SKIPPED": "info",
    "RESULT_ADOPTED": "info",
    "REVIEW_OPENED": "warning",
    "REVIEW_CLOSED": "info",
    "COMPENSATION_REQUESTED": "info",
    "COMPENSATION_STARTED": "warning",
    "COMPENSATION_RESUMED": "info",
    "COMPENSATION_HALTED": "error",
    "COMPENSATION_COMPLETED": "info",
    "STEP_COMPENSATED": "info",
    "STEP_RETRY_SCHEDULED": "warning",
    "STEP_FAILED": "warning",
    "DEADLINE_EXTENDED": "info",
    "DRIFT_REPAIRED": "warning",
    "HANDOVER_FAILED": "warning",
}

# Reasons and comments are left out: they are free text and may contain anything.
LOGGED_FIELDS = (
    "cause",
    "failure_class",
    "error_code",
    "disposition",
    "by",
    "act",
    "run_no",
    "from_step",
    "review_id",
    "kind",
    "status",
    "name",
    "of",
    "handler",
    "adopted_from",
)


def configure_logging(level: str, format_: str, stream: TextIO = sys.stderr) -> None:
    renderer = (
        structlog.processors.JSONRenderer()
        if format_ == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    # Loggers are not cached, or one used before this call would keep its old configuration; caching saves 4 µs a line.
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *(() if format_ == "json" else (strip_log_entry,)),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def log_decision(decision: Decision) -> None:
    for event in decision.events:
        level = LOG_LEVELS.get(event.type)
        if event.data.get("disposition") in ("STALE", "LATE"):
            level = "warning"
        if level is None:
            continue
        job = decision.job
        fields = {key: event.data[key] for key in LOGGED_FIELDS if key in event.data}
        if event.step_id is not None:
            fields |= {
                "step_id": event.step_id,
                "attempt_no": event.attempt_no,
                **_idempotency_key(decision, event.step_id),
            }
        getattr(log, level)(
            event.type,
            job_id=job.job_id,
            tenant_id=job.tenant_id,
            correlation_id=job.command.correlation_id,
            **fields,
        )


def _idempotency_key(decision: Decision, step_id: str) -> dict[str, str]:
    """Return the step's idempotency key as a log field, for finding its side effects in other systems."""
    key = next((step.idempotency_key for step in decision.steps if step.step_id == step_id), None)
    return {"idempotency_key": key} if key else {}
