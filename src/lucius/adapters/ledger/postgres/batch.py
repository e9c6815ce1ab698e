"""Encodes a group of decisions as the arguments of one `commit_1` call: one array per column."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres.cache import DONE, LIVE, NEW, JobLocation
from lucius.adapters.ledger.search_page import own_correlation_id, target_key
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.decision import Decision
from lucius.core.model.records import Instant, Job, OutboxRow
from lucius.core.model.statuses import OutboxStatus
from lucius.ports.ledger import idempotency_token

_ID_BITS = 20

_WIDTHS = {
    "jobs": 11,
    "heads": 13,
    "steps": 5,
    "attempts": 4,
    "events": 3,
    "outbox": 16,
    "settled": 2,
    "late": 5,
    "reviews": 7,
}

PLACEHOLDERS = ", ".join(f"${n}" for n in range(1, sum(_WIDTHS.values()) + 4))
_SQL = load_statements(__package__, "batch", placeholders=PLACEHOLDERS)
COMMIT_SQL = _SQL["commit"]

Row = tuple[Any, ...]
Hold = tuple[int, Instant]


class IdGenerator:
    """Generates ids ordered by time: the instant in milliseconds, then random bits.

    Within a process ids only grow, so after the clock was set back they run ahead of it. If two replicas generate the
    same id for a job, the primary key makes one of them retry.
    """

    def __init__(self) -> None:
        self._last = 0

    def next(self, created_at: Instant) -> int:
        self._last = max(self._last + 1, (created_at << _ID_BITS) | random.getrandbits(_ID_BITS))
        return self._last


def first_id_after(instant: Instant) -> int:
    """Return the smallest id of a job accepted after `instant`."""
    return (instant + 1) << _ID_BITS


def build_arguments(
    decisions: Sequence[Decision],
    locations: Sequence[JobLocation],
    hold: Callable[[OutboxRow], Hold],
    sequence: IdGenerator,
) -> tuple[list[list[Any]], set[str], list[int]]:
    """Return the arguments, the ids of outbox rows that will be held, and each decision's encoded size.

    Each decision must be about a different job. Rows are sorted as `commit_1` requires.
    """
    found: dict[str, list[Row]] = {name: [] for name in _WIDTHS}
    sizes = []
    for decision, location in zip(decisions, locations, strict=True):
        steps, jobs = len(found["steps"]), len(found["jobs"])
        _add_decision(found, decision, location.id, location.table, hold)
        commands = sum(len(row[7]) for row in found["jobs"][jobs:])
        sizes.append(commands + sum(len(row[-1]) for row in found["steps"][steps:]))
    found["jobs"].sort(key=lambda row: (row[2], row[5]))
    found["heads"].sort(key=lambda row: row[0])
    held = {row[1] for row in found["outbox"] if row[-2]}
    found["outbox"] = [(*row, sequence.next(row[10])) for row in found["outbox"]]
    arrays = [column for name, width in _WIDTHS.items() for column in _columns(found[name], width)]
    return arrays + _columns(_counters(decisions), 3), held, sizes


def _add_decision(
    found: dict[str, list[Row]], decision: Decision, id_: int, table: int, hold: Callable[[OutboxRow], Hold]
) -> None:
    job = decision.job
    if table == NEW:
        command = job.command
        key = replace_nul(idempotency_token(command))
        found["jobs"].append(
            (
                id_,
                job.job_id,
                job.tenant_id,
                command.request_type,
                job.created_at,
                key,
                command.idempotency_hash,
                record_codec.body(command),
                _storable_or_none(command.doc_id),
                _storable_or_none(own_correlation_id(command, job.job_id)),
                _storable_or_none(target_key(command.target)),
            )
        )
    found["heads"].append(_head(id_, table, decision.expected_version, job))
    found["steps"] += [
        (id_, step.step_id, str(step.status), step.attempt.outbox_id, record_codec.body(step))
        for step in decision.steps
    ]
    found["attempts"] += [
        (id_, ended.step_id, ended.attempt.attempt_no, record_codec.body(ended)) for ended in decision.attempts
    ]
    if decision.events:
        found["events"].append((id_, decision.events[0].seq, record_codec.events(decision.events)))
    never_pending = {row.outbox_id for row in decision.handed_over}
    for row in decision.outbox:
        if row.status is OutboxStatus.PENDING:
            found["outbox"].append(_outbox(id_, row, hold(row)))
        elif row.outbox_id not in never_pending:
            found["settled"].append((id_, row.outbox_id))
    found["late"] += [(id_, q.step_id, q.attempt_no, q.lease_id, record_codec.body(q)) for q in decision.quarantined]
    found["reviews"] += [
        (r.review_id, r.job_id, r.tenant_id, str(r.kind), str(r.status), replace_nul(r.signature), record_codec.body(r))
        for r in decision.reviews
    ]


def _head(id_: int, table: int, expected: int, job: Job) -> Row:
    live, blocked = job.live, job.blocked if job.live else None
    return (
        id_,
        table,
        LIVE if live else DONE,
        expected,
        str(job.status),
        job.tenant_id,
        job.command.request_type,
        job.due_at if live else None,
        str(blocked.reason) if blocked else None,
        blocked.service if blocked else None,
        None if live else job.completed_at or job.updated_at,
        record_codec.head(job),
        None if live or job.error is None else replace_nul(job.error.code),
    )


def _outbox(id_: int, row: OutboxRow, hold: Hold) -> Row:
    return (
        id_,
        row.outbox_id,
        row.job_id,
        row.tenant_id,
        row.step_id,
        row.attempt_no,
        row.lease_id,
        row.service,
        row.topic,
        row.lane,
        row.created_at,
        row.next_attempt_at,
        row.claimed_at,
        *hold,
    )


def _counters(decisions: Iterable[Decision]) -> list[Row]:
    """Return each counter's total change in the group and its lowest limit."""
    moves: dict[str, int] = {}
    caps: dict[str, int] = {}
    for decision in decisions:
        for name, move in decision.counters.items():
            moves[name] = moves.get(name, 0) + move
        for cap in decision.caps:
            caps[cap.counter] = min(cap.limit, caps.get(cap.counter, cap.limit))
    wanted = sorted({name for name, move in moves.items() if move} | caps.keys())
    return [(name, moves.get(name, 0), caps.get(name)) for name in wanted]


def _columns(table: list[Row], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*table, strict=True)] if table else [[] for _ in range(width)]


def _storable_or_none(text: str | None) -> str | None:
    return None if text is None else replace_nul(text)


def replace_nul(text: str) -> str:
    """Replace NUL characters, which PostgreSQL text can't hold."""
    return text.replace("\x00", "\ufffd0") if "\x00" in text else text
