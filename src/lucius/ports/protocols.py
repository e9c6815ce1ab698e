"""Where protocols come from, and where their versions are kept."""

import typing
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from lucius.core.model import Instant
from lucius.core.protocol import Protocol
from lucius.ports.errors import ProtocolError


class ProtocolSource(typing.Protocol):
    def resolve(self, request_type: str, version: int | None = None) -> Protocol | None:
        """The protocol for a request type or one of its aliases: that version, or the newest."""

    def list(self) -> tuple[Protocol, ...]:
        """Every version of every protocol in force, by request type, oldest version first."""

    def refresh(self) -> bool:
        """Look for changes and take them over; True if there were any. Cheap when nothing changed."""

    def problems(self) -> tuple[ProtocolError, ...]:
        """What was refused and why; the last good version of it, if there was one, is still in force."""

    def place(self, protocol: Protocol) -> tuple[str, int | None]:
        """The file and line that a listed protocol was read from."""


class VersionStatus(StrEnum):
    """DRAFT → PUBLISHED → DEPRECATED, and never back."""

    DRAFT = "DRAFT"
    PUBLISHED = "PUBLISHED"
    DEPRECATED = "DEPRECATED"


class Mark(Struct, frozen=True, omit_defaults=True):
    """Who did it, when and why."""

    by: str
    at: Instant
    reason: str = ""


class Successor(Struct, frozen=True, omit_defaults=True):
    """What to use instead; without a version, the newest that is published by then."""

    request_type: str
    version: int | None = None


class ProtocolVersion(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of a protocol with its life so far. `file` is the one that published it, if one did."""

    protocol: Protocol
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
    """Everything that is kept, as of one revision."""

    revision: int
    versions: tuple[ProtocolVersion, ...]


class ProtocolStore(typing.Protocol):
    """Keeps versions. A change names the revision that it was decided on, so of two that race one is refused."""

    async def protocol_revision(self) -> int:
        """Grows with every change, by whichever process. Cheap to ask."""

    async def protocol_versions(self) -> Versions:
        """All of them, by request type, oldest version first."""

    async def put_protocols(self, versions: Sequence[ProtocolVersion], expected: int) -> int:
        """Keep these, all or none of them; answers the new revision.

        Raises VersionConflict if the revision is no longer `expected`, VersionPublished, or LedgerFull.
        """

    async def delete_protocol(self, request_type: str, version: int, expected: int) -> int:
        """Forget a draft; answers the new revision. Raises as `put_protocols`."""


_AGES = tuple(VersionStatus)


def forbidden(before: ProtocolVersion | None, after: ProtocolVersion | None) -> str | None:
    """Why a version may not become that. Every store asks, so that no mistake of a caller changes what is published."""
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
