"""Removes finished jobs from the file.

Nothing here yields to the event loop between a read and a write, and the file has one writer, so what was read still
holds when it is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from lucius.adapters.ledger.job_records import JobRecordBuilder
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import Row, SqliteFile
from lucius.adapters.ledger.sqlite.memory_state import first_id_after
from lucius.core.model.records import Command, Instant
from lucius.ports.archive import FinishedFilter, FinishedPage
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerError
from lucius.ports.ledger import idempotency_token

_SQL = load_statements(__package__, "archive")
_NEXT = _SQL["next"]
_TABLES = {name: _SQL[name] for name in ("steps", "attempts", "events", "quarantined")}
_REVIEWS = _SQL["reviews"]
_PROTOCOL = _SQL["protocol"]
_STANDING = _SQL["standing"]
_DELETED_BY_JOB = ("steps", "attempts", "outbox", "events", "quarantined", "command")


class _Head(Struct, frozen=True):
    protocol_digest: str
    version: int
    completed_at: Instant


class _Candidate(Struct, frozen=True):
    id: int
    bodies: JobRecordBuilder
    digest: str | None
    in_review: bool
    unsent: bool


_head = msgspec.json.Decoder(_Head).decode
_command = msgspec.json.Decoder(Command).decode


class SqliteFinishedJobs:
    """Implements FinishedJobs."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> "Iterator[SqliteFinishedJobs]":
        """Open the ledger. Raises LedgerError, and LedgerBusy if a server has it open."""
        if not path.exists():
            raise LedgerError(f"there is no ledger {path}: say which with LUCIUS_LEDGER_URL or --data-dir")
        try:
            file = SqliteFile.open(path, None)
        except LedgerBusy as busy:
            raise LedgerBusy(f"jobs leave a SQLite ledger only while no server has it open: {busy}") from busy
        try:
            yield cls(file)
        finally:
            file.close()

    async def page(self, where: FinishedFilter, cursor: int, limit: int, max_bytes: int) -> FinishedPage:
        found: list[JobRecordBuilder] = []
        digests: set[str] = set()
        looked_at = size = reviews = webhooks = 0
        more = False
        for job in self._candidates(where, cursor):
            if looked_at == limit or size >= max_bytes:
                more = True
                break
            cursor, looked_at = job.id, looked_at + 1
            if job.in_review:
                reviews += 1
            elif job.unsent:
                webhooks += 1
            else:
                found.append(self._gathered(job))
                size += job.bodies.size
                digests.update((job.digest,) if job.digest else ())
        return FinishedPage(
            records=[bodies.build() for bodies in found],
            protocols={digest: body for digest in digests for (body,) in self._file.fetch_rows(_PROTOCOL, (digest,))},
            open_reviews=reviews,
            pending_webhooks=webhooks,
            cursor=cursor if more else None,
        )

    def _candidates(self, where: FinishedFilter, after: int) -> Iterator[_Candidate]:
        """Yield jobs that ended in time, also those whose head can't be read, for readers to report."""
        filters, values = list[str](), list[str]()
        if where.tenant_id is not None:
            filters.append(_SQL["where_tenant"])
            values.append(where.tenant_id)
        if where.status is not None:
            filters.append(_SQL["where_status"])
            values.append(str(where.status))
        sql, end = _NEXT.format(filters=" ".join(filters)), first_id_after(where.before)
        while (row := self._file.fetch_row(sql, (after, end, *values))) is not None:
            after, job_id, command, body, in_review, unsent = row
            head = _head_or_none(body)
            if head is None or head.completed_at < where.before:
                digest = head.protocol_digest if head else None
                yield _Candidate(after, JobRecordBuilder(job_id, command, body), digest, bool(in_review), bool(unsent))

    def _gathered(self, job: _Candidate) -> JobRecordBuilder:
        bodies = job.bodies
        for table, sql in _TABLES.items():
            bodies.add(table, (body for (body,) in self._file.fetch_rows(sql, (job.id,))))
        bodies.add("reviews", (body for (body,) in self._file.fetch_rows(_REVIEWS, (bodies.job_id,))))
        return bodies

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        keys: list[Row] = []
        ids: list[Row] = []
        still_there: set[str] = set()
        for job_id, version in versions.items():
            row = self._file.fetch_row(_STANDING, (job_id,))
            if row is None:
                continue
            id_, live, tenant_id, command, body = row
            head = _head_or_none(body)
            if live or head is None or head.version != version:
                still_there.add(job_id)
            else:
                ids.append((id_,))
                keys.append((tenant_id, self._key(job_id, command), job_id))
        if ids:
            self._file.write(_deletions(ids, keys))
        return frozenset(still_there)

    def _key(self, job_id: str, command: bytes) -> str:
        try:
            return idempotency_token(_command(command))
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(f"the command of job {job_id} in {self._file.path} can't be read: {error}") from error


def _head_or_none(body: bytes) -> _Head | None:
    try:
        return _head(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _deletions(ids: Sequence[Row], keys: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    return [
        *((_SQL[f"delete_{name}"], ids) for name in _DELETED_BY_JOB),
        (_SQL["delete_reviews"], [(job_id,) for _, _, job_id in keys]),
        (_SQL["delete_key"], keys),
        (_SQL["delete_job"], ids),
    ]
