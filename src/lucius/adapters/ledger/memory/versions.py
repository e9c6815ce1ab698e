"""The versions of protocols, kept in a dictionary."""

from collections.abc import Callable, Sequence

from lucius.ports.errors import LedgerError, VersionConflict, VersionPublished
from lucius.ports.protocols import ProtocolVersion, Versions, forbidden


class MemoryVersions:
    """Implements ProtocolStore."""

    def __init__(self, is_closed: Callable[[], bool] = lambda: False) -> None:
        self._is_closed = is_closed
        self._protocol_revision = 0
        self._protocol_versions: dict[tuple[str, int], ProtocolVersion] = {}

    async def protocol_revision(self) -> int:
        return self._protocol_revision

    async def protocol_versions(self) -> Versions:
        return Versions(
            self._protocol_revision, tuple(version for _, version in sorted(self._protocol_versions.items()))
        )

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        self._guard_protocols(expected)
        for version in versions:
            if reason := forbidden(self._protocol_versions.get(version.key), version):
                raise VersionPublished(reason)
        self._protocol_versions.update((version.key, version) for version in versions)
        self._protocol_revision += 1
        return self._protocol_revision

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        self._guard_protocols(expected)
        if reason := forbidden(self._protocol_versions.get((request_type, version)), None):
            raise VersionPublished(reason)
        self._protocol_versions.pop((request_type, version), None)
        self._protocol_revision += 1
        return self._protocol_revision

    def _guard_protocols(self, expected: int) -> None:
        if self._is_closed():
            raise LedgerError("the ledger is closed")
        if self._protocol_revision != expected:
            raise VersionConflict(f"the protocols are at revision {self._protocol_revision}, not {expected}")
