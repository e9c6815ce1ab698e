"""Reads of events and attempts from dictionaries."""

from itertools import islice

from lucius.adapters.ledger.memory.tables import MemoryTables
from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Event, Quarantined
from lucius.ports.readers import StoredAttempt, StoredEvent


class MemoryHistoryReader:
    """Implements HistoryReader."""

    def __init__(self, tables: MemoryTables) -> None:
        self._tables = tables

    async def attempts(self, job_id: str) -> list[EndedAttempt]:
        record = self._tables.records.get(job_id)
        ended = record.attempts.values() if record else ()
        return sorted(ended, key=lambda e: (e.attempt.created_at, e.attempt.attempt_no, e.step_id))

    async def quarantined(self, job_id: str) -> list[Quarantined]:
        record = self._tables.records.get(job_id)
        return list(record.quarantined.values()) if record else []

    async def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        record = self._tables.records.get(job_id)
        return list(islice((e for e in record.events if e.seq > after), limit)) if record else []

    async def stored_events(self, job_id: str, after: StoredEvent | None, limit: int) -> list[StoredEvent]:
        record = self._tables.records.get(job_id)
        start = int(after.place) if after else 0
        return [StoredEvent(e.seq, e) for e in islice(record.events, start, start + limit)] if record else []

    async def stored_attempts(self, job_id: str, after: StoredAttempt | None, limit: int) -> list[StoredAttempt]:
        record = self._tables.records.get(job_id)
        ended = record.attempts.values() if record else ()
        rows = sorted((StoredAttempt((e.step_id, e.attempt.attempt_no), e) for e in ended), key=lambda row: row.place)
        return [row for row in rows if after is None or row.place > after.place][:limit]
