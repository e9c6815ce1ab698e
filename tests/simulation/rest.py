"""What must hold once nothing goes wrong any more: every clock is looked at, every job ends, nothing is left over."""

from collections.abc import Iterator

from lucius.adapters.ledger_memory import _Record
from lucius.core.model import Instant, JobStatus, OutboxStatus, Step, StepStatus
from tests.simulation.disk import Disk
from tests.simulation.monitor import Monitor

RECOVERY_MS = 12_000  # loops that failed have backed off for up to ten seconds
LATENESS_MS = 3_000  # how late a clock may be looked at after that
HANDOVER_MS = 850  # how long a row takes to leave at most: the publishes before it, and its own


def look_at_clocks(monitor: Monitor, disk: Disk, healed_at: Instant, now: Instant) -> None:
    """No deadline of a live job may have passed unseen."""
    for job_id, record in disk.records.items():
        if not record.job.live:
            continue
        for what, clock in _clocks(record):
            late = now - max(clock, healed_at + RECOVERY_MS)
            monitor.require(late <= LATENESS_MS, "clocks are looked at", job_id, f"{what} passed {now - clock} ms ago")


def _clocks(record: _Record) -> Iterator[tuple[str, Instant]]:
    if record.job.deadline is not None:
        yield "the job's deadline", record.job.deadline
    for step in record.steps.values():
        for what, clock in _step_clocks(step):
            if clock is not None:
                yield f"{what} of {step.step_id}", clock


def _step_clocks(step: Step) -> Iterator[tuple[str, Instant | None]]:
    match step.status:
        case StepStatus.INITIATED:
            yield "the ACK deadline", step.attempt.ack_deadline
        case StepStatus.PROCESSING:
            yield "the lease", step.attempt.lease_expires_at
            yield "the hard deadline", step.attempt.hard_deadline
        case StepStatus.FAILED_RETRY:
            yield "the retry", step.retry_at
        case _:
            pass


def look_at_the_end(monitor: Monitor, disk: Disk) -> None:
    for job_id, record in disk.records.items():
        monitor.require(not record.job.live, "every job ends", job_id, f"it is still {record.job.status}")
        waits = [row.outbox_id for row in record.outbox.values() if row.status is OutboxStatus.PENDING]
        monitor.require(not waits, "the outbox is empty in the end", job_id, f"{waits} wait")
    monitor.require(not disk.totals, "counters end at nothing", "", str(disk.totals))


def look_at_calm(monitor: Monitor, disk: Disk, *, at_once: bool) -> None:
    """Where nothing went wrong nothing failed, nothing was done twice, and rows left as soon as they were written."""
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
