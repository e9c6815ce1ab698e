"""Keeping a ledger small: finished jobs become lines of archive files, and are dropped.

A batch goes this way, and a process that is killed anywhere on it loses nothing:

1. its jobs are written to a file in `pending/`, which is durable before anything else happens;
2. they are dropped in one transaction, but for those that have moved on since they were read;
3. lines of jobs that are still there leave the file, and the file leaves `pending/`.

Whoever comes next does 2 and 3 for each file that is left in `pending/`, before anything else. So what is in any other
folder is no longer in the ledger, and no job is in two files.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct, field

from lucius.core.chain import Chain, Walk, seal
from lucius.core.model import Instant
from lucius.ports.archive import (
    FORMAT,
    ArchivedJob,
    ArchiveFiles,
    FinishedFilter,
    FinishedJobs,
    FinishedPage,
    JobRecord,
)
from lucius.ports.errors import ArchiveError

PENDING, PROTOCOLS = "pending/", "protocols/"
JSON_LINES, GZIP = ".jsonl", ".gz"
MAX_BYTES = 16 * 1024 * 1024
MAX_NAMED = 20

_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(ArchivedJob).decode


class Order(Struct, frozen=True, kw_only=True):
    """What is to be archived, and at what pace."""

    where: FinishedFilter
    limit: int | None = None
    batch: int = 500
    pause: float = 0.0
    gzip: bool = False
    dry_run: bool = False


class Summary(Struct, kw_only=True):
    """What became of it. `archived` jobs are in `files` and no longer in the ledger."""

    archived: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    resumed: int = 0
    """Of those, what an earlier run had written and not dropped."""
    open_reviews: int = 0
    pending_notices: int = 0
    moved_on: int = 0
    """Retried, or called back, while they were archived: they stay."""
    unreadable: int = 0
    """Jobs with a row that can't be read: they stay, too."""
    unreadable_jobs: list[str] = field(default_factory=list)
    """Some of them."""


class _Line(Struct, frozen=True):
    job_id: str
    version: int
    text: bytes


class Retention:
    """One run. The token makes its files' names unlike those of any other."""

    def __init__(
        self,
        jobs: FinishedJobs,
        files: ArchiveFiles,
        now: Instant,
        token: str,
        on_progress: Callable[[Summary], None] = lambda summary: None,
    ) -> None:
        self._jobs = jobs
        self._files = files
        self._run = f"{datetime.fromtimestamp(now / 1000, UTC):%Y-%m-%dT%H%M%SZ}-{token}"
        self._on_progress = on_progress
        self._summary = Summary()
        self._protocols: set[str] = set()
        self._batches = 0

    async def run(self, order: Order) -> Summary:
        """Raises ArchiveError or LedgerError; whatever was not finished then, the next run finishes."""
        if not order.dry_run:
            await self._finish_what_is_pending()
        async for page in self._pages(order):
            lines = self._lines(page.records)
            self._summary.open_reviews += page.open_reviews
            self._summary.pending_notices += page.pending_notices
            if order.dry_run:
                self._count(lines)
            elif lines:
                await self._archive(page, lines, JSON_LINES + (GZIP if order.gzip else ""))
            self._on_progress(self._summary)
        return self._summary

    async def _pages(self, order: Order) -> AsyncIterator[FinishedPage]:
        left, cursor = order.limit, 0
        while left is None or left > 0:
            wanted = order.batch if left is None else min(left, order.batch)
            page = await self._jobs.page(order.where, cursor, wanted, MAX_BYTES)
            yield page
            if page.cursor is None:
                return
            cursor, left = page.cursor, None if left is None else left - len(page.records)
            await asyncio.sleep(order.pause)

    def _lines(self, records: Iterable[JobRecord]) -> list[_Line]:
        """Only what can be read back: a job that can't must not leave the ledger."""
        lines = []
        for record in records:
            text = _encode(record)
            try:
                job = _read(text).job
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._unreadable(record.jobId)
            else:
                one_line = msgspec.json.format(text, indent=-1) if b"\n" in text else text
                lines.append(_Line(record.jobId, job.version, one_line + b"\n"))
        return lines

    def _unreadable(self, job_id: str) -> None:
        self._summary.unreadable += 1
        if len(self._summary.unreadable_jobs) < MAX_NAMED:
            self._summary.unreadable_jobs.append(job_id)

    def _count(self, lines: list[_Line]) -> None:
        self._summary.archived += len(lines)
        self._summary.bytes += sum(len(line.text) for line in lines)

    async def _archive(self, page: FinishedPage, lines: list[_Line], ending: str) -> None:
        for digest, body in page.protocols.items():
            if digest not in self._protocols:
                await self._files.put(f"{PROTOCOLS}{digest}.json", body)
                self._protocols.add(digest)
        self._batches += 1
        name = f"{self._run}-{self._batches:05d}{ending}"
        await self._files.put(PENDING + name, _packed(name, lines))
        await self._drop(name, lines)

    async def _drop(self, name: str, lines: list[_Line]) -> None:
        """Steps 2 and 3. Done again, they come to the same."""
        still_there = await self._jobs.drop({line.job_id: line.version for line in lines})
        gone = [line for line in lines if line.job_id not in still_there]
        self._summary.moved_on += len(still_there)
        self._count(gone)
        if not gone:
            await self._files.remove(PENDING + name)
            return
        if still_there:
            await self._files.put(PENDING + name, _packed(name, gone))
        day = name.partition("T")[0]
        await self._files.move(PENDING + name, f"{day}/{name}")
        self._summary.files.append(f"{day}/{name}")

    async def _finish_what_is_pending(self) -> None:
        for pending in await self._files.names(PENDING):
            name = pending.removeprefix(PENDING)
            data = _unpacked(pending, await self._files.get(pending))
            before = self._summary.archived
            await self._drop(name, [_line(pending, text) for text in data.split(b"\n") if text])
            self._summary.resumed += self._summary.archived - before


async def find(files: ArchiveFiles, job_id: str) -> tuple[str, bytes] | None:
    """The file that a job is in, and its line. Reads one file after the other, the newest first."""
    start = b'{"format":"%b","jobId":%b,' % (FORMAT.encode(), _encode(job_id))
    for name in reversed(await files.names()):
        if not name.removesuffix(GZIP).endswith(JSON_LINES):
            continue
        data = b"\n" + _unpacked(name, await files.get(name))
        at = data.find(b"\n" + start) + 1
        if at:
            return name, data[at : data.index(b"\n", at)]
    return None


def read(name: str, line: bytes) -> ArchivedJob:
    """Raises ArchiveError."""
    try:
        return _read(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{name} has a line that can't be read: {error}") from error


def verify(record: ArchivedJob) -> Chain:
    """Whether the job's history is as it was written, from the record alone."""
    job = record.job
    walk = Walk(job.job_id)
    seals: dict[str, str] = {}
    for event in record.events:
        walk.add(event.seq, event)
        seals.update(event.attempts)
    may_lack = job.unsealed > 0 or not walk.has_all(job.event_seq)
    for ended in record.attempts:
        name, digest = seal(ended)
        known = seals.pop(name, None)
        if known != digest and not (known is None and may_lack):
            walk.report(walk.last, f"is the last, and attempt {name} {'was edited' if known else 'is in no event'}")
    for name in seals:
        walk.report(walk.last, f"is the last, and attempt {name} is missing")
    return walk.end(job.event_seq, job.event_hash, job.unsealed)


def _line(name: str, text: bytes) -> _Line:
    record = read(name, text)
    return _Line(record.jobId, record.job.version, text + b"\n")


def _packed(name: str, lines: Iterable[_Line]) -> bytes:
    data = b"".join(line.text for line in lines)
    return gzip.compress(data, mtime=0) if name.endswith(GZIP) else data


def _unpacked(name: str, data: bytes) -> bytes:
    try:
        return gzip.decompress(data) if name.endswith(GZIP) else data
    except (OSError, EOFError) as error:
        raise ArchiveError(f"{name} can't be read: {error}") from error
