"""Index of protocol versions by all their names, built again after each change so that queries are look-ups."""

from collections.abc import Iterable

from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.protocols import ProtocolVersion, Successor, VersionStatus

Clash = tuple[tuple[str | int, ...], str]


class Index:
    """All versions ever published. Only PUBLISHED ones serve new commands; DEPRECATED ones keep their names."""

    def __init__(self, versions: Iterable[ProtocolVersion] = ()) -> None:
        self._versions: dict[str, dict[int, ProtocolVersion]] = {}
        self._newest: dict[str, ProtocolDefinition] = {}
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        for version in versions:
            self.add(version)

    def add(self, version: ProtocolVersion) -> None:
        """Add a version; drafts are skipped, because they have no names yet."""
        if version.status is VersionStatus.DRAFT:
            return
        protocol, kind = version.protocol, version.protocol.request_type
        self._versions.setdefault(kind, {})[protocol.version] = version
        self._names.update(dict.fromkeys((kind, *protocol.aliases), kind))
        self._ids[protocol.protocol_id] = kind
        if version.status is VersionStatus.PUBLISHED:
            newest = self._newest.get(kind, protocol)
            self._newest[kind] = protocol if protocol.version >= newest.version else newest

    def resolve(self, name: str, version: int | None = None) -> ProtocolDefinition | None:
        """Return the protocol that serves a new command: that version, or the newest; or None."""
        kind = self._names.get(name)
        if kind is None:
            return None
        if version is None:
            return self._newest.get(kind)
        found = self._versions[kind].get(version)
        return found.protocol if found and found.status is VersionStatus.PUBLISHED else None

    def retired(self, name: str, version: int | None = None) -> ProtocolVersion | None:
        """Return the deprecated version that would have served: that version, or the newest of all; or None."""
        versions = self._versions.get(self._names.get(name, ""), {})
        found = versions.get(max(versions, default=0) if version is None else version)
        return found if found and found.status is VersionStatus.DEPRECATED else None

    def successor(self, version: ProtocolVersion) -> ProtocolDefinition | None:
        """Return the protocol to use instead of a deprecated version, following deprecated successors to theirs."""
        passed: set[tuple[str, int]] = set()
        at: ProtocolVersion | None = version
        while at is not None and at.key not in passed:
            passed.add(at.key)
            to = at.successor or Successor(at.protocol.request_type)
            found = self.resolve(to.request_type, to.version)
            if found is not None:
                return found
            at = self.retired(to.request_type, to.version)
        return self._newest.get(version.protocol.request_type)

    def request_type(self, name: str) -> str | None:
        """Return the request type that a name stands for: itself, or the one it is an alias of; or None."""
        return self._names.get(name)

    def list(self) -> tuple[ProtocolDefinition, ...]:
        """Return every version that serves, by request type, oldest version first."""
        found = (version for _, versions in sorted(self._versions.items()) for _, version in sorted(versions.items()))
        return tuple(version.protocol for version in found if version.status is VersionStatus.PUBLISHED)

    def clash(self, protocol: ProtocolDefinition) -> Clash | None:
        """Return where and why a protocol's names conflict with those in the index; None if they don't."""
        kind = protocol.request_type
        places: list[tuple[tuple[str | int, ...], str]] = [(("request_type",), kind)]
        places += [(("aliases", i), alias) for i, alias in enumerate(protocol.aliases)]
        for path, name in places:
            if self._names.get(name, kind) != kind:
                return path, f"the name {name} already stands for {self._names[name]}"
        if self._ids.get(protocol.protocol_id, kind) != kind:
            owner = self._ids[protocol.protocol_id]
            return ("protocol_id",), f"the protocol_id {protocol.protocol_id} already belongs to {owner}"
        for other in self._versions.get(kind, {}).values():
            if other.protocol.protocol_id != protocol.protocol_id:
                return ("protocol_id",), f"{kind} already has the protocol_id {other.protocol.protocol_id}"
        return None
