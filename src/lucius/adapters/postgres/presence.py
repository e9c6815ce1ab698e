"""Whether any replica's engine was at work all along."""

from collections.abc import Callable

from lucius.adapters.postgres.company import Company
from lucius.adapters.postgres.database import Database
from lucius.core.model import Instant, Millis

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

    async def last_tick(self) -> Instant | None:
        row = await self._database.row("SELECT last_tick FROM engine WHERE last_tick > 0")
        return int(row["last_tick"]) if row is not None else None
