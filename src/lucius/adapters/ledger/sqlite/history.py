"""Reads of events and attempts. Each statement walks an index in the order of its answer and stops at its limit."""

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Event, Quarantined
from lucius.ports.readers import StoredAttempt, StoredEvent

_SQL = load_statements(__package__, "history")
EVENTS = _SQL["events"]
ATTEMPTS = _SQL["attempts"]
QUARANTINED = _SQL["quarantined"]


class SqliteHistoryReader:
    """Implements HistoryReader."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        ended = [record_codec.decode_ended_attempt(body) for (body,) in self._file.fetch_rows(ATTEMPTS, (job_id,))]
        return sorted(ended, key=lambda e: (e.attempt.created_at, e.attempt.attempt_no, e.step_id))

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        return [
            record_codec.decode_quarantined(body) for _, body in sorted(self._file.fetch_rows(QUARANTINED, (job_id,)))
        ]

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        return [record_codec.event(body) for (body,) in self._file.fetch_rows(EVENTS, (job_id, after, limit))]

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        sql = _SQL["stored_events_after" if after else "stored_events"]
        found = self._file.fetch_rows(sql, (job_id, *([after.place] if after else []), limit))
        return [StoredEvent(place, record_codec.event_or_none(body)) for place, body in found]

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        sql = _SQL["stored_attempts_after" if after else "stored_attempts"]
        found = self._file.fetch_rows(sql, (job_id, *(after.place if after else ()), limit))
        return [StoredAttempt((step_id, no), record_codec.ended_or_none(body)) for step_id, no, body in found]
