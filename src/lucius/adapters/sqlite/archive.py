"""Finished jobs on their way out of the file.

Nothing here yields to the event loop between a look and a write, and the file has one writer, so what was looked at
still holds when it is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from lucius.adapters.job_records import Bodies
from lucius.adapters.sqlite.live import first_id_after
from lucius.adapters.sqlite.store import Row, Store
from lucius.core.model import Command, Instant
from lucius.ports.archive import FinishedFilter, FinishedPage
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerError
from lucius.ports.ledger import idempotency_token

# A walk along the primary key. No job ends before it is accepted, so it stops at the cut-off. Bodies are read as
# bytes, since what somebody else wrote there need not be text.
_NEXT = """
    SELECT jobs.id, jobs.job_id, CAST(commands.body AS BLOB), CAST(jobs.body AS BLOB),
           EXISTS (SELECT 1 FROM reviews WHERE job_id = jobs.job_id AND status = 'OPEN'),
           EXISTS (SELECT 1 FROM outbox WHERE job = jobs.id AND status = 'PENDING')
    FROM jobs JOIN commands ON commands.job = jobs.id
    WHERE jobs.id > ? AND jobs.id < ? AND jobs.live = 0{filters} ORDER BY jobs.id LIMIT 1
"""
_TABLES = {
    "steps": "SELECT CAST(body AS BLOB) FROM steps WHERE job = ? ORDER BY id",
    "attempts": "SELECT CAST(body AS BLOB) FROM attempts WHERE job = ? ORDER BY step_id, attempt_no",
    "events": "SELECT CAST(body AS BLOB) FROM events WHERE job = ? ORDER BY seq",
    "quarantined": "SELECT CAST(body AS BLOB) FROM quarantine WHERE job = ? ORDER BY id",
}
_REVIEWS = "SELECT CAST(body AS BLOB) FROM reviews WHERE job_id = ? ORDER BY id"
_PROTOCOL = "SELECT CAST(body AS BLOB) FROM protocols WHERE digest = ?"
_STANDING = """
    SELECT jobs.id, jobs.live, jobs.tenant_id, CAST(commands.body AS BLOB), CAST(jobs.body AS BLOB)
    FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.job_id = ?
"""
_BY_JOB = ("steps", "attempts", "outbox", "events", "quarantine", "commands")


class _Head(Struct, frozen=True):
    protocol_digest: str
    version: int
    completed_at: Instant


class _Candidate(Struct, frozen=True):
    id: int
    bodies: Bodies
    digest: str | None
    in_review: bool
    unsent: bool


_head = msgspec.json.Decoder(_Head).decode
_command = msgspec.json.Decoder(Command).decode


class SqliteFinishedJobs:
    """Implements FinishedJobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> "Iterator[SqliteFinishedJobs]":
        """Raises LedgerError, and LedgerBusy if a server has it open."""
        if not path.exists():
            raise LedgerError(f"there is no ledger {path}: say which with LUCIUS_LEDGER_URL or --data-dir")
        try:
            store = Store.open(path, None)
        except LedgerBusy as busy:
            raise LedgerBusy(f"jobs leave a SQLite ledger only while no server has it open: {busy}") from busy
        try:
            yield cls(store)
        finally:
            store.close()

    async def page(self, where: FinishedFilter, cursor: int, limit: int, max_bytes: int) -> FinishedPage:
        found: list[Bodies] = []
        digests: set[str] = set()
        looked_at = size = reviews = notices = 0
        more = False
        for job in self._candidates(where, cursor):
            if looked_at == limit or size >= max_bytes:
                more = True
                break
            cursor, looked_at = job.id, looked_at + 1
            if job.in_review:
                reviews += 1
            elif job.unsent:
                notices += 1
            else:
                found.append(self._gathered(job))
                size += job.bodies.size
                digests.update((job.digest,) if job.digest else ())
        return FinishedPage(
            records=[bodies.record() for bodies in found],
            protocols={digest: body for digest in digests for (body,) in self._store.rows(_PROTOCOL, (digest,))},
            open_reviews=reviews,
            pending_notices=notices,
            cursor=cursor if more else None,
        )

    def _candidates(self, where: FinishedFilter, after: int) -> Iterator[_Candidate]:
        """Jobs that ended in time. One whose head can't be read is among them: whoever reads it says so."""
        filters, values = "", []
        if where.tenant_id is not None:
            filters += " AND jobs.tenant_id = ?"
            values.append(where.tenant_id)
        if where.status is not None:
            filters += " AND jobs.status = ?"
            values.append(str(where.status))
        sql, end = _NEXT.format(filters=filters), first_id_after(where.before)
        while (row := self._store.row(sql, (after, end, *values))) is not None:
            after, job_id, command, body, in_review, unsent = row
            head = _head_or_none(body)
            if head is None or head.completed_at < where.before:
                digest = head.protocol_digest if head else None
                yield _Candidate(after, Bodies(job_id, command, body), digest, bool(in_review), bool(unsent))

    def _gathered(self, job: _Candidate) -> Bodies:
        bodies = job.bodies
        for table, sql in _TABLES.items():
            bodies.add(table, (body for (body,) in self._store.rows(sql, (job.id,))))
        bodies.add("reviews", (body for (body,) in self._store.rows(_REVIEWS, (bodies.job_id,))))
        return bodies

    async def drop(self, versions: Mapping[str, int]) -> frozenset[str]:
        keys: list[Row] = []
        ids: list[Row] = []
        still_there: set[str] = set()
        for job_id, version in versions.items():
            row = self._store.row(_STANDING, (job_id,))
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
            self._store.write(_deletions(ids, keys))
        return frozenset(still_there)

    def _key(self, job_id: str, command: bytes) -> str:
        try:
            return idempotency_token(_command(command))
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(f"the command of job {job_id} in {self._store.path} can't be read: {error}") from error


def _head_or_none(body: bytes) -> _Head | None:
    try:
        return _head(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _deletions(ids: Sequence[Row], keys: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    return [
        *((f"DELETE FROM {table} WHERE job = ?", ids) for table in _BY_JOB),
        ("DELETE FROM reviews WHERE job_id = ?", [(job_id,) for _, _, job_id in keys]),
        ("DELETE FROM idempotency WHERE tenant_id = ? AND key = ? AND job_id = ?", keys),
        ("DELETE FROM jobs WHERE id = ?", ids),
    ]
