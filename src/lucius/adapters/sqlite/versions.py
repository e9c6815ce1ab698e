"""The versions of protocols, beside the jobs that run under them.

Nothing here yields to the event loop between a look and a write, and the file has one writer, so what was looked at
still holds when it is written.
"""

from collections.abc import Sequence

import msgspec

from lucius.adapters import rows
from lucius.adapters.sqlite.store import Store
from lucius.ports.errors import LedgerCorrupt, VersionConflict, VersionPublished
from lucius.ports.protocols import ProtocolVersion, Versions, forbidden

_REVISION = "SELECT revision FROM protocol_revision"
_MOVE = "UPDATE protocol_revision SET revision = ?"
_ALL = "SELECT body FROM protocol_versions ORDER BY request_type, version"
_ONE = "SELECT body FROM protocol_versions WHERE request_type = ? AND version = ?"
_PUT = """
    INSERT OR REPLACE INTO protocol_versions (request_type, version, status, digest, body) VALUES (?, ?, ?, ?, ?)
"""
_DELETE = "DELETE FROM protocol_versions WHERE request_type = ? AND version = ?"


class SqliteVersions:
    """Implements ProtocolStore."""

    _store: Store

    async def protocol_revision(self) -> int:
        return self._protocol_revision()

    async def protocol_versions(self) -> Versions:
        found = self._store.rows(_ALL)
        return Versions(self._protocol_revision(), tuple(self._decoded_version(body) for (body,) in found))

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        self._guard_protocols(expected)
        for version in versions:
            if reason := forbidden(self._protocol_version(*version.key), version):
                raise VersionPublished(reason)
        put = [(*version.key, str(version.status), version.digest, rows.body(version)) for version in versions]
        self._store.write([(_PUT, put), (_MOVE, [(expected + 1,)])])
        return expected + 1

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        self._guard_protocols(expected)
        if reason := forbidden(self._protocol_version(request_type, version), None):
            raise VersionPublished(reason)
        self._store.write([(_DELETE, [(request_type, version)]), (_MOVE, [(expected + 1,)])])
        return expected + 1

    def _protocol_revision(self) -> int:
        return int(self._store.rows(_REVISION)[0][0])

    def _guard_protocols(self, expected: int) -> None:
        revision = self._protocol_revision()
        if revision != expected:
            raise VersionConflict(f"the protocols are at revision {revision}, not {expected}")

    def _protocol_version(self, request_type: str, version: int) -> ProtocolVersion | None:
        row = self._store.row(_ONE, (request_type, version))
        return self._decoded_version(row[0]) if row else None

    def _decoded_version(self, body: str) -> ProtocolVersion:
        try:
            return rows.protocol_version(body)
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(
                f"ledger {self._store.path} has a protocol version that cannot be read ({error}); restore a backup"
            ) from error
