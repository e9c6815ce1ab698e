"""Sightings of services, shared by all replicas. Written every few seconds, never with a commit."""

from collections.abc import Collection, Sequence

from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.records import Instant
from lucius.ports.sightings import INSTANCE_TTL_MS, MAX_COUNTED_JOBS, MAX_INSTANCES, MAX_SIGHTINGS, Sighting

_SQL = load_statements(__package__, "sightings", max_instances=MAX_INSTANCES, max_sightings=MAX_SIGHTINGS)
_PUT = _SQL["put"]
_FORGET = _SQL["forget"]
_FORGET_SERVICES = _SQL["forget_services"]
_CAP = _SQL["cap"]
_ALL = _SQL["all"]
_WORKING = _SQL["working"]


class PostgresSightings:
    """Implements ServiceSightings."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_sightings(self, seen: Sequence[Sighting]) -> None:
        columns = (
            [one.service for one in seen],
            [one.instance for one in seen],
            [one.agent for one in seen],
            [one.last_seen_at for one in seen],
            [one.last_pull_at for one in seen],
        )
        newest = max((one.last_seen_at for one in seen), default=0)
        async with self._database.transaction() as connection:
            await connection.execute("SET LOCAL synchronous_commit = off")
            await connection.execute(_PUT, *columns)
            await connection.execute(_FORGET, columns[0], newest - INSTANCE_TTL_MS)
            await connection.execute(_CAP, columns[0])

    async def forget_services(self, before: Instant, except_services: Collection[str]) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(_FORGET_SERVICES, before, list(except_services))

    async def sightings(self, service: str | None = None) -> list[Sighting]:
        found = [Sighting(**dict(row)) for row in await self._database.fetch_rows(_ALL, service)]
        return sorted(found, key=lambda seen: -seen.last_seen_at)

    async def working_steps(self) -> dict[str, int]:
        return {row["service"]: row["working"] for row in await self._database.fetch_rows(_WORKING, MAX_COUNTED_JOBS)}
