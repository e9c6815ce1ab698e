"""Everything that only reads. Each statement walks an index in the order of its answer and stops at its limit."""

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, groupby, islice, product
from typing import Any

from lucius.adapters import rows
from lucius.adapters.cursor import decode_cursor, encode_cursor
from lucius.adapters.sqlite.live import Mirror, first_id_after
from lucius.adapters.sqlite.store import Store
from lucius.core.counters import picked
from lucius.core.decision import EndedAttempt, JobView
from lucius.core.model import BlockedReason, Event, Instant, Job, JobStatus, Millis, Quarantined
from lucius.ports.ledger import MOST_TENANTS, Drift, JobFilter, JobPage, Oldest, StoredAttempt, StoredEvent

DRIFT_WINDOW = 2_000
"""How many candidates one call of `drifted` looks at. In an outage every waiting job is one; the next call goes on
where this one stopped, so that the event loop never waits for all of them."""

_LAST_ID = 2**62

DUE = "SELECT job_id FROM jobs WHERE live = 1 AND due_at <= ? ORDER BY due_at, id LIMIT ?"

UNCLOCKED = f"""
    SELECT id, EXISTS (SELECT 1 FROM outbox WHERE job = jobs.id AND status = 'PENDING')
    FROM jobs WHERE live = 1 AND due_at IS NULL AND id > ? ORDER BY id LIMIT {DRIFT_WINDOW}
"""
DISPATCHING = f"""
    SELECT job, step_id,
           EXISTS (SELECT 1 FROM outbox WHERE job = steps.job AND outbox_id = steps.outbox_id AND status = 'PENDING')
    FROM steps WHERE status = 'DISPATCHING' AND (job, step_id) > (?, ?) ORDER BY job, step_id LIMIT {DRIFT_WINDOW}
"""

EVENTS = """
    SELECT body FROM events WHERE job = (SELECT id FROM jobs WHERE job_id = ?) AND seq > ? ORDER BY seq LIMIT ?
"""
STORED_EVENTS = """
    SELECT seq, body FROM events WHERE job = (SELECT id FROM jobs WHERE job_id = ?){after} ORDER BY seq LIMIT ?
"""
STORED_ATTEMPTS = """
    SELECT step_id, attempt_no, body FROM attempts
    WHERE job = (SELECT id FROM jobs WHERE job_id = ?){after} ORDER BY step_id, attempt_no LIMIT ?
"""
ATTEMPTS = "SELECT body FROM attempts WHERE job = (SELECT id FROM jobs WHERE job_id = ?)"
QUARANTINED = "SELECT id, body FROM quarantine WHERE job = (SELECT id FROM jobs WHERE job_id = ?)"
_OLDEST = "SELECT created_at FROM outbox WHERE status = 'PENDING' AND service = ? AND claimed = 0 AND tenant_id = ?"
OLDEST_AT_ONCE = f"{_OLDEST} AND next_attempt_at IS NULL ORDER BY seq LIMIT 1"
OLDEST_BY_NOW = f"{_OLDEST} AND next_attempt_at <= ? ORDER BY next_attempt_at, seq LIMIT 1"
JOB_BY_ID = """
    SELECT commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.id = ?
"""


class SqliteReader:
    """Implements Reader, and the reading half of Ledger."""

    def __init__(self, store: Store, mirror: Mirror) -> None:
        self._store = store
        self._mirror = mirror
        self._drift_after_job = 0
        self._drift_after_step = (0, "")

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobView | None:
        return self._mirror.view(job_id, step_ids)

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        return [job_id for (job_id,) in self._store.rows(DUE, (now, limit))]

    async def drifted(self, limit: int) -> list[Drift]:
        missing = self._steps_without_a_row()
        missing += [(job, None) for job in self._jobs_without_clock_or_row()]
        found: list[Drift] = []
        for job, items in groupby(sorted(missing, key=lambda item: item[0]), key=lambda item: item[0]):
            row = self._store.row("SELECT job_id FROM jobs WHERE id = ? AND live = 1", (job,))
            if row is not None and len(found) < limit:
                found.append(Drift(row[0], tuple(step_id for _, step_id in items if step_id is not None)))
        return found

    def _steps_without_a_row(self) -> list[tuple[int, str | None]]:
        window = self._store.rows(DISPATCHING, self._drift_after_step)
        self._drift_after_step = (window[-1][0], window[-1][1]) if len(window) == DRIFT_WINDOW else (0, "")
        return [(job, step_id) for job, step_id, has_row in window if not has_row]

    def _jobs_without_clock_or_row(self) -> list[int]:
        window = self._store.rows(UNCLOCKED, (self._drift_after_job,))
        self._drift_after_job = window[-1][0] if len(window) == DRIFT_WINDOW else 0
        return [job for job, has_row in window if not has_row]

    async def job(self, job_id: str) -> JobView | None:
        return self._mirror.whole_view(job_id)

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        below = _LAST_ID if cursor is None else decode_cursor(cursor)
        queries = listing(where, below, limit + 1, self._mirror.request_types)
        found = chain.from_iterable(self._store.rows(sql, values) for sql, values in queries)
        ids = heapq.nlargest(limit + 1, (id_ for (id_,) in found))
        page = ids[:limit]
        more = len(ids) > limit and page
        return JobPage([self._job_by_id(id_) for id_ in page], encode_cursor(page[-1]) if more else None)

    def _job_by_id(self, id_: int) -> Job:
        return rows.job(*self._store.rows(JOB_BY_ID, (id_,))[0])

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        ended = [rows.ended_attempt(body) for (body,) in self._store.rows(ATTEMPTS, (job_id,))]
        return sorted(ended, key=lambda e: (e.attempt.created_at, e.attempt.attempt_no, e.step_id))

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        return [rows.quarantined(body) for _, body in sorted(self._store.rows(QUARANTINED, (job_id,)))]

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        return [rows.event(body) for (body,) in self._store.rows(EVENTS, (job_id, after, limit))]

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        sql = STORED_EVENTS.format(after=" AND seq > ?" if after else "")
        found = self._store.rows(sql, (job_id, *([after.place] if after else []), limit))
        return [StoredEvent(place, rows.event_or_none(body)) for place, body in found]

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        sql = STORED_ATTEMPTS.format(after=" AND (step_id, attempt_no) > (?, ?)" if after else "")
        found = self._store.rows(sql, (job_id, *(after.place if after else ()), limit))
        return [StoredAttempt((step_id, no), rows.ended_or_none(body)) for step_id, no, body in found]

    async def counters(self, *names: str) -> dict[str, int]:
        return picked(self._mirror.counters, names)

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        names = self._mirror.services if service is None else [service]
        found = ((name, self._oldest(name, now)) for name in names)
        return {name: oldest for name, oldest in found if oldest is not None}

    def _oldest(self, service: str, now: Instant) -> Oldest | None:
        """A probe for each tenant, up to so many, and none for their rows."""
        waiting = (self._mirror.ready, self._mirror.later)
        ready, later = ([taker for taker, _ in islice(some.takers(service, ()), MOST_TENANTS)] for some in waiting)
        found = [self._store.row(OLDEST_AT_ONCE, taker) for taker in ready]
        found += [self._store.row(OLDEST_BY_NOW, (*taker, now)) for taker in later]
        written = [row[0] for row in found if row is not None]
        return Oldest(min(written), max(len(ready), len(later)) >= MOST_TENANTS) if written else None


def listing(
    where: JobFilter, below: int, limit: int, request_types: Iterable[str]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The queries whose answers, merged by id, are a page.

    There are few states and request types, so a filter that names neither asks for each of them in turn: each
    is then a range of an index in the order of the page, and no query reads what it will not return.
    """
    floor = 0 if where.created_after is None else first_id_after(where.created_after)
    after = "" if where.created_after is None else f" AND created_at > {int(where.created_after)}"
    page = f"id < ? AND id >= ?{after}"
    order = "ORDER BY id DESC LIMIT ?"
    statuses = [str(status) for status in (JobStatus if where.status is None else [where.status])]
    types = sorted(request_types) if where.request_type is None else [where.request_type]

    if where.blocked_on is not None or where.blocked_services is not None:
        filters, values = _filters_of_blocked(where)
        sql = f"SELECT id FROM jobs WHERE blocked_on = ? AND {page}{filters} {order}"
        for reason in BlockedReason if where.blocked_on is None else [where.blocked_on]:
            yield sql, (str(reason), below, floor, *values, limit)
    elif where.tenants is not None:
        sql = f"SELECT id FROM jobs WHERE tenant_id = ? AND status = ? AND request_type = ? AND {page} {order}"
        for tenant_id, status, request_type in product(where.tenants, statuses, types):
            yield sql, (tenant_id, status, request_type, below, floor, limit)
    elif where.status is not None or where.request_type is not None:
        sql = f"SELECT id FROM jobs WHERE status = ? AND request_type = ? AND {page} {order}"
        for status, request_type in product(statuses, types):
            yield sql, (status, request_type, below, floor, limit)
    else:
        yield f"SELECT id FROM jobs WHERE {page} {order}", (below, floor, limit)


def _filters_of_blocked(where: JobFilter) -> tuple[str, list[str]]:
    """Blocked jobs are live, so walking over some of them is bounded by what is in flight."""
    filters, values = "", []
    if where.blocked_services is not None:
        filters += f" AND blocked_service IN ({_marks(where.blocked_services)})"
        values += sorted(where.blocked_services)
    if where.except_services:
        filters += f" AND blocked_service NOT IN ({_marks(where.except_services)})"
        values += sorted(where.except_services)
    if where.tenants is not None:
        filters += f" AND tenant_id IN ({_marks(where.tenants)})"
        values += sorted(where.tenants)
    if where.status is not None:
        filters += " AND status = ?"
        values.append(str(where.status))
    if where.request_type is not None:
        filters += " AND request_type = ?"
        values.append(where.request_type)
    return filters, values


def _marks(values: Iterable[str]) -> str:
    return ", ".join("?" for _ in values)
