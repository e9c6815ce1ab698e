"""Versions of protocols, beside the jobs that use them.

Several processes may change them. Each change first increments the revision it was decided on, which locks its row:
until the transaction ends no other change can proceed, and the second one is refused.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres.database import Connection, Database
from lucius.adapters.ledger.postgres.replica import Replica
from lucius.adapters.ledger.postgres.text_encoding import is_valid_text
from lucius.adapters.ledger.sql_files import load_statements
from lucius.ports.errors import LedgerCorrupt, VersionConflict, VersionPublished
from lucius.ports.protocols import ProtocolVersion, Versions, forbidden

_SQL = load_statements(__package__, "versions")
_REVISION = _SQL["revision"]
_MOVE = _SQL["move"]
_ALL = _SQL["all"]
_ONE = _SQL["one"]
_PUT = _SQL["put"]
_DELETE = _SQL["delete"]


class PostgresVersions:
    """Implements ProtocolStore."""

    def __init__(self, database: Database, replica: Replica) -> None:
        self._database = database
        self._replica = replica

    async def protocol_revision(self) -> int:
        return self._replica.revision

    async def protocol_versions(self) -> Versions:
        found = await self._database.fetch_rows(_ALL)
        kept = tuple(self._decoded_version(row["body"]) for row in found if row["body"] is not None)
        return Versions(found[0]["revision"], kept)

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        async with self._changing(expected) as connection:
            for version in versions:
                if reason := forbidden(await self._kept(connection, *version.key), version):
                    raise VersionPublished(reason)
                values = (*version.key, str(version.status), version.digest, record_codec.body(version))
                await connection.execute(_PUT, *values)
        self._replica.publish_revision(expected + 1)
        return expected + 1

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        async with self._changing(expected) as connection:
            if is_valid_text(request_type):
                if reason := forbidden(await self._kept(connection, request_type, version), None):
                    raise VersionPublished(reason)
                await connection.execute(_DELETE, request_type, version)
        self._replica.publish_revision(expected + 1)
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
            return record_codec.decode_protocol_version(body)
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(
                f"ledger {self._database.address} has a protocol version that can't be read ({error}); restore a backup"
            ) from error
