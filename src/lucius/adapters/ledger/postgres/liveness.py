"""Liveness of engines and callback APIs across all replicas."""

from collections.abc import Callable

from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.functions import CALLBACK_GAP_MS
from lucius.adapters.ledger.postgres.peer_registry import PeerRegistry
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.records import Instant, Millis
from lucius.ports.peers import CallbackAvailability

MAX_TICK_INTERVAL_MS: Millis = 20_000  # longer than the sweep interval of many replicas
MAX_ENGINE_ABSENCE_MS: Millis = 600_000
MAX_CALLBACK_ABSENCE_MS: Millis = 3_600_000
_SQL = load_statements(__package__, "liveness")
_TICK = _SQL["tick"]
_MARK_AVAILABLE = _SQL["mark_available"]
_SELECT = _SQL["select"]


class PostgresLiveness:
    """Implements EngineLiveness with rows shared by all replicas, so the absence of a single replica does not count."""

    def __init__(self, database: Database, peers: PeerRegistry, skip_next_due_query: Callable[[Instant], None]) -> None:
        """`skip_next_due_query` is called with the instant up to which no job is due."""
        self._database = database
        self._peers = peers
        self._skip_next_due_query = skip_next_due_query
        self._available_at = self._available_since = self._resumed_at = 0

    def poll_backoff(self) -> float:
        return self._peers.sweep_backoff()

    async def advertise(self, serves: Callable[[], bool]) -> None:
        self._peers.accepts_callbacks = serves
        await self._database.fetch_row(_MARK_AVAILABLE)

    async def record_tick(self, now: Instant, gap_ms: Millis) -> Instant:
        self._peers.is_sweeper = True
        row = await self._database.fetch_row(_TICK, now, gap_ms)
        assert row is not None
        if not row["is_due"]:
            self._skip_next_due_query(now)
        self._available_at, self._available_since = row["available_at"], row["available_since"]
        self._resumed_at = row["resumed_at"]
        return int(row["resumed_at"])

    def callback_availability(self, now: Instant) -> CallbackAvailability:
        if self._peers.accepts_callbacks():
            return CallbackAvailability(self._available_since)  # even if the row has not been updated yet
        return _availability(self._available_at, self._available_since, self._resumed_at, now)

    async def working_since(self, now: Instant, gap_ms: Millis) -> Instant:
        """Return since when an engine and a callback API have been available without a gap.

        Return `now` while all engines are away, for at most MAX_ENGINE_ABSENCE_MS: a deployment may have none left.
        """
        row = await self._database.fetch_row(_SELECT)
        assert row is not None
        silent_ms = now - int(row["last_tick"])
        if max(gap_ms, MAX_TICK_INTERVAL_MS) < silent_ms < MAX_ENGINE_ABSENCE_MS:
            return now
        availability = _availability(row["available_at"], row["available_since"], row["resumed_at"], now)
        return max(int(row["resumed_at"]), min(now, availability.since))

    async def last_tick(self) -> Instant | None:
        row = await self._database.fetch_row(_SQL["last_tick"])
        return int(row["last_tick"]) if row is not None else None


def _availability(
    available_at: Instant, available_since: Instant, resumed_at: Instant, now: Instant
) -> CallbackAvailability:
    """Compute whether services can reach a callback API.

    Silence counts only while an engine was running: an absence of all engines, or of the database, is handled apart.
    During an absence `since` lies as far in the future as the absence has lasted, so an attempt's deadline is extended
    ever less often, and by no more than the absence was long. After MAX_CALLBACK_ABSENCE_MS it no longer counts: there
    may be APIs of an older version, which do not report themselves.
    """
    silent_ms = now - max(available_at, resumed_at)
    if silent_ms > CALLBACK_GAP_MS and now - available_at < MAX_CALLBACK_ABSENCE_MS:
        return CallbackAvailability(now + silent_ms, is_unavailable=True)
    return CallbackAvailability(available_since)
