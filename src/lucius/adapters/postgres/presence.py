"""Whether any replica's engine was at work all along, and whether services could speak to any."""

from collections.abc import Callable

from lucius.adapters.postgres.company import Company
from lucius.adapters.postgres.database import Database
from lucius.adapters.postgres.functions import DOOR_GAP_MS
from lucius.core.model import Instant, Millis
from lucius.ports.peers import Door

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
    """Implements Presence, in rows that all replicas share: that one of them was away is no absence."""

    def __init__(self, database: Database, company: Company, nothing_due: Callable[[Instant], None]) -> None:
        """`nothing_due` hears of the time until which the next look for what is due would be in vain."""
        self._database = database
        self._company = company
        self._nothing_due = nothing_due
        self._open_at = self._reopened_at = self._resumed_at = 0

    def stretch(self) -> float:
        return self._company.sweepers_stretch()

    async def serve(self, serves: Callable[[], bool]) -> None:
        self._company.serves = serves
        await self._database.row(_SAY_SO)

    async def ticked(self, now: Instant, gap_ms: Millis) -> Instant:
        self._company.sweeps = True
        row = await self._database.row(_TICK, now, gap_ms)
        assert row is not None
        if not row["is_due"]:
            self._nothing_due(now)
        self._open_at, self._reopened_at, self._resumed_at = row["open_at"], row["reopened_at"], row["resumed_at"]
        return int(row["resumed_at"])

    def door(self, now: Instant) -> Door:
        if self._company.serves():
            return Door(self._reopened_at)  # whatever the row says that we have not written yet
        return _door(self._open_at, self._reopened_at, self._resumed_at, now)

    async def at_work(self, now: Instant, gap_ms: Millis) -> Instant:
        """If all are away now, that counts; but not for ever, as a deployment may have none left."""
        row = await self._database.row(_AT_WORK)
        assert row is not None
        silent_ms = now - int(row["last_tick"])
        if max(gap_ms, SLOWEST_TICK_MS) < silent_ms < LONGEST_AWAY_MS:
            return now
        door = _door(row["open_at"], row["reopened_at"], row["resumed_at"], now)
        return max(int(row["resumed_at"]), min(now, door.since))

    async def last_tick(self) -> Instant | None:
        row = await self._database.row("SELECT last_tick FROM engine WHERE last_tick > 0")
        return int(row["last_tick"]) if row is not None else None


def _door(open_at: Instant, reopened_at: Instant, resumed_at: Instant, now: Instant) -> Door:
    """Silence counts only while an engine listened: if all were away, or the database, that is another matter.

    While nobody is there, `since` is as far from now as that has lasted: an attempt is then given time ever more
    seldom, and no more of it than the absence was long. Not for ever: those who are there may not know how to say so.
    """
    silent_ms = now - max(open_at, resumed_at)
    if silent_ms > DOOR_GAP_MS and now - open_at < LONGEST_CLOSED_MS:
        return Door(now + silent_ms, is_closed=True)
    return Door(reopened_at)
