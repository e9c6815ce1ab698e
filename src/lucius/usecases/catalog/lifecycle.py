"""Life cycle of a protocol version: draft → published → deprecated. Pure: returns the next value or raises Rejected."""

from msgspec.structs import replace

from lucius.contract import Fault
from lucius.contract.protocols import SuccessorRequest
from lucius.core.protocol.definition import ProtocolDefinition, digest
from lucius.ports.protocols import Mark, ProtocolVersion, Successor, VersionStatus
from lucius.usecases.catalog.index import Index
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.timestamps import timestamp


def drafted(before: ProtocolVersion | None, protocol: ProtocolDefinition, mark: Mark) -> ProtocolVersion:
    """Return a new draft, or the existing draft with new content. Raises Rejected if it is published."""
    if before is None:
        return ProtocolVersion(protocol=protocol, digest=digest(protocol), status=VersionStatus.DRAFT, created=mark)
    require_draft(before, "changed")
    return replace(before, protocol=protocol, digest=digest(protocol), changed=mark)


def published(draft: ProtocolVersion, mark: Mark, expected_digest: str | None = None) -> ProtocolVersion:
    """Return the published version. Raises Rejected if the draft's digest is not the expected one, if given."""
    if draft.status is not VersionStatus.DRAFT:
        raise _wrong_state(draft, "published")
    if expected_digest is not None and expected_digest != draft.digest:
        message = f"the draft has changed since; its digest is {draft.digest}"
        raise Rejected(RejectCode.PROTOCOL_STATE, message, [Fault("/digest", message)])
    return replace(draft, status=VersionStatus.PUBLISHED, published=mark)


def deprecated(
    version: ProtocolVersion, mark: Mark, index: Index, successor: SuccessorRequest | None
) -> ProtocolVersion:
    if version.status is not VersionStatus.PUBLISHED:
        raise _wrong_state(version, "deprecated")
    if not (mark.reason or "").strip():
        message = "give a reason: clients whose commands are refused are shown it"
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
    """Return the successor; None means the newest of the same request type. Raises Rejected if it can't serve."""
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
