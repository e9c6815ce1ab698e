"""Whether a job's events are all there as they were written."""

from msgspec import Struct, field

from lucius.contract_control import AuditView, ChainBreak
from lucius.core.chain import walk
from lucius.core.model import Event
from lucius.ports.errors import LedgerCorrupt
from lucius.ports.ledger import Reader

PAGE = 500


class _Found(Struct):
    events: list[Event] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    last: int = 0
    """How far we have read, by the ledger's own count."""


async def verify(reader: Reader, job_id: str) -> AuditView | None:
    """None for a job that is not there. Events first, then the head: a job that moves on meanwhile is no break."""
    found = _Found()
    await _read(reader, job_id, found)
    view = await reader.job(job_id)
    if view is None:
        return None
    if view.job.event_seq > found.last:
        await _read(reader, job_id, found, view.job.event_seq)
    chain = walk(found.events, view.job.event_seq, view.job.event_hash)
    breaks = [ChainBreak(seq, "can't be read") for seq in found.unreadable]
    breaks += [ChainBreak(item.seq, item.what) for item in chain.breaks if item.seq not in found.unreadable]
    return AuditView(
        jobId=job_id,
        valid=not breaks,
        events=chain.events,
        breaks=sorted(breaks, key=lambda item: item.seq),
        unsealed=chain.unsealed,
    )


async def _read(reader: Reader, job_id: str, found: _Found, up_to: int | None = None) -> None:
    while up_to is None or found.last < up_to:
        try:
            page = await reader.events(job_id, found.last, PAGE)
        except LedgerCorrupt:
            await _read_one_by_one(reader, job_id, found)
            continue
        if not page:
            return
        found.events += page
        found.last = max(found.last + 1, *(event.seq for event in page))


async def _read_one_by_one(reader: Reader, job_id: str, found: _Found) -> None:
    """Up to and over the row that can't be read."""
    while True:
        try:
            page = await reader.events(job_id, found.last, 1)
        except LedgerCorrupt:
            found.last += 1
            found.unreadable.append(found.last)
            return
        if not page:
            return
        found.events += page
        found.last = max(found.last + 1, page[0].seq)
