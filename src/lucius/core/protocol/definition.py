"""Protocols as data: an ordered list of steps, chosen by request type and pinned by every job."""

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from lucius.core.model.statuses import FailureClass

BackoffStrategy = Literal["fixed", "exponential", "jittered"]
RetriedClass = Literal["TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED"]

# Checked whenever a protocol is decoded, from a file or from the ledger: they may be widened, never narrowed.
MAX_DURATION_MS = 31 * 24 * 3600 * 1000
Delay = Annotated[int, Meta(ge=0, le=MAX_DURATION_MS)]
Timeout = Annotated[int, Meta(ge=1, le=MAX_DURATION_MS)]
Backoffs = Annotated[tuple[Delay, ...], Meta(min_length=1, max_length=100)]
Text = Annotated[str, Meta(max_length=4096)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?!\n)$")]
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}(?!\n)$")]
Alias = Annotated[str, Meta(min_length=1, max_length=128)]
Pointer = Annotated[str, Meta(max_length=1024)]  # RFC 6901; checked when a protocol is validated


Kind = Literal["task", "decision", "wait", "external_call", "notify", "human_approval", "parallel", "map"]
Safety = Literal["SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY", "SAFE_TO_RETRY_WITH_GUARD"]
Join = Literal["fail_fast", "collect"]
Expression = Annotated[str, Meta(min_length=1, max_length=4096)]
JumpTarget = Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,63}|SUCCEED|FAIL)(?!\n)$")]
Person = Annotated[str, Meta(min_length=1, max_length=256)]

SUCCEED, FAIL = "SUCCEED", "FAIL"  # targets that end a flow
HTTP_SERVICE = "lucius.http"  # the engine's HTTP caller; the dot keeps it distinct from platform services
WEBHOOK_SERVICE = "lucius.webhook"  # the same, for job webhooks
ENGINE_SERVICES = frozenset({HTTP_SERVICE, WEBHOOK_SERVICE})  # never on a bus, never pulled
CONTAINERS = frozenset({"parallel", "map"})
MAX_LIVE_STEPS = 64  # steps of one job that can be active at once
MAX_ITEMS = 10_000


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Retries of a step. Absent values come from the deployment's defaults."""

    max_attempts: Annotated[int, Meta(ge=1, le=100)] | None = None
    backoff_strategy: BackoffStrategy = "jittered"
    initial_delay_ms: Delay = 5_000
    max_delay_ms: Delay = 300_000
    handover_backoff_ms: Backoffs = (30_000, 120_000, 600_000)
    ack_backoff_ms: Backoffs = (60_000, 300_000, 900_000)
    dependency_delay_ms: Delay = 60_000
    retry_on_classes: Annotated[tuple[RetriedClass, ...], Meta(max_length=4)] | None = None


class Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when: Expression
    then: JumpTarget


class Decide(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The first choice whose expression is true is taken; `otherwise` if none is."""

    choices: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=50)]
    otherwise: JumpTarget = FAIL


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one of: a duration, an instant (RFC 3339, or an expression that yields one), a signal."""

    duration_ms: Timeout | None = None
    until: Expression | None = None
    signal: Slug | None = None


class ErrorRule(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Failure class and code of a matching response, instead of those from the table of HTTP statuses."""

    when: Expression
    failure_class: FailureClass
    code: Word = "CALL_FAILED"


class Guard(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request made before a call is repeated, to find out whether the earlier call took effect."""

    url: Text
    done_when: Expression
    method: Literal["GET", "HEAD", "POST"] = "GET"
    headers: dict[str, Text] = field(default_factory=dict)
    body: Any = None
    result: Expression | None = None


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An HTTP request of the engine. Strings are templates; `response` is there for the expressions."""

    url: Text
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, Text] = field(default_factory=dict)
    body: Any = None
    result: Expression | None = None
    errors: Annotated[tuple[ErrorRule, ...], Meta(max_length=50)] = ()
    guard: Guard | None = None


class Notify(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A signed webhook. `secret` names one of the deployment's webhook secrets."""

    url: Text
    type: Word
    data: Any = None
    secret: Word = "default"


class Approval(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Approvers (people, or groups that their keys name), and how many different people must approve."""

    approvers: Annotated[tuple[Person, ...], Meta(min_length=1, max_length=100)]
    quorum: Annotated[int, Meta(ge=1, le=20)] = 1
    four_eyes: bool = False
    prompt: Text = ""


class Parallel(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    branches: Annotated[dict[Slug, Annotated[tuple["StepSpec", ...], Meta(min_length=1)]], Meta(min_length=1)]
    join: Join = "fail_fast"


class Map(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The steps, once for every item of the list that `items` gives; at most `max_parallel` items at a time."""

    items: Expression
    steps: Annotated[tuple["StepSpec", ...], Meta(min_length=1, max_length=50)]
    max_parallel: Annotated[int, Meta(ge=1, le=32)] = 8
    join: Join = "fail_fast"


class StepSpec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One step. Settings of a kind are in the member named after it."""

    step_id: Slug
    step_type: Word = ""
    service: Slug = ""
    kind: Kind = "task"
    name: Text = ""
    ack_timeout_ms: Timeout | None = None
    lease_ms: Timeout | None = None
    timeout_ms: Timeout | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    payload_schema: dict[str, Any] = field(default_factory=dict)
    on_success: JumpTarget | None = None
    on_failure: JumpTarget | None = None
    on_timeout: JumpTarget | None = None
    max_visits: Annotated[int, Meta(ge=1, le=1000)] = 10
    retry_safety: Safety = "SAFE_TO_RETRY"
    guard: dict[str, Any] | None = None
    compensation: "StepSpec | None" = None
    decision: Decide | None = None
    wait: Wait | None = None
    external_call: Call | None = None
    notify: Notify | None = None
    human_approval: Approval | None = None
    parallel: Parallel | None = None
    map: Map | None = None


class Policies(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`timeout_ms` is the job's SLA, `max_inflight` the maximum of live jobs of the protocol, `retry_policy` the
    default for steps without their own. `compensate_on_failure`: a job that fails for good runs the handlers of its
    completed steps before it ends; `compensate_on_cancel`: a cancelled job does.
    """

    timeout_ms: Timeout | None = None
    max_inflight: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    compensation: Literal["auto", "manual"] = "manual"
    compensate_on_cancel: bool = False
    compensate_on_failure: bool = False
    retry_policy: RetryPolicy = RetryPolicy()


class ProtocolDefinition(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    protocol_id: Word
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    request_type: Word
    steps: Annotated[tuple[StepSpec, ...], Meta(min_length=1, max_length=200)]
    title: Text = ""
    description: Text = ""
    aliases: Annotated[tuple[Alias, ...], Meta(max_length=100)] = ()
    policies: Policies = Policies()
    input_schema: dict[str, Any] = field(default_factory=dict)
    output_schema: dict[str, Any] = field(default_factory=dict)
    redact: Annotated[tuple[Pointer, ...], Meta(max_length=100)] = ()
    """JSON Pointers into the payload: values that only services get to see."""

    @cached_property
    def plan(self) -> "Plan":
        return Plan(self.steps, self.policies.retry_policy)

    def step(self, step_id: str) -> StepSpec | None:
        """Return the spec of a job's step, for any map item; None if it is unknown."""
        place = self.plan.places.get(spec_id(step_id))
        return place.spec if place else None

    def index(self, step_id: str) -> int:
        return self.plan.places[spec_id(step_id)].index


ProtocolDefinition.__name__ = "Protocol"  # the name in the published schemas, from which clients are generated


class Place(Struct, frozen=True):
    """Position of a step in a protocol: its index in the document, the container around it, the step that follows by
    default, and the number of maps around it.
    """

    spec: StepSpec
    index: int
    container: str | None
    branch: str | None
    following: str
    maps: int
    handler_of: str | None = None


class Plan:
    """A protocol's steps, nested ones included, by id and in document order."""

    def __init__(self, steps: tuple[StepSpec, ...], retry_policy: RetryPolicy) -> None:
        self.places: dict[str, Place] = {}
        self.repeated: list[str] = []
        self._retry_policy = retry_policy
        self._seen: dict[str, tuple[str, ...]] = {}
        self._lay_out(steps, None, None, 0)
        self.services = tuple(sorted({place.spec.service for place in self.places.values()} - ENGINE_SERVICES - {""}))
        """Platform services that the steps need."""
        self.has_containers = any(place.container is not None for place in self.places.values())
        """True if several steps can become ready at once."""

    def _lay_out(self, steps: tuple[StepSpec, ...], container: str | None, branch: str | None, maps: int) -> None:
        for spec, following in zip(steps, (*(s.step_id for s in steps[1:]), SUCCEED), strict=True):
            self._put(Place(spec, len(self.places), container, branch, following, maps))
            if spec.parallel is not None:
                for name, inner in spec.parallel.branches.items():
                    self._lay_out(inner, spec.step_id, name, maps)
            if spec.map is not None:
                self._lay_out(spec.map.steps, spec.step_id, None, maps + 1)
            if spec.compensation is not None:
                handler = spec.compensation
                self._put(Place(handler, len(self.places), container, branch, SUCCEED, maps, handler_of=spec.step_id))

    def _put(self, place: Place) -> None:
        if place.spec.step_id in self.places:
            self.repeated.append(place.spec.step_id)
        if place.spec.retry_policy == RetryPolicy():
            place = replace(place, spec=replace(place.spec, retry_policy=self._retry_policy))
        self.places[place.spec.step_id] = place

    def siblings(self, name: str) -> list[str]:
        """Return the steps of the same list, including this one."""
        here = self.places[name]
        return [
            step_id
            for step_id, place in self.places.items()
            if (place.container, place.branch) == (here.container, here.branch) and place.handler_of is None
        ]

    def containers_of(self, step_id: str) -> list[str]:
        """Return the job's container steps around this one, innermost first."""
        place, items = self.places[spec_id(step_id)], items_of(step_id)
        found = []
        while place.container is not None:
            name, place = place.container, self.places[place.container]
            found.append(item_step_id(name, items[: place.maps]))
        return found

    def readable_from(self, name: str) -> tuple[str, ...]:
        """Return the steps whose results a step may read: earlier ones, unless in another branch of a parallel.

        A handler may read those of later steps as well.
        """
        found = self._seen.get(name)
        if found is None:
            place = self.places[name]
            before = len(self.places) if place.handler_of is not None else place.index
            earlier = (other for other, at in self.places.items() if at.index < before)
            found = self._seen[name] = tuple(
                other for other in earlier if not self._are_in_different_branches(other, place)
            )
        return found

    def _are_in_different_branches(self, name: str, place: Place) -> bool:
        """Return whether two steps are in different branches of one parallel, so that their order is undefined."""
        ours = self._branches(place)
        theirs = dict(self._branches(self.places[name])) if ours else {}
        return any(theirs.get(container, branch) != branch for container, branch in ours)

    def _branches(self, place: Place) -> list[tuple[str, str]]:
        """Return the parallels around a step, each with the branch that contains the step."""
        found = []
        while place.container is not None:
            if place.branch is not None:
                found.append((place.container, place.branch))
            place = self.places[place.container]
        return found

    def outermost(self, step_id: str) -> str:
        """Return the outermost container around a step, or the step itself."""
        container = self.places[spec_id(step_id)].container
        return spec_id(step_id) if container is None else self.outermost(container)


def spec_id(step_id: str) -> str:
    """Return the protocol's step id of a job's step: `ocr.3` is the `ocr` of the map's fourth item."""
    return step_id.partition(".")[0]


def items_of(step_id: str) -> tuple[int, ...]:
    """Return a job step's item number in each map around it, outermost first."""
    _, _, items = step_id.partition(".")
    return tuple(int(item) for item in items.split(".")) if items else ()


def item_step_id(spec: str, items: tuple[int, ...]) -> str:
    return ".".join((spec, *map(str, items))) if items else spec


def payload_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a payload schema's defaults for top-level members."""
    properties = schema.get("properties", {})
    return {name: part["default"] for name, part in properties.items() if isinstance(part, dict) and "default" in part}


def digest(protocol: ProtocolDefinition) -> str:
    """Return the content hash of a protocol; jobs pin it, so an edited file can never change a running job."""
    return hashlib.sha256(msgspec.json.encode(protocol, order="deterministic")).hexdigest()
