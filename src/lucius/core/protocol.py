"""Protocols as data: an ordered list of steps, chosen by request type and pinned by every job it starts."""

import hashlib
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from lucius.core.model import FailureClass

BackoffStrategy = Literal["fixed", "exponential", "jittered"]
RetriedClass = Literal["TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED"]

# Checked whenever a protocol is decoded, from a file or from the ledger: they may be widened, never narrowed.
MONTH_MS = 31 * 24 * 3600 * 1000
Delay = Annotated[int, Meta(ge=0, le=MONTH_MS)]
Timeout = Annotated[int, Meta(ge=1, le=MONTH_MS)]
Backoffs = Annotated[tuple[Delay, ...], Meta(min_length=1, max_length=100)]
Text = Annotated[str, Meta(max_length=4096)]
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?!\n)$")]
Slug = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}(?!\n)$")]
Alias = Annotated[str, Meta(min_length=1, max_length=128)]


Kind = Literal["task", "decision", "wait", "external_call", "notify", "human_approval", "parallel", "map"]
Safety = Literal["SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY", "SAFE_TO_RETRY_WITH_GUARD"]
Join = Literal["fail_fast", "collect"]
Expression = Annotated[str, Meta(min_length=1, max_length=4096)]
Target = Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,63}|SUCCEED|FAIL)(?!\n)$")]
Person = Annotated[str, Meta(min_length=1, max_length=256)]

SUCCEED, FAIL = "SUCCEED", "FAIL"  # where a flow can end instead of going on to a step
HTTP_SERVICE = "lucius.http"  # the engine's own caller; a dot keeps it apart from every platform service
WEBHOOK_SERVICE = "lucius.webhook"  # the same, for what clients are told about their jobs
OF_THE_ENGINE = frozenset({HTTP_SERVICE, WEBHOOK_SERVICE})  # never on a bus, never pulled
CONTAINERS = frozenset({"parallel", "map"})
MAX_LIVE = 64  # steps of one job that a protocol may let run at once
MAX_ITEMS = 10_000


class RetryPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a step is tried again. What is absent comes from the deployment's defaults."""

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
    then: Target


class Decide(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The first choice whose expression is true is taken; `otherwise` if none is."""

    choices: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=50)]
    otherwise: Target = FAIL


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one of them: a time to let pass, an instant (RFC 3339, or an expression that gives one), a signal."""

    duration_ms: Timeout | None = None
    until: Expression | None = None
    signal: Slug | None = None


class ErrorRule(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a response that matches means, where the table of HTTP statuses would say something else."""

    when: Expression
    failure_class: FailureClass
    code: Word = "CALL_FAILED"


class Guard(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Asked before a call is made again: has the one before taken effect after all?"""

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
    """Who may approve (people, or groups that their keys name), and how many different people must."""

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
    """One step. What is special to a kind stands in the member that is named after it."""

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
    on_success: Target | None = None
    on_failure: Target | None = None
    on_timeout: Target | None = None
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
    """`timeout_ms` is the job's SLA, `max_inflight` how many jobs of the protocol may be live at once, `retry_policy`
    what holds for steps that say nothing of their own."""

    timeout_ms: Timeout | None = None
    max_inflight: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    compensation: Literal["auto", "manual"] = "manual"
    compensate_on_cancel: bool = False
    retry_policy: RetryPolicy = RetryPolicy()


class Protocol(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
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

    @cached_property
    def plan(self) -> "Plan":
        return Plan(self.steps, self.policies.retry_policy)

    def step(self, step_id: str) -> StepSpec | None:
        """The spec of a step of a job, whichever map item it belongs to."""
        place = self.plan.places.get(spec_id(step_id))
        return place.spec if place else None

    def index(self, step_id: str) -> int:
        return self.plan.places[spec_id(step_id)].index


class Place(Struct, frozen=True):
    """Where a step stands: its turn in the whole document, the container around it, what follows it by default, and
    how many maps are around it."""

    spec: StepSpec
    index: int
    container: str | None
    branch: str | None
    following: str
    maps: int
    handler_of: str | None = None


class Plan:
    """A protocol's steps, those inside others too, by id and in the order of the document."""

    def __init__(self, steps: tuple[StepSpec, ...], retry_policy: RetryPolicy) -> None:
        self.places: dict[str, Place] = {}
        self.repeated: list[str] = []
        self._retry_policy = retry_policy
        self._seen: dict[str, tuple[str, ...]] = {}
        self._lay_out(steps, None, None, 0)

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

    def beside(self, name: str) -> list[str]:
        """The steps of the same list, this one too."""
        here = self.places[name]
        return [
            step_id
            for step_id, place in self.places.items()
            if (place.container, place.branch) == (here.container, here.branch) and place.handler_of is None
        ]

    def around(self, step_id: str) -> list[str]:
        """The job's steps that are containers around this one, the innermost first."""
        place, items = self.places[spec_id(step_id)], items_of(step_id)
        found = []
        while place.container is not None:
            name, place = place.container, self.places[place.container]
            found.append(at_items(name, items[: place.maps]))
        return found

    def seen_from(self, name: str) -> tuple[str, ...]:
        """The steps whose results a step may get: those before it, unless beside it; a handler may get all."""
        found = self._seen.get(name)
        if found is None:
            place = self.places[name]
            before = len(self.places) if place.handler_of is not None else place.index
            earlier = (other for other, at in self.places.items() if at.index < before)
            found = self._seen[name] = tuple(other for other in earlier if not self._are_apart(other, place))
        return found

    def _are_apart(self, name: str, place: Place) -> bool:
        """Whether two steps are in different branches of one parallel: which of them is first is a matter of chance."""
        ours = self._branches(place)
        theirs = dict(self._branches(self.places[name])) if ours else {}
        return any(theirs.get(container, branch) != branch for container, branch in ours)

    def _branches(self, place: Place) -> list[tuple[str, str]]:
        """The parallels around a step, and in which branch of each it is."""
        found = []
        while place.container is not None:
            if place.branch is not None:
                found.append((place.container, place.branch))
            place = self.places[place.container]
        return found

    def ancestor(self, step_id: str) -> str:
        """The outermost container around a step, or the step itself."""
        container = self.places[spec_id(step_id)].container
        return spec_id(step_id) if container is None else self.ancestor(container)


def spec_id(step_id: str) -> str:
    """The protocol's step behind a job's step: `ocr.3` is the `ocr` of the map's fourth item."""
    return step_id.partition(".")[0]


def items_of(step_id: str) -> tuple[int, ...]:
    """Which item of each map around it a job's step belongs to, the outermost first."""
    _, _, items = step_id.partition(".")
    return tuple(int(item) for item in items.split(".")) if items else ()


def at_items(spec: str, items: tuple[int, ...]) -> str:
    return ".".join((spec, *map(str, items))) if items else spec


def payload_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """What a payload schema gives for top-level members that a client leaves out."""
    properties = schema.get("properties", {})
    return {name: part["default"] for name, part in properties.items() if isinstance(part, dict) and "default" in part}


def digest(protocol: Protocol) -> str:
    """Content address of a protocol: jobs pin it, so an edited file can never change a running job."""
    return hashlib.sha256(msgspec.json.encode(protocol, order="deterministic")).hexdigest()
