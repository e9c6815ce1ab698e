"""Keeps a ledger small: finished jobs become lines of archive files, and are deleted from the ledger.

A batch takes these steps, and a process killed at any point loses nothing:

1. its jobs are written to a file in `pending/`, durably, before anything else happens;
2. they are deleted in one transaction, except for jobs that have changed since they were read;
3. lines of jobs that are still in the ledger leave the file, and the file leaves `pending/`.

The next run first does 2 and 3 for each file that is left in `pending/`. So jobs in any other folder are no longer in
the ledger, and no job is in two files.
"""

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from lucius.core.model.event_chain import Chain, ChainVerifier, seal_attempt
from lucius.core.model.records import Instant
from lucius.core.protocol.definition import CONTAINERS, items_of
from lucius.core.protocol.redaction import MASK, redact_payload
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
MAX_NAMED_JOBS = 20

_encode = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(ArchivedJob).decode


class _Redact(Struct, frozen=True):
    """The part of a stored protocol that retention needs."""

    redact: tuple[str, ...] = ()


_redact_of = msgspec.json.Decoder(_Redact).decode


class Order(Struct, frozen=True, kw_only=True):
    """What to archive, and at what pace."""

    where: FinishedFilter
    limit: int | None = None
    batch: int = 500
    pause: float = 0.0
    gzip: bool = False
    dry_run: bool = False


class Summary(Struct, kw_only=True):
    """Result of a run. `archived` jobs are in `files` and no longer in the ledger."""

    archived: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    resumed: int = 0
    """Archived jobs that an earlier run had written but not deleted."""
    open_reviews: int = 0
    pending_webhooks: int = 0
    moved_on: int = 0
    """Jobs that were retried or got a callback while being archived: they stay."""
    unreadable: int = 0
    """Jobs with an unreadable row: they stay as well."""
    unreadable_jobs: list[str] = field(default_factory=list)
    """Ids of the first MAX_NAMED_JOBS of them."""


class _Line(Struct, frozen=True):
    job_id: str
    version: int
    text: bytes


class Retention:
    """One archive run; `token` makes its file names unique."""

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
        """Archive jobs and return the summary. Raises ArchiveError or LedgerError; the next run finishes the rest."""
        if not order.dry_run:
            await self._finish_what_is_pending()
        async for page in self._pages(order):
            lines = self._lines(page)
            self._summary.open_reviews += page.open_reviews
            self._summary.pending_webhooks += page.pending_webhooks
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

    def _lines(self, page: FinishedPage) -> list[_Line]:
        """Encode the records that can be read back; an unreadable job must not leave the ledger."""
        pointers = _redacted_pointers(page.protocols)
        lines = []
        for record in page.records:
            text = _encode(record)
            try:
                job = _read(text).job
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._unreadable(record.jobId)
            else:
                if redact := pointers.get(job.protocol_digest):
                    text = _encode(_redacted(record, redact))
                one_line = msgspec.json.format(text, indent=-1) if b"\n" in text else text
                lines.append(_Line(record.jobId, job.version, one_line + b"\n"))
        return lines

    def _unreadable(self, job_id: str) -> None:
        self._summary.unreadable += 1
        if len(self._summary.unreadable_jobs) < MAX_NAMED_JOBS:
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
        """Do steps 2 and 3; repeating them is harmless."""
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


def _redacted_pointers(protocols: Mapping[str, bytes]) -> dict[str, tuple[str, ...]]:
    found = {digest: _redact_of(body).redact for digest, body in protocols.items()}
    return {digest: pointers for digest, pointers in found.items() if pointers}


def _redacted(record: JobRecord, pointers: tuple[str, ...]) -> JobRecord:
    """Mask the payload in the job's command, and requests, map items and prompts, which are derived from it.

    If the payload was masked, the hash over the unredacted command is left out: it would confirm guesses.
    """
    job = msgspec.json.decode(record.job)
    command = job["command"]
    payload = redact_payload(command["payload"], pointers)
    if payload != command["payload"]:
        command.pop("idempotency_hash", None)
    command["payload"] = payload
    steps = [msgspec.Raw(_encode(_redacted_step(msgspec.json.decode(step)))) for step in record.steps]
    return replace(record, job=msgspec.Raw(_encode(job)), steps=steps)


def _redacted_step(step: dict[str, Any]) -> dict[str, Any]:
    for name in ("request", "guard_request"):
        if step.get(name) is not None:
            step[name] = {"method": step[name]["method"], "url": MASK, "body": MASK}
    if step.get("items") is not None:
        step["items"] = [MASK] * len(step["items"])
    if step["kind"] in CONTAINERS and step.get("result"):
        step["result"] = _without_prompts(step["result"])
    elif step["kind"] == "human_approval" and items_of(step["step_id"]) and step.get("result"):
        step["result"] = {**step["result"], "prompt": MASK}
    return step


def _without_prompts(result: Any) -> Any:
    """Mask the prompts of approvals in a container's result: those inside a map may show its items."""
    match result:
        case {"prompt": _, "approvals": _}:
            return {**result, "prompt": MASK}
        case dict():
            return {name: _without_prompts(member) for name, member in result.items()}
        case list():
            return [_without_prompts(member) for member in result]
        case _:
            return result


async def find(files: ArchiveFiles, job_id: str) -> tuple[str, bytes] | None:
    """Return the file that contains a job, and its line; or None. Reads one file at a time, newest first."""
    start = b'{"format":"%b","jobId":%b,' % (FORMAT.encode(), _encode(job_id))
    for name in reversed(await files.names()):
        if not name.removesuffix(GZIP).endswith(JSON_LINES):
            continue
        data = b"\n" + _unpacked(name, await files.get(name))
        at = data.find(b"\n" + start) + 1
        if at:
            return name, data[at : data.index(b"\n", at)]
    return None


async def find_ids(files: ArchiveFiles, prefix: str, limit: int) -> list[str]:
    """Return ids of archived jobs with this prefix, `limit` at most. Reads one file at a time, newest first."""
    line = re.compile(rb'^\{"format":"%b","jobId":"(%b[^"]*)"' % (FORMAT.encode(), re.escape(prefix.encode())), re.M)
    found: dict[str, None] = {}
    for name in reversed(await files.names()):
        if name.removesuffix(GZIP).endswith(JSON_LINES):
            found |= {match.decode(): None for match in line.findall(_unpacked(name, await files.get(name)))}
        if len(found) >= limit:
            break
    return list(found)[:limit]


def read(name: str, line: bytes) -> ArchivedJob:
    """Decode a line of the file `name`. Raises ArchiveError."""
    try:
        return _read(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveError(f"{name} has a line that can't be read: {error}") from error


def verify(record: ArchivedJob) -> Chain:
    """Verify from the record alone that the job's history is as it was written."""
    job = record.job
    walk = ChainVerifier(job.job_id)
    seals: dict[str, str] = {}
    for event in record.events:
        walk.add(event.seq, event)
        seals.update(event.attempts)
    may_lack = job.unsealed > 0 or not walk.has_all(job.event_seq)
    for ended in record.attempts:
        name, digest = seal_attempt(ended)
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
