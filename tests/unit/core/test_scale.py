"""Long jobs: the cost of a step does not grow with the number of completed steps."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

import msgspec
import pytest

from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Applied, Decision, JobSnapshot, MissingSteps
from lucius.core.model.inputs import DeadlinePassed, HandedOver, Input, Retry, Start
from lucius.core.model.records import Job, Step
from lucius.core.model.statuses import JobStatus, StepStatus
from lucius.core.protocol.definition import ProtocolDefinition
from tests.unit.core.builders import Story
from tests.unit.core.invariants import MAX_ROWS
from tests.unit.core.shapes import call, decision, each, parallel, protocol, task
from tests.unit.core.spoken import Lease, failure, success

TIMES_AS_LONG = 4  # tolerance for the same work on a busy machine


class Cost(NamedTuple):
    """Cost of one decision: rows written, steps read, times it was repeated, bytes of the job's head, time."""

    rows: int
    read: int
    loads: int
    head: int
    nanos: int


class Ledger:
    """Keeps one job and loads for a decision only what that asks for."""

    job: Job

    def __init__(self, shape: ProtocolDefinition, items: int = 0) -> None:
        self.story = Story(shape, payload={"docs": [{"doc": n} for n in range(items)]})
        self.protocol = shape
        self.steps: dict[str, Step] = {}
        self.now = self.story.now
        self.costs: list[Cost] = []
        self._keep(decide_all(None, (self.story.submission(), Start()), self.now, self.story.env))

    def feed(self, happened: Input) -> Decision:
        asked = {*self.job.active}
        if (named := getattr(happened, "step_id", None)) is not None:
            asked.add(named)
        began, loads = perf_counter_ns(), 1
        while True:
            steps = {step_id: self.steps[step_id] for step_id in asked if step_id in self.steps}
            view = JobSnapshot(self.job, self.protocol, steps, frozenset(asked))
            try:
                made = decide_all(view, (happened,), self.now, self.story.env)
                break
            except MissingSteps as missing:
                asked |= missing.step_ids
                loads += 1
        nanos = perf_counter_ns() - began
        rows = 1 + sum(map(len, (made.steps, made.attempts, made.outbox, made.events, made.reviews)))
        self.costs.append(Cost(rows, len(steps), loads, len(msgspec.json.encode(made.job)), nanos))
        return self._keep(made)

    def _keep(self, made: Decision) -> Decision:
        self.job = made.job
        self.steps.update((step.step_id, step) for step in made.steps)
        return made

    def lease(self, step_id: str) -> Lease:
        attempt = self.steps[step_id].attempt
        return Lease(step_id, attempt.attempt_no, attempt.lease_id)

    def run(self, botched: frozenset[str] = frozenset()) -> None:
        """Complete steps one after the other until the job has ended."""
        while self.job.live:
            for step_id in self._dispatched():
                self.feed(HandedOver(*self.lease(step_id)))
                lease = self.lease(step_id)
                self.feed(failure(lease, code="X") if step_id in botched else success(lease, {"n": step_id}))
                if self.job.completed_at is not None:
                    return
            if self.job.due_at is not None:
                self.now = max(self.now, self.job.due_at)
                assert self.feed(DeadlinePassed()).reply == Applied()

    def _dispatched(self) -> Iterator[str]:
        for step_id in self.job.active:
            if self.steps[step_id].status is StepStatus.DISPATCHING:
                yield step_id


def assert_cost_does_not_grow(costs: list[Cost]) -> None:
    """Compare early and late costs. Both ends are left out: the first builds the list, the last joins the results."""
    middle = costs[20:-20]
    early, late = middle[: len(middle) // 4], middle[-len(middle) // 4 :]
    for name in ("rows", "read", "loads"):
        was, became = (sum(getattr(cost, name) for cost in part) / len(part) for part in (early, late))
        assert became <= was * 1.05 + 0.05, f"{name}: {was} became {became}"
    assert max(cost.head for cost in late) <= max(cost.head for cost in early) * 1.05
    assert median(cost.nanos for cost in late) < TIMES_AS_LONG * median(cost.nanos for cost in early)


BODIES = {
    "a task": (task("x"),),
    "a call that reads its item": (call("x", {"doc": "${item.doc}"}),),
    "two tasks and a decision": (task("w"), decision("d", {"steps.w.result.n != ''": "x"}), task("x")),
    "two branches": (parallel("p", task("x"), task("y")),),
}


@pytest.mark.parametrize("body", BODIES)
def test_cost_per_item_of_a_map_over_1000_items_does_not_grow(body: str) -> None:
    ledger = Ledger(protocol(each("m", "input.docs", *BODIES[body], at_once=4), task("z")), items=1000)
    ledger.run()
    assert ledger.job.status is JobStatus.SUCCEEDED
    assert ledger.steps["m"].result["succeeded"] == 1000
    assert all(cost.rows <= MAX_ROWS for cost in ledger.costs)
    assert_cost_does_not_grow(ledger.costs)


def test_only_the_join_reads_every_item() -> None:
    ledger = Ledger(protocol(each("m", "input.docs", task("x"), at_once=8)), items=1000)
    ledger.run()
    *before, join = ledger.costs
    assert join.read >= 1000
    assert max(cost.read for cost in before) < 40
    assert join.loads <= 3


def test_cost_per_step_of_200_sequential_steps_does_not_grow() -> None:
    ledger = Ledger(protocol(*(task(f"s{n}") for n in range(200))))
    ledger.run()
    assert ledger.job.status is JobStatus.SUCCEEDED
    assert all(cost.rows <= MAX_ROWS for cost in ledger.costs)
    assert_cost_does_not_grow(ledger.costs)


def test_a_loop_of_1000_visits_costs_the_same_each_time() -> None:
    shape = protocol(
        task("ask", max_visits=1000),
        decision("again", {"steps.ask.status == 'SUCCEEDED'": "ask"}, max_visits=1000),
    )
    ledger = Ledger(shape)
    ledger.run()
    assert ledger.job.error is not None
    assert ledger.job.error.code == "VISIT_LIMIT"
    assert_cost_does_not_grow(ledger.costs)


def test_retry_of_a_failed_map_of_1000_items_repeats_few_items() -> None:
    ledger = Ledger(protocol(each("m", "input.docs", task("w"), task("x"), at_once=32)), items=1000)
    ledger.run(botched=frozenset({"x.900"}))
    assert ledger.job.status == "FAILED_FINAL"
    done = sum(step.status is StepStatus.SUCCEEDED for step in ledger.steps.values())
    ledger.costs.clear()
    ledger.feed(Retry(by="ada"))
    ledger.run()
    assert ledger.job.status is JobStatus.SUCCEEDED
    tried_again = [step_id for step_id, step in ledger.steps.items() if step.attempt.attempt_no > 1]
    assert len(tried_again) <= 33
    assert done > 1700
    assert all(cost.rows <= MAX_ROWS for cost in ledger.costs)
    assert max(cost.loads for cost in ledger.costs) <= 4
