"""Sightings of services in the ledger's file."""

import json
from collections.abc import Collection, Sequence

from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.core.model.records import Instant
from lucius.ports.sightings import INSTANCE_TTL_MS, MAX_COUNTED_JOBS, MAX_INSTANCES, MAX_SIGHTINGS, Sighting

_SQL = load_statements(__package__, "sightings", max_instances=MAX_INSTANCES, max_sightings=MAX_SIGHTINGS)
_PUT = _SQL["put"]
_FORGET = _SQL["forget"]
_FORGET_SERVICES = _SQL["forget_services"]
_CAP = _SQL["cap"]
_ALL = _SQL["all"]
_OF_SERVICE = _SQL["of_service"]
_WORKING = _SQL["working"]


class SqliteSightings:
    """Implements ServiceSightings."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def record_sightings(self, seen: Sequence[Sighting]) -> None:
        put = [(one.service, one.instance, one.agent, one.last_seen_at, one.last_pull_at) for one in seen]
        newest = {one.service: one.last_seen_at for one in sorted(seen, key=lambda one: one.last_seen_at)}
        forget = [(service, at - INSTANCE_TTL_MS) for service, at in newest.items()]
        self._file.write([(_PUT, put), (_FORGET, forget), (_CAP, [(service,) for service in newest])])

    async def forget_services(self, before: Instant, except_services: Collection[str]) -> None:
        self._file.write([(_FORGET_SERVICES, [(before, json.dumps(list(except_services)))])])

    async def sightings(self, service: str | None = None) -> list[Sighting]:
        sql, values = (_ALL, ()) if service is None else (_OF_SERVICE, (service,))
        sightings = [
            Sighting(service=name, instance=instance, agent=agent, last_seen_at=seen_at, last_pull_at=pulled_at)
            for name, instance, agent, seen_at, pulled_at in self._file.fetch_rows(sql, values)
        ]
        return sorted(sightings, key=lambda one: -one.last_seen_at)

    async def working_steps(self) -> dict[str, int]:
        return dict(self._file.fetch_rows(_WORKING, (MAX_COUNTED_JOBS,)))
