"""Whether any replica's engine was at work all along."""

from lucius.adapters.postgres.company import Company
from lucius.adapters.postgres.database import Database
from lucius.core.model import Instant, Millis


class PostgresPresence:
    """Implements Presence, in a row that all replicas share: that one of them was away is no absence."""

    def __init__(self, database: Database, company: Company) -> None:
        self._database = database
        self._company = company

    def stretch(self) -> float:
        return self._company.sweepers_stretch()

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        self._company.sweeps = True
        row = await self._database.row("SELECT tick_1($1, $2) AS resumed_at", now, gap_ms)
        return int(row["resumed_at"]) if row is not None else now

    async def last_tick(self) -> Instant | None:
        row = await self._database.row("SELECT last_tick FROM engine WHERE last_tick > 0")
        return int(row["last_tick"]) if row is not None else None
