"""Whether any replica's engine was at work all along."""

from collections.abc import Callable

from lucius.adapters.postgres.company import Company
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.functions import DOOR_GAP_MS
from lucius.core.model import Instant, Millis

SLOWEST_TICK_MS: Millis = 20_000  # more than the pause between two ticks of many replicas
LONGEST_AWAY_MS: Millis = 600_000
LONGEST_CLOSED_MS: Millis = 3_600_000
_TICK = """
    SELECT tick_1($1, $2) AS resumed_at, EXISTS (SELECT FROM live WHERE look_at <= $1) AS is_due, open_at, reopened_at
    FROM door
"""
_SAY_SO = "SELECT now FROM poll_2(true)"
_AT_WORK = "SELECT last_tick, resumed_at, open_at, reopened_at FROM engine, door"


class PostgresPresence:
    """Implements Presence, in a row that all replicas share: that one of them was away is no absence."""

    def __init__(self, database: Database, company: Company, nothing_due: Callable[[Instant], None]) -> None:
        """`nothing_due` hears of the time until which the next look for what is due would be in vain."""
        self._database = database
        self._company = company
        self._nothing_due = nothing_due
        self._open_at = self._reopened_at = 0

    async def serve(self) -> None:
        self._company.serves = True
        await self._database.row(_SAY_SO)

    def stretch(self) -> float:
        return self._company.sweepers_stretch()

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        self._company.sweeps = True
        row = await self._database.row(_TICK, now, gap_ms)
        assert row is not None
        if not row["is_due"]:
            self._nothing_due(now)
        self._open_at, self._reopened_at = row["open_at"], row["reopened_at"]
        return int(row["resumed_at"])

    def served_since(self, now: Instant) -> Instant:
        return _served_since(self._open_at, self._reopened_at, now)

    async def at_work(self, now: Instant, gap_ms: Millis) -> Instant:
        """If all are away now, that counts; but not for ever, as a deployment may have none left."""
        row = await self._database.row(_AT_WORK)
        assert row is not None
        silent_ms = now - int(row["last_tick"])
        away = max(gap_ms, SLOWEST_TICK_MS) < silent_ms < LONGEST_AWAY_MS
        served_since = _served_since(row["open_at"], row["reopened_at"], now)
        return max(now if away else int(row["resumed_at"]), min(now, served_since))

    async def last_tick(self) -> Instant | None:
        row = await self._database.row("SELECT last_tick FROM engine WHERE last_tick > 0")
        return int(row["last_tick"]) if row is not None else None


def _served_since(open_at: Instant, reopened_at: Instant, now: Instant) -> Instant:
    """While nobody is there, as far from now as that has lasted: an attempt is then given time ever more seldom, and no
    more of it than the absence was long. Not for ever: those who are there may not know how to say so."""
    closed_ms = now - open_at
    return now + closed_ms if DOOR_GAP_MS < closed_ms < LONGEST_CLOSED_MS else reopened_at
