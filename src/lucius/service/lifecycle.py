"""The life of a protocol version: draft → published → deprecated. Pure: each act gives the next value or is refused."""

from msgspec.structs import replace

from lucius.contract import Fault
from lucius.contract_protocols import SuccessorRequest
from lucius.core.protocol import Protocol, digest
from lucius.ports.protocols import Mark, ProtocolVersion, Successor, VersionStatus
from lucius.service.errors import RejectCode, Rejected
from lucius.service.protocol_index import Index
from lucius.service.timestamps import timestamp


def drafted(before: ProtocolVersion | None, protocol: Protocol, mark: Mark) -> ProtocolVersion:
    """A new draft, or other content for the one that is there."""
    if before is None:
        return ProtocolVersion(protocol=protocol, digest=digest(protocol), status=VersionStatus.DRAFT, created=mark)
    require_draft(before, "changed")
    return replace(before, protocol=protocol, digest=digest(protocol), changed=mark)


def published(draft: ProtocolVersion, mark: Mark, expected_digest: str | None = None) -> ProtocolVersion:
    """Who publishes may say what they have read: a draft that was changed since is not published then."""
    if draft.status is not VersionStatus.DRAFT:
        raise _wrong_state(draft, "published")
    if expected_digest is not None and expected_digest != draft.digest:
        message = f"the draft was changed meanwhile; its digest is {draft.digest}"
        raise Rejected(RejectCode.PROTOCOL_STATE, message, [Fault("/digest", message)])
    return replace(draft, status=VersionStatus.PUBLISHED, published=mark)


def deprecated(
    version: ProtocolVersion, mark: Mark, index: Index, successor: SuccessorRequest | None
) -> ProtocolVersion:
    if version.status is not VersionStatus.PUBLISHED:
        raise _wrong_state(version, "deprecated")
    if not (mark.reason or "").strip():
        message = "say why: it is told to those whose commands are refused"
        raise Rejected(RejectCode.INVALID_ENVELOPE, f"/reason: {message}", [Fault("/reason", message)])
    named = _successor(index, version, successor or SuccessorRequest())
    return replace(version, status=VersionStatus.DEPRECATED, deprecated=mark, successor=named)


def require_draft(version: ProtocolVersion, act: str) -> None:
    if version.status is not VersionStatus.DRAFT:
        message = f"{named(version)} is published and can't be {act}; give the change a higher version"
        raise Rejected(RejectCode.PROTOCOL_IMMUTABLE, message, [Fault("/version", message)])


def named(version: ProtocolVersion) -> str:
    return f"{version.protocol.request_type} version {version.protocol.version}"


def _successor(index: Index, version: ProtocolVersion, asked: SuccessorRequest) -> Successor | None:
    """None stands for the newest of the same request type. Raises Rejected for one that can't serve."""
    kind = index.request_type(asked.request_type or version.protocol.request_type)
    if kind is None:
        message = "no protocol serves this request type"
        raise Rejected(RejectCode.UNKNOWN_REQUEST_TYPE, message, [Fault("/successor/request_type", message)])
    if asked.version is None and kind == version.protocol.request_type:
        return None
    if (kind, asked.version) == version.key or index.resolve(kind, asked.version) is None:
        message = f"{kind} has no other published version" + (f" {asked.version}" if asked.version else "")
        raise Rejected(RejectCode.UNKNOWN_PROTOCOL_VERSION, message, [Fault("/successor/version", message)])
    return Successor(kind, asked.version)


def _wrong_state(version: ProtocolVersion, act: str) -> Rejected:
    mark = version.deprecated or version.published or version.changed or version.created
    since = f"since {timestamp(mark.at)}, by {mark.by}"
    return Rejected(RejectCode.PROTOCOL_STATE, f"{named(version)} is {version.status} {since}: it can't be {act}")
