"""A group of decisions as the arguments of one call: an array for every column."""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lucius.adapters import rows
from lucius.adapters.postgres.cache import DONE, LIVE, NOWHERE, Place
from lucius.core.decision import Decision
from lucius.core.model import Instant, Job, OutboxRow, OutboxStatus
from lucius.ports.ledger import idempotency_token

_ID_BITS = 20

_WIDTHS = {
    "jobs": 8,
    "heads": 12,
    "steps": 5,
    "attempts": 4,
    "events": 3,
    "outbox": 16,
    "settled": 2,
    "late": 5,
    "reviews": 7,
}

PLACEHOLDERS = ", ".join(f"${n}" for n in range(1, sum(_WIDTHS.values()) + 4))
CALL = f"SELECT commit_2({PLACEHOLDERS})"

Row = tuple[Any, ...]
Hold = tuple[int, Instant]


class Ids:
    """Numbers in the order of time: the instant, then chance. Within a process they only grow, so a clock that went
    back yields ids ahead of their time. Of two processes that hit on the same id for a job, one is told by the key."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, created_at: Instant) -> int:
        self._last = max(self._last + 1, (created_at << _ID_BITS) | random.getrandbits(_ID_BITS))
        return self._last


def first_id_after(instant: Instant) -> int:
    return (instant + 1) << _ID_BITS


def arguments(
    decisions: Sequence[Decision], places: Sequence[Place], hold: Callable[[OutboxRow], Hold], turns: Ids
) -> tuple[list[list[Any]], set[str], list[int]]:
    """Every decision is about another job. Sorted as `commit_2` wants it.

    Beside the arguments: the outbox rows that will be held, and how long each decision's command and steps are.
    """
    found: dict[str, list[Row]] = {name: [] for name in _WIDTHS}
    sizes = []
    for decision, place in zip(decisions, places, strict=True):
        steps, jobs = len(found["steps"]), len(found["jobs"])
        _add(found, decision, place.id, place.table, hold)
        sizes.append(sum(len(row[-1]) for row in (*found["steps"][steps:], *found["jobs"][jobs:])))
    found["jobs"].sort(key=lambda row: (row[2], row[5]))
    found["heads"].sort(key=lambda row: row[0])
    held = {row[1] for row in found["outbox"] if row[-2]}
    found["outbox"] = [(*row, turns.next(row[10])) for row in found["outbox"]]
    arrays = [column for name, width in _WIDTHS.items() for column in _columns(found[name], width)]
    return arrays + _columns(_counters(decisions), 3), held, sizes


def _add(
    found: dict[str, list[Row]], decision: Decision, id_: int, table: int, hold: Callable[[OutboxRow], Hold]
) -> None:
    job = decision.job
    if table == NOWHERE:
        command = job.command
        key = storable(idempotency_token(command))
        found["jobs"].append(
            (
                id_,
                job.job_id,
                job.tenant_id,
                command.request_type,
                job.created_at,
                key,
                command.idempotency_hash,
                rows.body(command),
            )
        )
    found["heads"].append(_head(id_, table, decision.expected_version, job))
    found["steps"] += [
        (id_, step.step_id, str(step.status), step.attempt.outbox_id, rows.body(step)) for step in decision.steps
    ]
    found["attempts"] += [
        (id_, ended.step_id, ended.attempt.attempt_no, rows.body(ended)) for ended in decision.attempts
    ]
    if decision.events:
        found["events"].append((id_, decision.events[0].seq, rows.events(decision.events)))
    never_waited = {row.outbox_id for row in decision.given}
    for row in decision.outbox:
        if row.status is OutboxStatus.PENDING:
            found["outbox"].append(_outbox(id_, row, hold(row)))
        elif row.outbox_id not in never_waited:
            found["settled"].append((id_, row.outbox_id))
    found["late"] += [(id_, q.step_id, q.attempt_no, q.lease_id, rows.body(q)) for q in decision.quarantined]
    found["reviews"] += [
        (r.review_id, r.job_id, r.tenant_id, str(r.kind), str(r.status), storable(r.signature), rows.body(r))
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
        rows.head(job),
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
    """What the group moves in all, and the tightest limit on it."""
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


def storable(text: str) -> str:
    """PostgreSQL's text holds any character but one."""
    return text.replace("\x00", "\ufffd0") if "\x00" in text else text
