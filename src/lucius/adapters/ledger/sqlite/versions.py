"""Versions of protocols, beside the jobs that use them.

Nothing here yields to the event loop between a read and a write, and the file has one writer, so what was read still
holds when it is written.
"""

from collections.abc import Sequence

import msgspec

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.ports.errors import LedgerCorrupt, VersionConflict, VersionPublished
from lucius.ports.protocols import ProtocolVersion, Versions, forbidden

_SQL = load_statements(__package__, "versions")
_REVISION = _SQL["revision"]
_MOVE = _SQL["move"]
_ALL = _SQL["all"]
_ONE = _SQL["one"]
_PUT = _SQL["put"]
_DELETE = _SQL["delete"]


class SqliteVersions:
    """Implements ProtocolStore."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    async def protocol_revision(self) -> int:
        return self._protocol_revision()

    async def protocol_versions(self) -> Versions:
        found = self._file.fetch_rows(_ALL)
        return Versions(self._protocol_revision(), tuple(self._decoded_version(body) for (body,) in found))

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        self._guard_protocols(expected)
        for version in versions:
            if reason := forbidden(self._protocol_version(*version.key), version):
                raise VersionPublished(reason)
        put = [(*version.key, str(version.status), version.digest, record_codec.body(version)) for version in versions]
        self._file.write([(_PUT, put), (_MOVE, [(expected + 1,)])])
        return expected + 1

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        self._guard_protocols(expected)
        if reason := forbidden(self._protocol_version(request_type, version), None):
            raise VersionPublished(reason)
        self._file.write([(_DELETE, [(request_type, version)]), (_MOVE, [(expected + 1,)])])
        return expected + 1

    def _protocol_revision(self) -> int:
        return int(self._file.fetch_rows(_REVISION)[0][0])

    def _guard_protocols(self, expected: int) -> None:
        revision = self._protocol_revision()
        if revision != expected:
            raise VersionConflict(f"the protocols are at revision {revision}, not {expected}")

    def _protocol_version(self, request_type: str, version: int) -> ProtocolVersion | None:
        row = self._file.fetch_row(_ONE, (request_type, version))
        return self._decoded_version(row[0]) if row else None

    def _decoded_version(self, body: str) -> ProtocolVersion:
        try:
            return record_codec.decode_protocol_version(body)
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(
                f"ledger {self._file.path} has a protocol version that cannot be read ({error}); restore a backup"
            ) from error
