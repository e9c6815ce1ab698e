"""Builds the statement for a page of jobs, newest first. `jobs` explains its form."""

from typing import Any

from lucius.adapters.ledger.postgres.batch import first_id_after
from lucius.adapters.ledger.postgres.filters import Arguments, Filters
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.records import Instant
from lucius.core.model.statuses import TERMINAL_JOB
from lucius.ports.readers import JobFilter

_LAST = 2**63 - 1
_AFTER_ID = "\x7f"  # sorts after every character of a job id

_SQL = load_statements(__package__, "job_pages")


def build_page_query(where: JobFilter, below: int, limit: int) -> tuple[Any, ...] | None:
    """Return the statement and its arguments, or None if nothing can match."""
    if where.request_type is not None and not is_valid_text(where.request_type):
        return None
    arguments = Arguments()
    marks = {
        "below": arguments.add(below),
        "floor": arguments.add(_floor(where.created_after) if where.created_after is not None else 0),
        "limit": arguments.add(limit),
    }
    if where.id_prefix is not None:
        return _by_prefix(where, where.id_prefix, marks, arguments)
    created_after = None if where.created_after is None else arguments.add(_clamp(where.created_after))
    blocked = where.blocked_on is not None or where.blocked_services is not None
    branches: list[str] = []
    kinds = ""
    if where.status not in TERMINAL_JOB:
        branches.append(_live_filters(where, blocked, created_after, arguments).fill("live", **marks))
    if not blocked and (where.status is None or where.status in TERMINAL_JOB):
        kinds, branch = _done(where, marks, created_after, arguments)
        branches.append(branch)
    if not branches:
        return None
    sql = _SQL["page"].format(kinds=kinds, branches=" UNION ALL ".join(branches), limit=marks["limit"])
    return sql, *arguments.values


def _by_prefix(where: JobFilter, prefix: str, marks: dict[str, str], arguments: Arguments) -> tuple[Any, ...] | None:
    """Return the statement for an id prefix: it reads a range of the index on `job_id`, then sorts the page."""
    if not is_valid_text(prefix):
        return None
    first, end = arguments.add(prefix), arguments.add(prefix + _AFTER_ID)
    filters = Filters(_SQL, arguments)
    if where.tenants is not None:
        filters.add("tenants", _valid_texts(where.tenants))
    branch = filters.fill("by_prefix", **marks, first=first, end=end)
    return _SQL["page"].format(kinds="", branches=branch, limit=marks["limit"]), *arguments.values


def _floor(instant: Instant) -> int:
    """Return the smallest id to read. After the clock was set back ids run ahead, so `created_at` is compared too."""
    return min(first_id_after(max(0, instant)), _LAST)


def _clamp(instant: Instant) -> int:
    return max(-_LAST, min(instant, _LAST))


def _done(where: JobFilter, marks: dict[str, str], created_after: str | None, arguments: Arguments) -> tuple[str, str]:
    """Return the CTE that lists kinds, if needed, and the branch that reads finished jobs."""
    filters, wanted = Filters(_SQL, arguments), Filters(_SQL, arguments)
    if created_after is not None:
        filters.add_placeholder("done_created_after", created_after)
    if where.tenants is None and where.status is None and where.request_type is None:
        return "", filters.fill("all_done", **marks)
    kinds, branch = _SQL["kinds"], "done_of_kinds"
    if where.tenants is not None:
        tenants = arguments.add(_valid_texts(where.tenants))
        kinds, branch = _SQL["kinds_of_tenants"].format(tenants=tenants), "done_of_tenants"
    if where.status is not None:
        wanted.add("kind_status", str(where.status))
    if where.request_type is not None:
        wanted.add("kind_request_type", where.request_type)
    return kinds, filters.fill(branch, **marks, wanted=str(wanted))


def _live_filters(where: JobFilter, blocked: bool, created_after: str | None, arguments: Arguments) -> Filters:
    filters = Filters(_SQL, arguments)
    if created_after is not None:
        filters.add_placeholder("live_created_after", created_after)
    if where.tenants is not None:
        filters.add("tenants", _valid_texts(where.tenants))
    if where.status is not None:
        filters.add("status", str(where.status))
    if where.request_type is not None:
        filters.add("request_type", where.request_type)
    if not blocked:
        return filters
    if where.blocked_on is None:
        filters.add_placeholder("is_blocked", "")
    else:
        filters.add("blocked_on", str(where.blocked_on))
    if where.blocked_services is not None:
        filters.add("blocked_services", _valid_texts(where.blocked_services))
    if where.except_services:
        filters.add("except_services", _valid_texts(where.except_services))
    return filters


def _valid_texts(texts: frozenset[str]) -> list[str]:
    return sorted(text for text in texts if is_valid_text(text))
