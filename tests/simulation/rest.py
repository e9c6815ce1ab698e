"""Checks after the faults have stopped: no clock is missed, every job ends, nothing is left over."""

from collections.abc import Iterator

from lucius.adapters.ledger.memory.tables import JobEntry
from lucius.core.model.event_chain import verify_events
from lucius.core.model.records import Instant
from lucius.core.model.statuses import AttemptOutcome, JobStatus, OutboxStatus, ReviewStatus
from tests.simulation.disk import Disk
from tests.simulation.flow_rules import is_stopping
from tests.simulation.invariants import clocks
from tests.simulation.monitor import Monitor

RECOVERY_MS = 12_000  # failed loops back off for up to ten seconds
LATENESS_MS = 3_000  # how late a clock may be acted on after that
HANDOVER_MS = 850  # longest time for a row to leave: the publishes before it, and its own


def look_at_clocks(monitor: Monitor, disk: Disk, healed_at: Instant, now: Instant) -> None:
    """Check that no deadline of a live job passed unnoticed."""
    for job_id, record in disk.records.items():
        if not record.job.live or is_stopping(record.job):
            continue
        for what, clock in _clocks(record):
            late = now - max(clock, healed_at + RECOVERY_MS)
            monitor.require(late <= LATENESS_MS, "clocks are looked at", job_id, f"{what} passed {now - clock} ms ago")


def _clocks(record: JobEntry) -> Iterator[tuple[str, Instant]]:
    paused = record.job.paused is not None
    if record.job.deadline is not None and not paused:
        yield "the job's deadline", record.job.deadline
    for step_id in record.job.active:
        yield from ((f"{what} of {step_id}", at) for what, at in clocks(record.steps[step_id], paused=paused))


def look_at_the_end(monitor: Monitor, disk: Disk) -> None:
    for job_id, record in disk.records.items():
        monitor.require(not record.job.live, "every job ends", job_id, f"it is still {record.job.status}")
        waits = [row.outbox_id for row in record.outbox.values() if row.status is OutboxStatus.PENDING]
        monitor.require(not waits, "the outbox is empty in the end", job_id, f"{waits} wait")
        _look_at_history(monitor, record)
    monitor.require(not disk.totals, "counters end at nothing", "", str(disk.totals))


def _look_at_history(monitor: Monitor, record: JobEntry) -> None:
    """Check that events form a chain, no attempt is missing, and a failed job has a review item."""
    job = record.job
    broken = verify_events(record.events, job.event_seq, job.event_hash).breaks
    monitor.require(not broken, "events are a chain", job.job_id, str(broken))
    for step in record.steps.values():
        missing = [no for no in range(1, step.attempt.attempt_no + 1) if (step.step_id, no) not in record.attempts]
        monitor.require(not missing, "history is complete", job.job_id, f"{step.step_id} lacks attempts {missing}")
    asked = [item for item in monitor.known.reviews.values() if item.job_id == job.job_id]
    looked_at = any(item.status is ReviewStatus.OPEN or (item.act and item.resolved_by) for item in asked)
    failed = job.status is JobStatus.FAILED_FINAL
    monitor.require(looked_at or not failed, "failed jobs are looked at", job.job_id, f"{len(asked)} items")


def look_at_calm(monitor: Monitor, disk: Disk, *, at_once: bool) -> None:
    """Check, without faults, that nothing failed or ran twice and that rows left as soon as they were written."""
    for job_id, record in disk.records.items():
        if record.job.deadline is not None:
            continue
        ended = record.job.status
        monitor.require(ended is JobStatus.SUCCEEDED, "calm jobs succeed", job_id, f"it is {ended}")
        for step in record.steps.values():
            attempt = step.attempt
            monitor.require(attempt.attempt_no == 1, "calm steps run once", job_id, f"attempt {attempt.attempt_no}")
            lag = (attempt.handed_over_at or 0) - attempt.created_at
            monitor.require(not at_once or lag <= HANDOVER_MS, "rows leave at once", job_id, f"after {lag} ms")


def look_at_varied_calm(monitor: Monitor, disk: Disk) -> None:
    """Check, without faults, that no attempt was lost, for any decisions of operators."""
    for job_id, record in disk.records.items():
        for ended in record.attempts.values():
            outcome = ended.attempt.outcome
            lost = outcome in (AttemptOutcome.ACK_TIMEOUT, AttemptOutcome.LEASE_EXPIRED, AttemptOutcome.HANDOVER_FAILED)
            monitor.require(not lost, "calm steps run once", job_id, f"{ended.step_id} ended {outcome}")
