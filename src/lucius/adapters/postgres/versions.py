"""The versions of protocols, beside the jobs that run under them.

Several processes may change them. Each change first moves the revision on from the one it was decided on, which locks
its row: until the transaction ends nobody else changes anything, and whoever comes second is refused.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from lucius.adapters import rows
from lucius.adapters.postgres.database import Connection, Database
from lucius.adapters.postgres.texts import findable
from lucius.ports.errors import LedgerCorrupt, VersionConflict, VersionPublished
from lucius.ports.protocols import ProtocolVersion, Versions, forbidden

_REVISION = "SELECT revision FROM protocol_revision"
_MOVE = "UPDATE protocol_revision SET revision = revision + 1 WHERE revision = $1 RETURNING revision"
# In one statement, so that the revision is that of these versions.
_ALL = """
    SELECT revision, body FROM protocol_revision LEFT JOIN protocol_versions ON true ORDER BY request_type, version
"""
_ONE = "SELECT body FROM protocol_versions WHERE request_type = $1 AND version = $2"
_PUT = """
    INSERT INTO protocol_versions (request_type, version, status, digest, body) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (request_type, version) DO UPDATE
    SET status = excluded.status, digest = excluded.digest, body = excluded.body
"""
_DELETE = "DELETE FROM protocol_versions WHERE request_type = $1 AND version = $2"


class PostgresVersions:
    """Implements ProtocolStore."""

    _database: Database

    async def protocol_revision(self) -> int:
        row = await self._database.row(_REVISION)
        return int(row["revision"]) if row else 0

    async def protocol_versions(self) -> Versions:
        found = await self._database.rows(_ALL)
        kept = tuple(self._decoded_version(row["body"]) for row in found if row["body"] is not None)
        return Versions(found[0]["revision"], kept)

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        async with self._changing(expected) as connection:
            for version in versions:
                if reason := forbidden(await self._kept(connection, *version.key), version):
                    raise VersionPublished(reason)
                values = (*version.key, str(version.status), version.digest, rows.body(version))
                await connection.execute(_PUT, *values)
        return expected + 1

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        async with self._changing(expected) as connection:
            if findable(request_type):
                if reason := forbidden(await self._kept(connection, request_type, version), None):
                    raise VersionPublished(reason)
                await connection.execute(_DELETE, request_type, version)
        return expected + 1

    @asynccontextmanager
    async def _changing(self, expected: int) -> AsyncIterator[Connection]:
        async with self._database.transaction() as connection:
            if await connection.fetchval(_MOVE, expected) is None:
                revision = await connection.fetchval(_REVISION)
                raise VersionConflict(f"the protocols are at revision {revision}, not {expected}")
            yield connection

    async def _kept(self, connection: Connection, request_type: str, version: int) -> ProtocolVersion | None:
        body = await connection.fetchval(_ONE, request_type, version)
        return self._decoded_version(body) if body is not None else None

    def _decoded_version(self, body: str) -> ProtocolVersion:
        try:
            return rows.protocol_version(body)
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(
                f"ledger {self._database.where} has a protocol version that cannot be read ({error}); restore a backup"
            ) from error
