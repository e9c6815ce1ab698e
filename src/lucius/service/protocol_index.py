"""Versions of protocols by every name that they go by. Made anew when something changes, so that a look is a lookup."""

from collections.abc import Iterable

from lucius.core.protocol import Protocol
from lucius.ports.protocols import ProtocolVersion, Successor, VersionStatus

Clash = tuple[tuple[str | int, ...], str]


class Index:
    """What was ever published. Only PUBLISHED ones serve new commands; DEPRECATED ones keep their names."""

    def __init__(self, versions: Iterable[ProtocolVersion] = ()) -> None:
        self._versions: dict[str, dict[int, ProtocolVersion]] = {}
        self._newest: dict[str, Protocol] = {}
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        for version in versions:
            self.add(version)

    def add(self, version: ProtocolVersion) -> None:
        """Drafts have no name yet, and are passed over."""
        if version.status is VersionStatus.DRAFT:
            return
        protocol, kind = version.protocol, version.protocol.request_type
        self._versions.setdefault(kind, {})[protocol.version] = version
        self._names.update(dict.fromkeys((kind, *protocol.aliases), kind))
        self._ids[protocol.protocol_id] = kind
        if version.status is VersionStatus.PUBLISHED:
            newest = self._newest.get(kind, protocol)
            self._newest[kind] = protocol if protocol.version >= newest.version else newest

    def resolve(self, name: str, version: int | None = None) -> Protocol | None:
        """What serves a new command: that version, or the newest."""
        kind = self._names.get(name)
        if kind is None:
            return None
        if version is None:
            return self._newest.get(kind)
        found = self._versions[kind].get(version)
        return found.protocol if found and found.status is VersionStatus.PUBLISHED else None

    def retired(self, name: str, version: int | None = None) -> ProtocolVersion | None:
        """The deprecated version that would have served; the newest of them if no version is named."""
        versions = self._versions.get(self._names.get(name, ""), {})
        found = versions.get(max(versions, default=0) if version is None else version)
        return found if found and found.status is VersionStatus.DEPRECATED else None

    def successor(self, version: ProtocolVersion) -> Protocol | None:
        """What to use instead of a deprecated version; one that is deprecated itself passes on to its own."""
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
        """The request type behind a name: itself, or what it is an alias of."""
        return self._names.get(name)

    def list(self) -> tuple[Protocol, ...]:
        """Every version that serves, by request type, oldest version first."""
        found = (version for _, versions in sorted(self._versions.items()) for _, version in sorted(versions.items()))
        return tuple(version.protocol for version in found if version.status is VersionStatus.PUBLISHED)

    def clash(self, protocol: Protocol) -> Clash | None:
        """Where and why a protocol's names can't stand beside those already here."""
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
