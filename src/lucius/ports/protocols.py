"""Protocol sources, and the store of protocol versions."""

import typing
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from lucius.core.model.records import Instant
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import ProtocolError


class ProtocolSource(typing.Protocol):
    def resolve(self, request_type: str, version: int | None = None) -> ProtocolDefinition | None:
        """Return the protocol for a request type or one of its aliases: the given version, or the newest."""

    def list(self) -> tuple[ProtocolDefinition, ...]:
        """Return every version of every protocol in force, by request type, oldest version first."""

    def refresh(self) -> bool:
        """Apply changes of the source; return True if there were any. Cheap when nothing changed."""

    def problems(self) -> tuple[ProtocolError, ...]:
        """Return what was refused and why; the last good version, if there was one, is still in force."""

    def place(self, protocol: ProtocolDefinition) -> tuple[str, int | None]:
        """Return the file and line that a listed protocol was read from."""


class VersionStatus(StrEnum):
    """DRAFT → PUBLISHED → DEPRECATED, and never back."""

    DRAFT = "DRAFT"
    PUBLISHED = "PUBLISHED"
    DEPRECATED = "DEPRECATED"


class Mark(Struct, frozen=True, omit_defaults=True):
    """Actor, time and reason of a change."""

    by: str
    at: Instant
    reason: str = ""


class Successor(Struct, frozen=True, omit_defaults=True):
    """Recommended replacement; without a version, the newest published one."""

    request_type: str
    version: int | None = None


class ProtocolVersion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a protocol with its history. `file` is the file that published it, if one did."""

    protocol: ProtocolDefinition
    digest: str
    status: VersionStatus
    created: Mark
    changed: Mark | None = None
    published: Mark | None = None
    deprecated: Mark | None = None
    successor: Successor | None = None
    file: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.protocol.request_type, self.protocol.version


class Versions(Struct, frozen=True):
    """All stored versions as of one revision."""

    revision: int
    versions: tuple[ProtocolVersion, ...]


class ProtocolStore(typing.Protocol):
    """Store of protocol versions.

    A change names the revision it is based on, so of two concurrent changes one is refused.
    """

    async def protocol_revision(self) -> int:
        """Return the revision, which grows with every change by any process. Cheap to call."""

    async def protocol_versions(self) -> Versions:
        """Return all versions, by request type, oldest version first."""

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        """Store versions, all or none; return the new revision.

        Raises VersionConflict if the revision is no longer `expected`, VersionPublished, or LedgerFull.
        """

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        """Delete a draft; return the new revision. Raises as `put_protocols`."""


_AGES = tuple(VersionStatus)


def forbidden(before: ProtocolVersion | None, after: ProtocolVersion | None) -> str | None:
    """Return why a version may not be replaced by `after`, or None if it may.

    Every store calls this, so that no caller's mistake changes a published version.
    """
    if before is None or before.status is VersionStatus.DRAFT:
        return None
    request_type, version = before.key
    if after is None:
        return f"{request_type} version {version} is published and can't be deleted"
    if after.digest != before.digest or after.protocol != before.protocol:
        return f"{request_type} version {version} is published and its content can't change"
    if _AGES.index(after.status) < _AGES.index(before.status):
        return f"{request_type} version {version} is {before.status} and can't become {after.status}"
    return None
