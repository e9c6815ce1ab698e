"""Everything that only reads, from the database and never from a cache. A page is one statement.

Each branch of a statement walks one index in the order of its answer and stops at its limit. Where the planner could
think another index as good (it does not know which value is rare), rows are compared as a whole, `(a, b, id) < …`, and
sorted by all of it: only the index meant can answer that. What is joined to a page is a scalar subquery, which is
always a probe, however few rows PostgreSQL believes the tables to have.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from lucius.adapters import rows
from lucius.adapters.cursor import decode_cursor, encode_cursor
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.listing import listing
from lucius.adapters.postgres.texts import findable
from lucius.core.counters import is_family
from lucius.core.decision import EndedAttempt, JobView
from lucius.core.model import Event, Instant, Quarantined, Step
from lucius.core.protocol import Protocol
from lucius.ports.ledger import MOST_TENANTS, Drift, JobFilter, JobPage, Oldest, StoredAttempt, StoredEvent

DRIFT_WINDOW = 2_000
"""How many live jobs one call of `drifted` looks at; the next goes on where this one stopped."""

_LAST = 2**63 - 1

_JOB = """
    SELECT jobs.command, coalesce(live.body, done.body) AS head,
           ARRAY(SELECT body FROM steps WHERE job = jobs.id) AS steps
    FROM jobs LEFT JOIN live ON live.id = jobs.id LEFT JOIN done ON done.id = jobs.id
    WHERE jobs.job_id = $1
"""

_OF_JOB = "job = (SELECT id FROM jobs WHERE job_id = $1)"
_ATTEMPTS = f"SELECT body FROM attempts WHERE {_OF_JOB}"
_STORED_ATTEMPTS = f"""
    SELECT step_id, attempt_no, body FROM attempts
    WHERE {_OF_JOB} AND (step_id, attempt_no) > ($2, $3) ORDER BY step_id, attempt_no LIMIT $4
"""
_QUARANTINED = f"SELECT body FROM quarantine WHERE {_OF_JOB} ORDER BY id"
# From the row that a place is in: it stands under the number of its first event.
_EVENTS = f"""
    SELECT seq, body FROM events
    WHERE {_OF_JOB}
    AND seq >= coalesce(
        (SELECT seq FROM events WHERE {_OF_JOB} AND seq <= $2::bigint ORDER BY seq DESC LIMIT 1), -2147483648
    )
    ORDER BY seq LIMIT $3
"""

# `OFFSET` keeps each family a range of the index by itself: joined, they would be looked for among all counters.
_COUNTERS = """
    SELECT name, value FROM counters WHERE name = ANY ($1) AND value <> 0
    UNION ALL
    SELECT of_family.* FROM unnest($2::text[], $3::text[]) AS family (first, beyond) CROSS JOIN LATERAL (
        SELECT name, value FROM counters WHERE name >= first AND name < beyond AND value <> 0 OFFSET 0
    ) AS of_family
"""
_READY = "next_attempt_at IS NULL AND claimed_at IS NULL"
_LATER = "next_attempt_at IS NOT NULL AND claimed_at IS NULL"
# The first of each tenant's queue, by hopping along the index, and of what backs off the first to come. A hop says of
# its service that it is the same, not that the pair is greater: else PostgreSQL begins each at the first tenant.
_OLDEST = f"""
    SELECT service, least(ready.oldest, later.created_at) AS oldest, ready.tenants >= {MOST_TENANTS} AS older_possible
    FROM asked CROSS JOIN LATERAL (
        WITH RECURSIVE first AS (
            (
                SELECT tenant_id, created_at, 1 AS hop FROM outbox
                WHERE {_READY} AND service = asked.service ORDER BY service, tenant_id, seq LIMIT 1
            )
            UNION ALL
            SELECT next.*, first.hop + 1 FROM first CROSS JOIN LATERAL (
                SELECT tenant_id, created_at FROM outbox
                WHERE {_READY} AND service = asked.service AND tenant_id > first.tenant_id
                ORDER BY service, tenant_id, seq LIMIT 1
            ) AS next WHERE first.hop < {MOST_TENANTS}
        )
        SELECT min(created_at) AS oldest, count(*) AS tenants FROM first
    ) AS ready LEFT JOIN LATERAL (
        SELECT created_at FROM outbox WHERE {_LATER} AND service = asked.service AND next_attempt_at <= $1
        ORDER BY service, next_attempt_at, seq LIMIT 1
    ) AS later ON true
    WHERE ready.tenants > 0 OR later.created_at IS NOT NULL
"""
_OLDEST_OF_ONE = f"""WITH asked AS (SELECT $2::text COLLATE "C" AS service) {_OLDEST}"""
_SERVICES = """
    (SELECT service FROM outbox WHERE {which} ORDER BY {order} LIMIT 1)
    UNION ALL
    SELECT next.* FROM {name} CROSS JOIN LATERAL (
        SELECT service FROM outbox WHERE {which} AND service > {name}.service ORDER BY {order} LIMIT 1
    ) AS next
"""
_OLDEST_OF_ALL = f"""
    WITH RECURSIVE are_ready AS (
        {_SERVICES.format(name="are_ready", which=_READY, order="service, tenant_id, seq")}
    ), come_later AS (
        {_SERVICES.format(name="come_later", which=_LATER, order="service, next_attempt_at, seq")}
    ), asked AS (
        SELECT service FROM are_ready UNION SELECT service FROM come_later
    ) {_OLDEST}
"""

# One snapshot, so a job that is being moved on can't look lost. The last column says how far the window reaches.
_DRIFTED = f"""
    WITH seen AS MATERIALIZED (
        SELECT id, due_at FROM live WHERE id > $1 ORDER BY id LIMIT {DRIFT_WINDOW}
    ), reach AS (
        SELECT CASE WHEN count(*) = {DRIFT_WINDOW} THEN max(id) ELSE 0 END AS id FROM seen
    ), looked_at AS (
        SELECT id, due_at IS NULL AND (SELECT job FROM outbox WHERE job = seen.id LIMIT 1) IS NULL AS idle, ARRAY(
            SELECT step_id FROM steps WHERE steps.job = seen.id AND status = 'DISPATCHING' AND (
                SELECT job FROM outbox WHERE outbox.job = steps.job AND outbox.outbox_id = steps.outbox_id
            ) IS NULL ORDER BY step_id
        ) AS missing FROM seen
    ), lost AS (
        SELECT id, missing FROM looked_at WHERE idle OR cardinality(missing) > 0 ORDER BY id LIMIT $2
    )
    SELECT lost.id, (SELECT job_id FROM jobs WHERE jobs.id = lost.id) AS job_id, missing, reach.id AS reach
    FROM reach LEFT JOIN lost ON true ORDER BY lost.id
"""


class PostgresReader:
    """Implements Reader, and the repairs' half of Ledger."""

    def __init__(self, database: Database, protocol: Callable[[str], Awaitable[Protocol]]) -> None:
        self._database = database
        self._protocol = protocol
        self._drift_after = 0

    async def job(self, job_id: str) -> JobView | None:
        row = await self._database.row(_JOB, job_id) if findable(job_id) else None
        if row is None or row["head"] is None:
            return None
        job = rows.job(row["command"], row["head"])
        return JobView(job, await self._protocol(job.protocol_digest), _by_name(row["steps"]))

    async def jobs(self, where: JobFilter, limit: int, cursor: str | None) -> JobPage:
        below = _LAST if cursor is None else decode_cursor(cursor)
        asked = listing(where, below, limit + 1)
        found = await self._database.rows(*asked) if asked is not None else []
        page = found[:limit]
        more = len(found) > limit and page
        jobs = [rows.job(row["command"], row["head"]) for row in page]
        return JobPage(jobs, encode_cursor(page[-1]["id"]) if more else None)

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        ended = [rows.ended_attempt(row["body"]) for row in await self._of_job(_ATTEMPTS, job_id)]
        return sorted(ended, key=lambda e: (e.attempt.created_at, e.attempt.attempt_no, e.step_id))

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        step_id, attempt_no = after.place if after else ("", 0)
        found = await self._of_job(_STORED_ATTEMPTS, job_id, step_id, attempt_no, limit)
        return [StoredAttempt((row["step_id"], row["attempt_no"]), rows.ended_or_none(row["body"])) for row in found]

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        return [rows.quarantined(row["body"]) for row in await self._of_job(_QUARANTINED, job_id)]

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        """The first row may hold none of those wanted, each other holds one at least."""
        first = min(max(after, 0) + 1, _LAST)
        found = await self._of_job(_EVENTS, job_id, first, limit + 1)
        events = (event for row in found for event in rows.events_of(job_id, row["body"]))
        return [event for event in events if event.seq > after][:limit]

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        place = after.place if after is not None else None
        found = await self._of_job(_EVENTS, job_id, place if isinstance(place, int) else -_LAST, limit + 2)
        ends = [row["seq"] for row in found[1:]]
        ends += [_LAST] if len(found) < limit + 2 else []  # the row too many only tells where the one before ends
        events = (event for row, end in zip(found, ends, strict=False) for event in _expanded(job_id, row, end))
        return [event for event in events if not isinstance(place, int) or _number(event) > place][:limit]

    async def _of_job(self, sql: str, job_id: str, *values: Any) -> list[Any]:
        return await self._database.rows(sql, job_id, *values) if findable(job_id) else []

    async def counters(self, *names: str) -> dict[str, int]:
        single = [name for name in names if not is_family(name)]
        families = [name for name in names if is_family(name)]
        beyond = [_beyond(name) for name in families]
        found = await self._database.rows(_COUNTERS, single, families, beyond)
        return {row["name"]: row["value"] for row in found}

    async def backlog(self, now: Instant, service: str | None = None) -> dict[str, Oldest]:
        asked = (_OLDEST_OF_ALL, now) if service is None else (_OLDEST_OF_ONE, now, service)
        found = await self._database.rows(*asked)
        return {row["service"]: Oldest(row["oldest"], row["older_possible"]) for row in found}

    async def drifted(self, limit: int) -> list[Drift]:
        found = await self._database.rows(_DRIFTED, self._drift_after, limit)
        lost = [row for row in found if row["id"] is not None]
        self._drift_after = lost[-1]["id"] if len(lost) == limit else found[0]["reach"]
        return [Drift(row["job_id"], tuple(row["missing"])) for row in lost]


def _beyond(family: str) -> str:
    """What comes behind all names that begin so: `0` is the character next to `/`."""
    return f"{family[:-1]}0" if family else chr(sys.maxunicode)


def _by_name(bodies: Iterable[str]) -> dict[str, Step]:
    steps = sorted((rows.step(body) for body in bodies), key=lambda step: step.index)
    return {step.step_id: step for step in steps}


def _expanded(job_id: str, row: Any, end: int) -> list[StoredEvent]:
    """The events of a row, each at its place. One that holds none, or reaches into the next, is not as we wrote it."""
    first, events = row["seq"], rows.events_or_none(job_id, row["body"])
    if not events or first + len(events) > end:
        return [StoredEvent(first, None)]
    return [StoredEvent(first + n, event) for n, event in enumerate(events)]


def _number(event: StoredEvent) -> int:
    assert isinstance(event.place, int)
    return event.place
