"""Whether any replica's engine was at work all along."""

from collections.abc import Callable

from lucius.adapters.postgres.company import Company
from lucius.adapters.postgres.database import Database
from lucius.core.model import Instant, Millis

SLOWEST_TICK_MS: Millis = 20_000  # more than the pause between two ticks of many replicas
LONGEST_AWAY_MS: Millis = 600_000
_TICK = "SELECT tick_1($1, $2) AS resumed_at, EXISTS (SELECT FROM live WHERE look_at <= $1) AS is_due"


class PostgresPresence:
    """Implements Presence, in a row that all replicas share: that one of them was away is no absence."""

    def __init__(self, database: Database, company: Company, nothing_due: Callable[[Instant], None]) -> None:
        """`nothing_due` hears of the time until which the next look for what is due would be in vain."""
        self._database = database
        self._company = company
        self._nothing_due = nothing_due

    def stretch(self) -> float:
        return self._company.sweepers_stretch()

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        self._company.sweeps = True
        row = await self._database.row(_TICK, now, gap_ms)
        assert row is not None
        if not row["is_due"]:
            self._nothing_due(now)
        return int(row["resumed_at"])

    async def at_work(self, now: Instant, gap_ms: Millis) -> Instant:
        """If all are away now, that counts; but not for ever, as a deployment may have none left."""
        row = await self._database.row("SELECT last_tick, resumed_at FROM engine")
        assert row is not None
        silent_ms = now - int(row["last_tick"])
        return now if max(gap_ms, SLOWEST_TICK_MS) < silent_ms < LONGEST_AWAY_MS else int(row["resumed_at"])

    async def last_tick(self) -> Instant | None:
        row = await self._database.row("SELECT last_tick FROM engine WHERE last_tick > 0")
        return int(row["last_tick"]) if row is not None else None
