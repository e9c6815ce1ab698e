"""Reads of events and attempts, which go to the database and never to a cache."""

from typing import Any

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Event, Quarantined
from lucius.ports.readers import StoredAttempt, StoredEvent

_LAST = 2**63 - 1

_SQL = load_statements(__package__, "history")
_OF_JOB = _SQL["of_job"]
_ATTEMPTS = _SQL["attempts"]
_STORED_ATTEMPTS = _SQL["stored_attempts"]
_QUARANTINED = _SQL["quarantined"]
_EVENTS = _SQL["events"]


class PostgresHistoryReader:
    """Implements HistoryReader."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        ended = [record_codec.decode_ended_attempt(row["body"]) for row in await self._of_job(_ATTEMPTS, job_id)]
        return sorted(ended, key=lambda e: (e.attempt.created_at, e.attempt.attempt_no, e.step_id))

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        step_id, attempt_no = after.place if after else ("", 0)
        found = await self._of_job(_STORED_ATTEMPTS, job_id, step_id, attempt_no, limit)
        return [
            StoredAttempt((row["step_id"], row["attempt_no"]), record_codec.ended_or_none(row["body"])) for row in found
        ]

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        return [record_codec.decode_quarantined(row["body"]) for row in await self._of_job(_QUARANTINED, job_id)]

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        """Return events after `after`. The first row may hold none of them, each other row holds at least one."""
        first = min(max(after, 0) + 1, _LAST)
        found = await self._of_job(_EVENTS, job_id, first, limit + 1)
        events = (event for row in found for event in record_codec.events_of(job_id, row["body"]))
        return [event for event in events if event.seq > after][:limit]

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        place = after.place if after is not None else None
        found = await self._of_job(_EVENTS, job_id, place if isinstance(place, int) else -_LAST, limit + 2)
        ends = [row["seq"] for row in found[1:]]
        ends += [_LAST] if len(found) < limit + 2 else []  # the extra row only shows where the one before ends
        events = (event for row, end in zip(found, ends, strict=False) for event in _expanded(job_id, row, end))
        return [event for event in events if not isinstance(place, int) or _number(event) > place][:limit]

    async def _of_job(self, sql: str, job_id: str, *values: Any) -> list[Any]:
        return await self._database.fetch_rows(sql, job_id, *values) if is_valid_text(job_id) else []


def _expanded(job_id: str, row: Any, end: int) -> list[StoredEvent]:
    """Return the events of a row with their places; one place without event if it is empty or overlaps the next."""
    first, events = row["seq"], record_codec.events_or_none(job_id, row["body"])
    if not events or first + len(events) > end:
        return [StoredEvent(first, None)]
    return [StoredEvent(first + n, event) for n, event in enumerate(events)]


def _number(event: StoredEvent) -> int:
    assert isinstance(event.place, int)
    return event.place
