"""A protocol as a graph: the flow of each list of steps, with containers that hold flows of their own.

An edge never leaves its list, so a graph is a tree of small flat ones. A writer draws one after the other.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from lucius.authoring.edges import OutgoingEdge, outgoing_edges
from lucius.authoring.formatting import any_of, duration, host
from lucius.core.protocol.definition import FAIL, SUCCEED, Place, Plan, ProtocolDefinition, StepSpec

START = "START"
NodeKind = Literal[
    "task",
    "decision",
    "wait",
    "external_call",
    "notify",
    "human_approval",
    "parallel",
    "map",
    "start",
    "succeed",
    "fail",
]
EdgeKind = Literal["flow", "choice", "failure"]


class Node(Struct, frozen=True, kw_only=True):
    """A step, or the start or an end of a flow. `notes` are lines below its title."""

    id: str
    kind: NodeKind
    title: str
    notes: tuple[str, ...] = ()
    inner: tuple["Flow", ...] = ()
    handler: "Node | None" = None


class Edge(Struct, frozen=True):
    source: str
    target: str
    kind: EdgeKind = "flow"
    label: str = ""


class Flow(Struct, frozen=True):
    """One list of steps; `name` is that of a parallel's branch."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class Graph(Struct, frozen=True):
    title: str
    notes: tuple[str, ...]
    flow: Flow


def graph_of(protocol: ProtocolDefinition) -> Graph:
    flow = _flow(protocol.plan, "", protocol.steps, ("succeeded", "failed"))
    start = Node(id=START, kind="start", title="")
    first = Edge(START, protocol.steps[0].step_id)
    whole = Flow("", (start, *flow.nodes), (first, *flow.edges))
    title = f"{protocol.request_type} version {protocol.version}"
    return Graph(f"{title}: {protocol.title}" if protocol.title else title, _policy_notes(protocol), whole)


def _policy_notes(protocol: ProtocolDefinition) -> tuple[str, ...]:
    policies, notes = protocol.policies, []
    if policies.timeout_ms:
        notes.append(f"fails with JOB_TIMEOUT after {duration(policies.timeout_ms)}")
    if any(place.handler_of is not None for place in protocol.plan.places.values()):
        when = "immediately" if policies.compensation == "auto" else "after an operator's decision"
        notes.append(f"completed steps are undone {when}, the last one first")
    return (*notes, "without a dashed arrow, a step's final failure fails the job; inside a box, its branch or item")


def _flow(plan: Plan, name: str, steps: tuple[StepSpec, ...], ends: tuple[str, str]) -> Flow:
    edges = [edge for spec in steps for edge in _edges(plan.places[spec.step_id])]
    if not _shows_success(plan, steps):
        edges = [edge for edge in edges if edge.target != SUCCEED]
    again = {edge.target for edge in edges if _goes_back(plan, edge)}
    nodes = [_node(plan, spec, spec.step_id in again) for spec in steps]
    reached = {edge.target for edge in edges}
    if SUCCEED in reached:
        nodes.append(Node(id=SUCCEED, kind="succeed", title=ends[0]))
    if FAIL in reached:
        nodes.append(Node(id=FAIL, kind="fail", title=ends[1]))
    return Flow(name, tuple(nodes), tuple(edges))


def _shows_success(plan: Plan, steps: tuple[StepSpec, ...]) -> bool:
    """Return whether a flow shows its success: in a container, only if it can end before its last step."""
    if plan.places[steps[0].step_id].container is None:
        return True
    return any(edge.target == SUCCEED for spec in steps[:-1] for edge in outgoing_edges(plan.places[spec.step_id]))


def _goes_back(plan: Plan, edge: Edge) -> bool:
    target = plan.places.get(edge.target)
    return target is not None and target.index <= plan.places[edge.source].index


def _edges(place: Place) -> Iterator[Edge]:
    """Yield the edges of a step. Default failure edges are not drawn."""
    source, found = place.spec.step_id, outgoing_edges(place)
    for edge in found:
        match edge.trigger:
            case "success":
                yield Edge(source, edge.target)
            case "choice":
                yield Edge(source, edge.target, "choice", edge.when)
            case "otherwise":
                yield Edge(source, edge.target, "choice", "otherwise")
            case "failure" | "timeout":
                pass
    yield from _failure_edges(place, *found[-2:])


def _failure_edges(place: Place, failure: OutgoingEdge, timeout: OutgoingEdge) -> Iterator[Edge]:
    spec = place.spec
    failed = "rejected" if spec.kind == "human_approval" else "failure"
    limit = spec.timeout_ms if spec.kind in ("human_approval", "wait") else None
    late = f"timeout after {duration(limit)}" if limit else "timeout"
    waits = spec.wait is not None and spec.wait.signal is not None
    if waits and (failure.is_explicit or timeout.is_explicit):
        yield Edge(spec.step_id, timeout.target, "failure", late)
        return
    may_time_out = spec.kind in ("task", "external_call", "notify") or limit is not None
    if failure.is_explicit and may_time_out and failure.target == timeout.target:
        yield Edge(spec.step_id, failure.target, "failure", f"{failed} or timeout")
        return
    if failure.is_explicit:
        yield Edge(spec.step_id, failure.target, "failure", failed)
    if timeout.is_explicit:
        yield Edge(spec.step_id, timeout.target, "failure", late)


def _node(plan: Plan, spec: StepSpec, visited_again: bool) -> Node:
    notes = [*_notes(spec), *_safety_notes(spec)]
    if visited_again:
        notes.append(f"at most {spec.max_visits} visits")
    handler = spec.compensation
    return Node(
        id=spec.step_id,
        kind=spec.kind,
        title=spec.step_id,
        notes=tuple(notes),
        inner=tuple(_inner(plan, spec)),
        handler=_node(plan, handler, visited_again=False) if handler is not None else None,
    )


def _inner(plan: Plan, spec: StepSpec) -> Iterator[Flow]:
    if spec.parallel is not None:
        for name, steps in spec.parallel.branches.items():
            yield _flow(plan, name, steps, ("branch done", "branch fails"))
    if spec.map is not None:
        yield _flow(plan, "", spec.map.steps, ("item done", "item fails"))


def _notes(spec: StepSpec) -> list[str]:
    """Describe the step in a line or two."""
    if spec.external_call is not None:
        return [f"{spec.external_call.method} {host(spec.external_call.url)}"]
    if spec.notify is not None:
        return [f"notifies {host(spec.notify.url)}"]
    if spec.wait is not None:
        return [_wait_note(spec)]
    if spec.human_approval is not None:
        asked = spec.human_approval
        quorum = f"{asked.quorum} of " if asked.quorum > 1 else ""
        return [f"approval by {quorum}{any_of(asked.approvers)}"]
    if spec.parallel is not None:
        return [f"all at once, {_JOINS[spec.parallel.join]}"]
    if spec.map is not None:
        return [f"for each of {spec.map.items}", f"max {spec.map.max_parallel} at once, {_JOINS[spec.map.join]}"]
    return ["decision"] if spec.decision is not None else [f"task for {spec.service}"]


_JOINS = {"fail_fast": "the first failure ends it", "collect": "failures are collected"}


def _wait_note(spec: StepSpec) -> str:
    wait = spec.wait
    assert wait is not None, "a wait has a timer or a signal"
    if wait.signal is not None:
        return f"waits for signal {wait.signal}"
    return f"waits {duration(wait.duration_ms)}" if wait.duration_ms is not None else f"waits until {wait.until}"


def _safety_notes(spec: StepSpec) -> list[str]:
    match spec.retry_safety:
        case "NOT_SAFE_TO_RETRY":
            return ["never retried"]
        case "SAFE_TO_RETRY_WITH_GUARD":
            return ["calls its guard before a retry"]
        case _:
            return []
