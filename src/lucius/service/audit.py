"""Whether a job's history, its events and its ended attempts, is all there as it was written."""

import asyncio

from msgspec import Struct, field

from lucius.contract_control import AuditView, ChainBreak
from lucius.core.chain import Walk, attempt_name, seal
from lucius.core.decision import JobView
from lucius.ports.ledger import Reader, StoredAttempt, StoredEvent

PAGE = 500


class _Read(Struct):
    """How far we have come, and what the events say of attempts."""

    walk: Walk
    at: StoredEvent | None = None
    seals: dict[str, str] = field(default_factory=dict)

    def take(self, row: StoredEvent) -> None:
        self.at = row
        self.walk.add(row.place, row.event)
        if row.event is not None:
            self.seals.update(row.event.attempts)


async def verify(reader: Reader, job_id: str) -> AuditView | None:
    """None for a job that is not there. Rows are taken page by page as they are stored, so that no number that
    somebody wrote into one costs anything. Events first, then the head: a job that moves on meanwhile is no break."""
    read = _Read(Walk(job_id))
    await _read(reader, read)
    view = await reader.job(job_id)
    if view is None:
        return None
    if view.job.event_seq > read.walk.last:
        await _read(reader, read, view.job.event_seq)
    await _compare_attempts(reader, view, read)
    job = view.job
    chain = read.walk.end(job.event_seq, job.event_hash, job.unsealed)
    return AuditView(
        jobId=job_id,
        valid=not chain.breaks,
        events=chain.events,
        breaks=[ChainBreak(item.seq, item.what) for item in chain.breaks],
        unsealed=chain.unsealed,
    )


async def _read(reader: Reader, read: _Read, up_to: int | None = None) -> None:
    while page := await reader.stored_events(read.walk.job_id, read.at, PAGE):
        for row in page:
            if up_to is not None and (not isinstance(row.place, int) or row.place > up_to):
                return
            read.take(row)
        await asyncio.sleep(0)


async def _compare_attempts(reader: Reader, view: JobView, read: _Read) -> None:
    """Each has its seal and each seal its attempt. One has none if it ended before there were any, and may have lost
    it if events are lost."""
    missing, may_lack = dict(read.seals), view.job.unsealed > 0 or not read.walk.has_all(view.job.event_seq)
    odd: dict[str, StoredAttempt] = {}
    after: StoredAttempt | None = None
    while page := await reader.stored_attempts(read.walk.job_id, after, PAGE):
        for row in page:
            name = attempt_name(*row.place)
            known = missing.pop(name, None)
            if not _holds(row, name, known) and not (known is None and may_lack):
                odd[name] = row
        after = page[-1]
        await asyncio.sleep(0)
    later = await _seals_after(reader, read) if odd else {}
    for name, row in odd.items():
        if not _holds(row, name, later.get(name)):
            what = "was edited" if name in read.seals else "is in no event"
            read.walk.report(read.walk.last, f"is the last, and attempt {name} {what}")
    for name in missing:
        read.walk.report(read.walk.last, f"is the last, and attempt {name} is missing")


def _holds(row: StoredAttempt, name: str, digest: str | None) -> bool:
    return row.ended is not None and seal(row.ended) == (name, digest)


async def _seals_after(reader: Reader, read: _Read) -> dict[str, str]:
    """Of attempts that ended while we were reading."""
    seals: dict[str, str] = {}
    at = read.at
    while page := await reader.stored_events(read.walk.job_id, at, PAGE):
        for row in page:
            seals.update(row.event.attempts if row.event is not None else {})
        at = page[-1]
        await asyncio.sleep(0)
    return seals
