"""Messages about protocols and their versions. Fields are only ever added."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from lucius.contract.fields import PositiveInt, Reason, Timestamp


class ProtocolAct(Struct, frozen=True, omit_defaults=True):
    """An action on a protocol version: actor, time and reason."""

    by: str
    at: Timestamp
    reason: str = ""


class ProtocolSuccessor(Struct, frozen=True):
    request_type: str
    version: int


class ProtocolFinding(Struct, frozen=True):
    """Finding of the validation of a protocol document; a `fatal` one prevents publication."""

    pointer: str
    message: str
    fatal: bool


class ProtocolVersionView(Struct, frozen=True, kw_only=True):
    """A protocol version. `changed` is the last change of a draft, `successor` the replacement of a deprecated version,
    `serving_version` the version that a command without `protocol_version` uses now."""

    version: int
    request_type: str
    status: Literal["DRAFT", "PUBLISHED", "DEPRECATED"] = "PUBLISHED"
    title: str = ""
    digest: str = ""
    file: str = ""
    created: ProtocolAct | None = None
    changed: ProtocolAct | None = None
    published: ProtocolAct | None = None
    deprecated: ProtocolAct | None = None
    successor: ProtocolSuccessor | None = None
    serving_version: int | None = None


class ProtocolView(ProtocolVersionView, frozen=True, kw_only=True):
    protocol_id: str
    steps: list[dict[str, Any]]
    description: str = ""
    aliases: list[str] = field(default_factory=list)
    policies: dict[str, Any] = field(default_factory=dict)
    input_schema: dict[str, Any] = field(default_factory=dict)
    output_schema: dict[str, Any] = field(default_factory=dict)
    redact: list[str] = field(default_factory=list)
    findings: list[ProtocolFinding] = field(default_factory=list)


class ProtocolVersionList(Struct, frozen=True, kw_only=True):
    request_type: str
    versions: list[ProtocolVersionView]


class ProtocolValidation(Struct, frozen=True, kw_only=True):
    valid: bool
    findings: list[ProtocolFinding]


class ProtocolChange(Struct, frozen=True, kw_only=True):
    """A difference between two versions. `pointer` refers to the newer document, or to the older one if REMOVED.

    `stepId` is the innermost step that contains it. MOVED has the order of the steps before and after.
    """

    change: Literal["ADDED", "REMOVED", "CHANGED", "MOVED"]
    pointer: str
    stepId: str | None
    before: Any | UnsetType = UNSET
    after: Any | UnsetType = UNSET


class ProtocolDiff(Struct, frozen=True, kw_only=True):
    request_type: str
    from_version: int
    to_version: int
    steps_added: list[str]
    steps_removed: list[str]
    steps_changed: list[str]
    changes: list[ProtocolChange]


class PublishRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Publishes a draft. With `digest`, only if the draft still has that digest."""

    reason: Reason | None = None
    digest: Annotated[str, Meta(max_length=128)] | None = None


class SuccessorRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Successor of a deprecated version. `request_type` defaults to that of the deprecated version, and `version` to
    the newest one."""

    request_type: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    version: PositiveInt | None = None


class DeprecateRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Deprecates a protocol version. `reason` is shown to clients whose commands are refused; it must not be blank."""

    reason: Annotated[str, Meta(min_length=1, max_length=1024)]
    successor: SuccessorRequest | None = None


class ProtocolProblem(Struct, frozen=True, kw_only=True):
    file: str
    line: int | None
    reason: str


class ProtocolList(Struct, frozen=True, kw_only=True):
    protocols: list[ProtocolView]
    problems: list[ProtocolProblem]
