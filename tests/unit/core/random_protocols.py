"""Random protocols of all kinds: small trees of steps that an author could have written, sensible or not."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import FAIL, SUCCEED, Policies, ProtocolDefinition, RetryPolicy, StepSpec
from tests.unit.core.builders import MINUTE, SECOND
from tests.unit.core.shapes import (
    NOT_SAFE,
    approval,
    call,
    decision,
    each,
    notify,
    parallel,
    pause_for,
    task,
    wait_for,
    wait_until,
)

Choose = Callable[[Sequence[Any]], Any]
PAYLOAD = {"flag": True, "list": [1, 2, 3], "at": "2023-11-14T22:30:00Z"}
CONDITIONS = ("True", "False", "input.flag", "job.run_no > 1", "input.nothing", "item_index > 0")
ITEMS = ("range(0)", "range(1)", "range(2)", "input.list", "input.list", "input.nothing", "item")
MANY = "range(14)"  # with as many items at once, one decision can't stop them all
BODIES = ({"a": 1}, {"flag": "${input.flag}"}, {"item": "${item}"}, {"no": "${input.nothing}"})
SIGNALS = ("go", "come")
SAFETY = ("SAFE_TO_RETRY", "SAFE_TO_RETRY", NOT_SAFE, "SAFE_TO_RETRY_WITH_GUARD")
LEAVES = ("task", "task", "task", "call", "notify", "decision", "wait", "signal", "until", "approval")
MAX_STEPS = 9
SERVICES = ("ocr-svc", "sis-svc")


class Author:
    """Writes one protocol. Step ids are s0, s1, …; a step inside a map has no handler."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.written = 0

    def pick(self, *options: Any) -> Any:
        return self.choose(options)

    def new_id(self) -> str:
        self.written += 1
        return f"s{self.written - 1}"

    def steps(self, depth: int, in_map: bool, longest: int) -> tuple[StepSpec, ...]:
        names = [self.new_id() for _ in range(self.pick(*range(1, longest + 1)))]
        return tuple(self.step(name, names, depth, in_map) for name in names)

    def step(self, name: str, names: list[str], depth: int, in_map: bool) -> StepSpec:
        nest = depth < 2 and self.written < MAX_STEPS and self.pick(0, 0, 0, 1)
        fields = self.paths(names)
        if nest:
            return self.container(name, depth, in_map, fields)
        return self.leaf(name, names, in_map, fields)

    def paths(self, names: list[str]) -> dict[str, Any]:
        """Return targets of a step: mostly the next one in the list, sometimes others, also backwards."""
        targets = (*names, SUCCEED, FAIL)
        fields = {
            way: self.pick(*targets) for way in ("on_success", "on_failure", "on_timeout") if self.pick(0, 0, 0, 1)
        }
        return {**fields, "max_visits": self.pick(1, 2, 3)}

    def container(self, name: str, depth: int, in_map: bool, fields: dict[str, Any]) -> StepSpec:
        fields["join"] = self.pick("fail_fast", "collect")
        if self.pick(True, False):
            branches = [self.steps(depth + 1, in_map, 2) for _ in range(self.pick(1, 2, 3))]
            return parallel(name, *branches, **fields)
        body = self.steps(depth + 1, True, 2)
        items = self.pick(*ITEMS, *(() if in_map else (MANY,)))
        return each(name, items, *body, at_once=self.pick(1, 2, 3, 12), **fields)

    def leaf(self, name: str, names: list[str], in_map: bool, fields: dict[str, Any]) -> StepSpec:
        match self.pick(*LEAVES):
            case "decision":
                asked = (*CONDITIONS, *(f"steps.{other}.status == 'SUCCEEDED'" for other in names))
                targets = (*names, SUCCEED, FAIL)
                fields.pop("on_success", None)
                return decision(name, {self.pick(*asked): self.pick(*targets)}, otherwise=self.pick(*targets), **fields)
            case "wait":
                return pause_for(name, self.pick(SECOND, MINUTE), **fields)
            case "until":
                return wait_until(name, self.pick("input.at", "input.nothing", "2001-01-01T00:00:00Z"), **fields)
            case "signal":
                return wait_for(name, self.pick(*SIGNALS), timeout_ms=self.pick(None, MINUTE), **fields)
            case "approval":
                return approval(name, quorum=self.pick(1, 2), timeout_ms=self.pick(None, 5 * MINUTE), **fields)
            case kind:
                return self.dispatched(kind, name, in_map, fields)

    def dispatched(self, kind: str, name: str, in_map: bool, fields: dict[str, Any]) -> StepSpec:
        fields["retry_safety"] = self.pick(*SAFETY)
        fields["timeout_ms"] = self.pick(None, None, 2 * MINUTE)
        if not in_map and self.pick(0, 0, 1):
            fields["compensation"] = task(f"undo-{name}", retry_policy=self.retry(), service="undo-svc")
        if kind == "call":
            return call(name, self.pick(*BODIES), **fields)
        if kind == "notify":
            return notify(name, self.pick(*BODIES), **fields)
        return task(name, retry_policy=self.retry(), service=self.pick(*SERVICES), **fields)

    def retry(self) -> RetryPolicy:
        return RetryPolicy(max_attempts=self.pick(None, 1, 2), backoff_strategy="exponential")


def written_by(author: Author) -> ProtocolDefinition:
    steps = author.steps(0, False, 4)
    return ProtocolDefinition(
        protocol_id="RANDOM",
        version=1,
        request_type="RANDOM",
        steps=steps,
        policies=Policies(
            timeout_ms=author.pick(None, None, 30 * MINUTE),
            compensation=author.pick("auto", "manual"),
            compensate_on_cancel=author.pick(True, False),
            compensate_on_failure=author.pick(True, False),
        ),
        output_schema=author.pick({}, {}, {"type": "object"}),
    )


@st.composite
def protocols(draw: st.DrawFn) -> ProtocolDefinition:
    return written_by(Author(lambda options: draw(st.sampled_from(options))))


CLASSES = tuple(FailureClass)
