"""Checks of single steps: members that their kind requires, members without meaning for it, and size limits."""

from collections.abc import Iterator
from typing import get_args

from lucius.core.protocol.definition import MAX_LIVE_STEPS, Kind, Policies, RetryPolicy, StepSpec
from lucius.core.protocol.validation.locations import Finding, ProtocolOutline, Site

MAX_STEPS = 500
MAX_CONTAINERS = 4
MAX_MAPS = 2

_MEMBERS = tuple(kind for kind in get_args(Kind) if kind != "task")
_DISPATCHED = frozenset({"task", "external_call", "notify"})
_HANDLERS = _DISPATCHED

# Fields that only some kinds use: name, default, and those kinds.
_FIELDS: tuple[tuple[str, object, frozenset[str]], ...] = (
    ("service", "", frozenset({"task"})),
    ("payload_schema", {}, frozenset({"task"})),
    ("ack_timeout_ms", None, frozenset({"task"})),
    ("lease_ms", None, frozenset({"task"})),
    ("guard", None, frozenset({"task"})),
    ("retry_policy", RetryPolicy(), _DISPATCHED),
    ("retry_safety", "SAFE_TO_RETRY", _DISPATCHED),
    ("timeout_ms", None, _DISPATCHED | {"wait", "human_approval"}),
)


def check_shapes(layout: ProtocolOutline) -> Iterator[Finding]:
    seen: set[str] = set()
    for site in layout.sites:
        if site.step_id in seen:
            yield Finding((*site.path, "step_id"), f"the step id {site.step_id} is used twice")
        seen.add(site.step_id)
        yield from _members(site)
        yield from _fields(site)
        yield from _retries(site)
        yield from _times(site)
        yield from _compensation(site)
        yield from _nesting(site)


def check_size(layout: ProtocolOutline) -> Iterator[Finding]:
    if len(layout.sites) > MAX_STEPS:
        yield Finding(("steps",), f"has {len(layout.sites)} steps in all; at most {MAX_STEPS}")
    for site in layout.scopes[0].sites:
        if (live := _max_active(site.spec)) > MAX_LIVE_STEPS:
            yield Finding(site.path, f"{site.step_id} may have {live} steps running at once; at most {MAX_LIVE_STEPS}")


def check_waits(layout: ProtocolOutline, policies: Policies) -> Iterator[Finding]:
    """Warn of steps that can wait forever."""
    if policies.timeout_ms is not None:
        return
    for site in layout.sites:
        wait, kind = site.spec.wait, site.spec.kind
        on_signal = kind == "wait" and wait is not None and wait.signal is not None
        if site.spec.timeout_ms is None and (on_signal or kind == "human_approval"):
            what = "a signal" if on_signal else "an approval"
            reason = f"{site.step_id} waits for {what} without timeout_ms, and nothing ends the job if it never comes"
            yield Finding(site.path, reason, fatal=False)


def can_time_out(spec: StepSpec) -> bool:
    if spec.kind in _DISPATCHED:
        return True
    waits = spec.kind == "human_approval" or (spec.wait is not None and spec.wait.signal is not None)
    return waits and spec.timeout_ms is not None


def can_fail(spec: StepSpec) -> bool:
    """Return whether a step can fail: all can, except waits for a fixed time and waits without a timeout."""
    if spec.wait is None or spec.wait.until is not None:
        return True
    return can_time_out(spec)


def _members(site: Site) -> Iterator[Finding]:
    spec = site.spec
    if spec.kind == "task":
        for name in ("step_type", "service"):
            if not getattr(spec, name):
                yield Finding(site.path, f"{_a(spec.kind)} needs a {name}")
    elif getattr(spec, spec.kind) is None:
        yield Finding((*site.path, "kind"), f"{_a(spec.kind)} needs a member {spec.kind}")
    for name in _MEMBERS:
        if name != spec.kind and getattr(spec, name) is not None:
            yield Finding((*site.path, name), f"{name} has no place in {_a(spec.kind)}; is another kind meant?")


def _fields(site: Site) -> Iterator[Finding]:
    spec = site.spec
    for name, absent, kinds in _FIELDS:
        if spec.kind not in kinds and getattr(spec, name) != absent:
            yield Finding((*site.path, name), f"{name} has no meaning for {_a(spec.kind)}")
    if spec.kind == "decision" and spec.on_success is not None:
        reason = "a decision goes where its choices say, and otherwise to `otherwise`: on_success has no meaning for it"
        yield Finding((*site.path, "on_success"), reason)


def _retries(site: Site) -> Iterator[Finding]:
    spec, retry = site.spec, site.spec.retry_policy
    if retry.max_delay_ms < retry.initial_delay_ms:
        reason = f"max_delay_ms ({retry.max_delay_ms}) is less than initial_delay_ms ({retry.initial_delay_ms})"
        yield Finding((*site.path, "retry_policy", "max_delay_ms"), reason)
    guarded = spec.retry_safety == "SAFE_TO_RETRY_WITH_GUARD"
    asks = spec.external_call is not None and spec.external_call.guard is not None
    if spec.guard is not None and spec.kind == "task" and not guarded:
        yield Finding((*site.path, "guard"), "a guard needs retry_safety: SAFE_TO_RETRY_WITH_GUARD")
    if asks and not guarded:
        path = (*site.path, "external_call", "guard")
        yield Finding(path, "a guard needs retry_safety: SAFE_TO_RETRY_WITH_GUARD")
    if guarded and spec.kind == "external_call" and not asks:
        reason = "SAFE_TO_RETRY_WITH_GUARD needs external_call.guard, which is called before the call is made again"
        yield Finding((*site.path, "retry_safety"), reason)
    if guarded and spec.kind == "notify":
        yield Finding((*site.path, "retry_safety"), "a notify has no guard")
    if spec.retry_safety == "NOT_SAFE_TO_RETRY" and (retry.max_attempts or 1) > 1:
        reason = "max_attempts is only used for failed hand-overs: a step that is NOT_SAFE_TO_RETRY is not tried again"
        yield Finding((*site.path, "retry_policy", "max_attempts"), reason, fatal=False)


def _times(site: Site) -> Iterator[Finding]:
    spec, wait = site.spec, site.spec.wait
    if wait is not None:
        given = [name for name in ("duration_ms", "until", "signal") if getattr(wait, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            yield Finding((*site.path, "wait"), f"needs one of duration_ms, until and signal, and has {found}")
        elif given != ["signal"] and spec.timeout_ms is not None:
            yield Finding((*site.path, "timeout_ms"), f"timeout_ms has no meaning for a wait with {given[0]}")
    if spec.on_timeout is not None and not can_time_out(spec):
        waits = spec.kind == "human_approval" or (wait is not None and wait.signal is not None)
        reason = f"{site.step_id} can't time out" + (" without timeout_ms" if waits else "")
        yield Finding((*site.path, "on_timeout"), reason)


def _compensation(site: Site) -> Iterator[Finding]:
    spec = site.spec
    if spec.compensation is not None and site.maps:
        yield Finding((*site.path, "compensation"), "a step inside a map can't have a compensation")
    if site.handler_of is None:
        return
    if spec.kind not in _HANDLERS:
        reason = f"a compensation is a task, an external_call or a notify, and not {_a(spec.kind)}"
        yield Finding((*site.path, "kind"), reason)
    if spec.compensation is not None:
        yield Finding((*site.path, "compensation"), "a compensation has none itself")
    for name in ("on_success", "on_failure", "on_timeout"):
        if getattr(spec, name) is not None:
            yield Finding((*site.path, name), f"{name} has no meaning for a compensation: it leads nowhere")


def _nesting(site: Site) -> Iterator[Finding]:
    spec = site.spec
    if spec.kind not in ("parallel", "map"):
        return
    if sum(1 for _ in site.containers()) == MAX_CONTAINERS:
        yield Finding((*site.path, "kind"), f"more than {MAX_CONTAINERS} containers inside each other")
    if spec.kind == "map" and site.maps == MAX_MAPS:
        yield Finding((*site.path, "kind"), f"more than {MAX_MAPS} maps inside each other")


def _max_active(spec: StepSpec) -> int:
    """Count the steps that can run at once while this one does."""
    if spec.map is not None:
        return spec.map.max_parallel * max(map(_max_active, spec.map.steps))
    if spec.parallel is not None:
        return sum(max(map(_max_active, steps)) for steps in spec.parallel.branches.values())
    return 1


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
