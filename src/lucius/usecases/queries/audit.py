"""Verifies that a job's events and ended attempts are complete and unchanged."""

import asyncio

from msgspec import Struct, field

from lucius.contract.control import AuditView, ChainBreak
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.event_chain import ChainVerifier, attempt_name, seal_attempt
from lucius.ports.readers import HistoryReader, JobReader, StoredAttempt, StoredEvent

PAGE_EVENTS = 500


class _Read(Struct):
    """Progress of the verification, and the digests of attempts found in events."""

    walk: ChainVerifier
    at: StoredEvent | None = None
    seals: dict[str, str] = field(default_factory=dict)

    def take(self, row: StoredEvent) -> None:
        self.at = row
        self.walk.add(row.place, row.event)
        if row.event is not None:
            self.seals.update(row.event.attempts)


async def verify(jobs: JobReader, history: HistoryReader, job_id: str) -> AuditView | None:
    """Verify a job's history; return None for an unknown job.

    Rows are read page by page in stored order, so that a forged number in a row costs nothing. Events are read before
    the head: a job that moves on meanwhile is not reported as broken.
    """
    read = _Read(ChainVerifier(job_id))
    await _read(history, read)
    view = await jobs.job(job_id)
    if view is None:
        return None
    if view.job.event_seq > read.walk.last:
        await _read(history, read, view.job.event_seq)
    await _compare_attempts(history, view, read)
    job = view.job
    chain = read.walk.end(job.event_seq, job.event_hash, job.unsealed)
    return AuditView(
        jobId=job_id,
        valid=not chain.breaks,
        events=chain.events,
        breaks=[ChainBreak(item.seq, item.what) for item in chain.breaks],
        unsealed=chain.unsealed,
    )


async def _read(history: HistoryReader, read: _Read, up_to: int | None = None) -> None:
    while page := await history.stored_events(read.walk.job_id, read.at, PAGE_EVENTS):
        for row in page:
            if up_to is not None and (not isinstance(row.place, int) or row.place > up_to):
                return
            read.take(row)
        await asyncio.sleep(0)


async def _compare_attempts(history: HistoryReader, view: JobSnapshot, read: _Read) -> None:
    """Report attempts without a matching seal_attempt, and seals without an attempt.

    An attempt that ended before seals existed has none, and with lost events seals may be lost.
    """
    missing, may_lack = dict(read.seals), view.job.unsealed > 0 or not read.walk.has_all(view.job.event_seq)
    odd: dict[str, StoredAttempt] = {}
    after: StoredAttempt | None = None
    while page := await history.stored_attempts(read.walk.job_id, after, PAGE_EVENTS):
        for row in page:
            name = attempt_name(*row.place)
            known = missing.pop(name, None)
            if not _holds(row, name, known) and not (known is None and may_lack):
                odd[name] = row
        after = page[-1]
        await asyncio.sleep(0)
    later = await _seals_after(history, read) if odd else {}
    for name, row in odd.items():
        if not _holds(row, name, later.get(name)):
            what = "was edited" if name in read.seals else "is in no event"
            read.walk.report(read.walk.last, f"is the last, and attempt {name} {what}")
    for name in missing:
        read.walk.report(read.walk.last, f"is the last, and attempt {name} is missing")


def _holds(row: StoredAttempt, name: str, digest: str | None) -> bool:
    return row.ended is not None and seal_attempt(row.ended) == (name, digest)


async def _seals_after(history: HistoryReader, read: _Read) -> dict[str, str]:
    """Return the seals of attempts that ended during the verification."""
    seals: dict[str, str] = {}
    at = read.at
    while page := await history.stored_events(read.walk.job_id, at, PAGE_EVENTS):
        for row in page:
            seals.update(row.event.attempts if row.event is not None else {})
        at = page[-1]
        await asyncio.sleep(0)
    return seals
