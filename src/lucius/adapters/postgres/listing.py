"""The statement that answers a page of jobs, newest first. See `queries` for why it is written as it is."""

from typing import Any

from lucius.adapters.postgres.batch import first_id_after
from lucius.adapters.postgres.texts import findable
from lucius.core.model import TERMINAL_JOB, Instant
from lucius.ports.ledger import JobFilter

_LAST = 2**63 - 1

_PAGE = """
    WITH RECURSIVE {kinds}page AS (SELECT id FROM ({branches}) AS found ORDER BY id DESC LIMIT {limit})
    SELECT id, (SELECT command FROM jobs WHERE jobs.id = page.id) AS command, coalesce(
        (SELECT body FROM live WHERE live.id = page.id), (SELECT body FROM done WHERE done.id = page.id)
    ) AS head
    FROM page ORDER BY id DESC
"""
# What is live is walked: that is bounded by what is in flight.
_LIVE = "(SELECT id FROM live WHERE id < {below} AND id >= {floor}{filters} ORDER BY id DESC LIMIT {limit})"
_ALL_DONE = "(SELECT id FROM done WHERE id < {below} AND id >= {floor}{after} ORDER BY id DESC LIMIT {limit})"
# There are few states and request types. Each combination that occurs is a range of an index, in the order of the
# page; they are found by hopping from one to the next.
_SOME_DONE = """(
    SELECT found.id FROM kinds CROSS JOIN LATERAL (
        SELECT id FROM done
        WHERE ({columns}, id) < ({values}, {below}) AND ({columns}, id) >= ({values}, {floor}){after}
        ORDER BY {order}, id DESC LIMIT {limit}
    ) AS found{filters}
)"""
_KINDS = """kinds AS (
    (SELECT status, request_type FROM done ORDER BY status, request_type LIMIT 1)
    UNION ALL
    SELECT next.* FROM kinds CROSS JOIN LATERAL (
        SELECT status, request_type FROM done WHERE (status, request_type) > (kinds.status, kinds.request_type)
        ORDER BY status, request_type LIMIT 1
    ) AS next
), """
# The tenant is compared outside: past a tenant's last row stands the next tenant's first.
_KINDS_OF_TENANTS = """kinds AS (
    SELECT first.* FROM unnest({tenants}::text[]) AS wanted (tenant_id) CROSS JOIN LATERAL (
        SELECT tenant_id, status, request_type FROM done WHERE tenant_id >= wanted.tenant_id
        ORDER BY tenant_id, status, request_type LIMIT 1
    ) AS first WHERE first.tenant_id = wanted.tenant_id
    UNION ALL
    SELECT next.* FROM kinds CROSS JOIN LATERAL (
        SELECT tenant_id, status, request_type FROM done
        WHERE (tenant_id, status, request_type) > (kinds.tenant_id, kinds.status, kinds.request_type)
        ORDER BY tenant_id, status, request_type LIMIT 1
    ) AS next WHERE next.tenant_id = kinds.tenant_id
), """


class _Values:
    """The arguments of a statement, each where its mark stands."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def mark(self, value: Any) -> str:
        self.all.append(value)
        return f"${len(self.all)}"


def listing(where: JobFilter, below: int, limit: int) -> tuple[Any, ...] | None:
    """The statement and its arguments; None if nothing can match."""
    if where.request_type is not None and not findable(where.request_type):
        return None
    values = _Values()
    marks = {
        "below": values.mark(below),
        "floor": values.mark(_floor(where.created_after) if where.created_after is not None else 0),
        "limit": values.mark(limit),
    }
    created_after = None if where.created_after is None else values.mark(_bounded(where.created_after))
    blocked = where.blocked_on is not None or where.blocked_services is not None
    branches: list[str] = []
    kinds = ""
    if where.status not in TERMINAL_JOB:
        branches.append(_LIVE.format(**marks, filters=_live_filters(where, blocked, created_after, values)))
    if not blocked and (where.status is None or where.status in TERMINAL_JOB):
        kinds, branch = _done(where, marks, created_after, values)
        branches.append(branch)
    if not branches:
        return None
    sql = _PAGE.format(kinds=kinds, branches=" UNION ALL ".join(branches), limit=marks["limit"])
    return sql, *values.all


def _floor(instant: Instant) -> int:
    """A clock that went back yields ids ahead of their time, so `created_at` is compared all the same."""
    return min(first_id_after(max(0, instant)), _LAST)


def _bounded(instant: Instant) -> int:
    return max(-_LAST, min(instant, _LAST))


def _done(where: JobFilter, marks: dict[str, str], created_after: str | None, values: _Values) -> tuple[str, str]:
    """The hops between kinds, if there are any to make, and the branch that reads finished jobs."""
    after = _after("done", created_after)
    if where.tenants is None and where.status is None and where.request_type is None:
        return "", _ALL_DONE.format(**marks, after=after)
    kinds, columns = _KINDS, ["status", "request_type"]
    if where.tenants is not None:
        kinds = _KINDS_OF_TENANTS.format(tenants=values.mark(_known(where.tenants)))
        columns = ["tenant_id", *columns]
    filters = [f"kinds.status = {values.mark(str(where.status))}"] if where.status is not None else []
    filters += [f"kinds.request_type = {values.mark(where.request_type)}"] if where.request_type is not None else []
    branch = _SOME_DONE.format(
        **marks,
        columns=", ".join(columns),
        values=", ".join(f"kinds.{column}" for column in columns),
        order=", ".join(f"{column} DESC" for column in columns),
        after=after,
        filters=f" WHERE {' AND '.join(filters)}" if filters else "",
    )
    return kinds, branch


def _live_filters(where: JobFilter, blocked: bool, created_after: str | None, values: _Values) -> str:
    filters = _after("live", created_after)
    if where.tenants is not None:
        filters += f" AND tenant_id = ANY({values.mark(_known(where.tenants))}::text[])"
    if where.status is not None:
        filters += f" AND status = {values.mark(str(where.status))}"
    if where.request_type is not None:
        filters += f" AND request_type = {values.mark(where.request_type)}"
    if not blocked:
        return filters
    if where.blocked_on is None:
        filters += " AND blocked_on IS NOT NULL"
    else:
        filters += f" AND blocked_on = {values.mark(str(where.blocked_on))}"
    if where.blocked_services is not None:
        filters += f" AND blocked_service = ANY({values.mark(_known(where.blocked_services))}::text[])"
    if where.except_services:
        filters += f" AND blocked_service <> ALL({values.mark(_known(where.except_services))}::text[])"
    return filters


def _after(table: str, created_after: str | None) -> str:
    if created_after is None:
        return ""
    return f" AND (SELECT created_at FROM jobs WHERE jobs.id = {table}.id) > {created_after}::bigint"


def _known(texts: frozenset[str]) -> list[str]:
    return sorted(text for text in texts if findable(text))
