"""Random protocols of every kind: small trees, sound by construction, with short times and tight limits."""

import random
from collections.abc import Sequence

from msgspec.structs import replace

from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import (
    FAIL,
    SUCCEED,
    Approval,
    Call,
    Choice,
    Decide,
    ErrorRule,
    Guard,
    Join,
    Map,
    Notify,
    Parallel,
    Policies,
    ProtocolDefinition,
    RetryPolicy,
    StepSpec,
    Wait,
)

SERVICES = ("ocr", "embedding", "sis")
SIGNALS = ("go", "more")
PEOPLE = ("ann", "bob", "cid")
FINANCE = "finance"  # a group that all of them are in
OUTSIDE = "https://outside.test"

KINDS = {
    "task": 8,
    "decision": 2,
    "wait": 2,
    "human_approval": 2,
    "external_call": 2,
    "notify": 1,
    "parallel": 2,
    "map": 3,
}


def draw_protocol(rng: random.Random, number: int) -> ProtocolDefinition:
    steps = Author(rng).flow(rng.randint(2, 4), (), 0, in_map=False)
    timeout_ms = rng.choice((None, None, None, None, 15_000, 40_000))
    policy = rng.choice(("auto", "manual"))
    undoes = rng.random()
    policies = Policies(
        timeout_ms=timeout_ms,
        compensation="auto" if policy == "auto" else "manual",
        compensate_on_cancel=undoes < 0.4,
        compensate_on_failure=0.2 < undoes < 0.6,
    )
    promised = {"type": "object"} if rng.random() < 0.1 else {}
    return ProtocolDefinition(
        protocol_id=f"v{number}",
        version=1,
        request_type=f"V{number}",
        steps=steps,
        policies=policies,
        input_schema={"type": "object"},
        output_schema=promised,
    )


class Author:
    """Generates the steps of one protocol; ids are unique within it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._careful = rng.random() < 0.4  # every effect can be undone, so no step leads back
        self._named = 0
        self._containers = 0

    @property
    def _likely_undone(self) -> float:
        return 0.9 if self._careful else 0.3

    def flow(self, length: int, seen: tuple[str, ...], depth: int, *, in_map: bool) -> tuple[StepSpec, ...]:
        """Return a list of steps. `seen` names the steps whose result has a number that expressions can read."""
        specs: list[StepSpec] = []
        for _ in range(length):
            spec = self._step(seen, depth, in_map=in_map)
            specs.append(spec)
            if spec.kind in ("task", "external_call"):
                seen = (*seen, spec.step_id)
        return tuple(_undone_once(_reachable(self._wired(specs))))

    def _step(self, seen: tuple[str, ...], depth: int, *, in_map: bool) -> StepSpec:
        kinds = [kind for kind in KINDS if kind not in ("parallel", "map") or (depth < 2 and self._containers < 2)]
        kind = self._rng.choices(kinds, [KINDS[kind] for kind in kinds])[0]
        self._named += 1
        name = f"{kind[0]}{self._named}"
        match kind:
            case "task":
                return self._task(name, in_map=in_map)
            case "decision":
                return self._decision(name, seen, in_map=in_map)
            case "wait":
                return self._wait(name)
            case "human_approval":
                return self._approval(name)
            case "external_call":
                return self._call(name, seen, in_map=in_map)
            case "notify":
                return self._notify(name)
            case _:
                self._containers += 1
                return self._container(name, kind, seen, depth, in_map=in_map)

    def _task(self, name: str, *, in_map: bool) -> StepSpec:
        rng = self._rng
        safety = rng.choices(("SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY", "SAFE_TO_RETRY_WITH_GUARD"), (6, 3, 1))[0]
        return StepSpec(
            step_id=name,
            step_type="WORK",
            service=rng.choice(SERVICES),
            ack_timeout_ms=rng.choice((None, None, 1_500)),
            lease_ms=rng.choice((None, None, 3_000)),
            timeout_ms=rng.choice((None, None, None, 6_000)),
            retry_policy=self._retry(),
            retry_safety=safety,  # type: ignore[arg-type]
            guard={"look": "first"} if safety == "SAFE_TO_RETRY_WITH_GUARD" else None,
            compensation=self._handler(name) if not in_map and rng.random() < self._likely_undone else None,
        )

    def _retry(self) -> RetryPolicy:
        rng = self._rng
        return RetryPolicy(
            max_attempts=rng.choice((None, 1, 2, 3)),
            backoff_strategy=rng.choice(("fixed", "exponential", "jittered")),
            initial_delay_ms=rng.choice((0, 300, 1_000)),
            max_delay_ms=2_000,
            handover_backoff_ms=(400, 1_500),
            ack_backoff_ms=(400, 1_500),
            dependency_delay_ms=800,
            retry_on_classes=rng.choice((None, None, None, ("TRANSIENT",))),
        )

    def _handler(self, name: str) -> StepSpec:
        if self._rng.random() < 0.3:
            return self._call(f"undo-{name}", (), in_map=True)
        return self._task(f"undo-{name}", in_map=True)

    def _decision(self, name: str, seen: tuple[str, ...], *, in_map: bool) -> StepSpec:
        """Return a decision whose targets are placeholders until the steps around it are known."""
        conditions = [self._condition(seen, in_map=in_map) for _ in range(self._rng.randint(1, 2))]
        choices = tuple(Choice(when=when, then=FAIL) for when in conditions)
        return StepSpec(step_id=name, kind="decision", decision=Decide(choices=choices))

    def _condition(self, seen: tuple[str, ...], *, in_map: bool) -> str:
        rng, number = self._rng, self._rng.randint(2, 8)
        options = [f"input.n > {number}", f"size(input.items) > {number // 2}"]
        if seen:
            name = rng.choice(seen)
            options += [f"steps.{name}.result.n > {number}", f"steps.{name}.status == 'SUCCEEDED'"] * 2
        if in_map:
            options += [f"item > {number}", "item_index == 1"]
        return rng.choice(options) if rng.random() > 0.03 else "input.nothing > 1"

    def _wait(self, name: str) -> StepSpec:
        rng = self._rng
        if rng.random() < 0.5:
            wait = Wait(signal=rng.choice(SIGNALS))
            return StepSpec(step_id=name, kind="wait", wait=wait, timeout_ms=rng.choice((None, 1_500, 4_000)))
        if rng.random() < 0.15:
            return StepSpec(step_id=name, kind="wait", wait=Wait(until="2025-06-15T15:06:48Z"))
        return StepSpec(step_id=name, kind="wait", wait=Wait(duration_ms=rng.choice((1, 200, 1_000, 3_000))))

    def _approval(self, name: str) -> StepSpec:
        rng = self._rng
        approvers = (FINANCE,) if rng.random() < 0.3 else tuple(rng.sample(PEOPLE, rng.randint(1, 3)))
        most = len(PEOPLE) if FINANCE in approvers else len(approvers)
        approval = Approval(
            approvers=approvers,
            quorum=rng.randint(1, min(2, most)),
            four_eyes=rng.random() < 0.2,
            prompt="" if rng.random() < 0.5 else "${input.n} pages?",
        )
        timeout = rng.choice((None, 2_000, 5_000))
        return StepSpec(step_id=name, kind="human_approval", human_approval=approval, timeout_ms=timeout)

    def _call(self, name: str, seen: tuple[str, ...], *, in_map: bool) -> StepSpec:
        rng = self._rng
        number = f"${{steps.{rng.choice(seen)}.result.n}}" if seen and rng.random() < 0.4 else "${input.n}"
        guarded = rng.random() < 0.3
        guard = Guard(url=f"{OUTSIDE}/guard/{name}", done_when="response.body.done", result="response.body.made")
        undo = ErrorRule(when="response.status == 409", failure_class=FailureClass.COMPENSATION_REQUIRED, code="HALF")
        call = Call(
            url=f"{OUTSIDE}/make/{name}",
            headers={"x-key": "${job.id}"},
            body={"n": number},
            errors=(undo,) if rng.random() < 0.5 else (),
            guard=guard if guarded else None,
        )
        return StepSpec(
            step_id=name,
            kind="external_call",
            external_call=call,
            timeout_ms=rng.choice((1_000, 2_500)),
            retry_policy=self._retry(),
            retry_safety="SAFE_TO_RETRY_WITH_GUARD" if guarded else rng.choice(("SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY")),
            compensation=self._handler(name) if not in_map and rng.random() < self._likely_undone else None,
        )

    def _notify(self, name: str) -> StepSpec:
        hook = Notify(url=f"{OUTSIDE}/hook/{name}", type="pages.counted", data={"n": "${input.n}"})
        return StepSpec(step_id=name, kind="notify", notify=hook, timeout_ms=1_000, retry_policy=self._retry())

    def _container(self, name: str, kind: str, seen: tuple[str, ...], depth: int, *, in_map: bool) -> StepSpec:
        rng = self._rng
        join: Join = rng.choice(("fail_fast", "collect"))
        if kind == "map":
            steps = self.flow(rng.randint(1, 2), seen, depth + 1, in_map=True)
            most = rng.randint(1, 3)
            body = Map(items=self._items(seen), steps=steps, max_parallel=most, join=join)
            return StepSpec(step_id=name, kind="map", map=body)
        branches = {
            f"b{n}": self.flow(rng.randint(1, 2), seen, depth + 1, in_map=in_map) for n in range(rng.randint(1, 3))
        }
        return StepSpec(step_id=name, kind="parallel", parallel=Parallel(branches=branches, join=join))

    def _items(self, seen: tuple[str, ...]) -> str:
        options = ["input.items", "input.items", "[1, 5]"]
        if seen:
            options += [f"steps.{self._rng.choice(seen)}.result.items"] * 2
        return self._rng.choice(options) if self._rng.random() > 0.04 else "input.n"

    def _wired(self, specs: Sequence[StepSpec]) -> list[StepSpec]:
        """Return the steps with targets set: mostly the next step, sometimes a later one, an earlier one, or an end."""
        rng, names = self._rng, [spec.step_id for spec in specs]
        wired = []
        for at, spec in enumerate(specs):
            onward, back = [*names[at + 1 :], SUCCEED], [] if self._careful else names[: at + 1]
            if spec.decision is not None:
                choices = tuple(replace(c, then=rng.choice([*onward, *back, FAIL])) for c in spec.decision.choices)
                spec = replace(spec, decision=Decide(choices=choices, otherwise=onward[0]))
            else:
                spec = replace(
                    spec,
                    on_success=rng.choice([*onward, FAIL]) if rng.random() < 0.08 else None,
                    on_failure=rng.choice([*onward, *back]) if rng.random() < 0.3 else None,
                    on_timeout=rng.choice([*onward, *back]) if rng.random() < 0.15 and _can_time_out(spec) else None,
                )
            wired.append(replace(spec, max_visits=rng.randint(1, 3)))
        return wired


def _can_time_out(spec: StepSpec) -> bool:
    return spec.kind == "task" or spec.timeout_ms is not None


def _reachable(specs: list[StepSpec]) -> list[StepSpec]:
    """Return the steps with every one reachable: the step before a missed one leads to it again."""
    while missed := _first_missed(specs):
        before, missing = specs[missed - 1], specs[missed].step_id
        if before.decision is not None:
            specs[missed - 1] = replace(before, decision=replace(before.decision, otherwise=missing))
        else:
            specs[missed - 1] = replace(before, on_success=None)
    return specs


def _first_missed(specs: list[StepSpec]) -> int:
    """Return the index of the first step that nothing before it leads to, or 0 if there is none."""
    reached = {specs[0].step_id}
    for at, spec in enumerate(specs):
        if spec.step_id not in reached:
            return at
        reached |= _targets(spec, specs[at + 1].step_id if at + 1 < len(specs) else SUCCEED)
    return 0


def _undone_once(specs: list[StepSpec]) -> list[StepSpec]:
    """Return the steps without handlers in loops, where they would undo only the last visit."""
    names = [spec.step_id for spec in specs]
    ways = {spec.step_id: _targets(spec, after) for spec, after in zip(specs, [*names[1:], SUCCEED], strict=True)}
    return [_without_handlers(spec) if spec.step_id in _ahead(ways, spec.step_id) else spec for spec in specs]


def _ahead(ways: dict[str, set[str]], name: str) -> set[str]:
    """Return every target that a flow may reach from a step."""
    found: set[str] = set()
    look_at = [name]
    while look_at:
        new = ways.get(look_at.pop(), set()) - found
        found |= new
        look_at += sorted(new)
    return found


def _without_handlers(spec: StepSpec) -> StepSpec:
    if spec.parallel is None:
        return replace(spec, compensation=None)
    branches = {name: tuple(map(_without_handlers, steps)) for name, steps in spec.parallel.branches.items()}
    return replace(spec, parallel=replace(spec.parallel, branches=branches))


def _targets(spec: StepSpec, following: str) -> set[str]:
    if spec.decision is not None:
        return {spec.decision.otherwise, *(choice.then for choice in spec.decision.choices)}
    return {spec.on_success or following, *(t for t in (spec.on_failure, spec.on_timeout) if t is not None)}
