"""Outgoing edges of a step, as the core follows them."""

from typing import Literal

from msgspec import Struct

from lucius.core.protocol.definition import FAIL, Place

Trigger = Literal["success", "choice", "otherwise", "failure", "timeout"]


class OutgoingEdge(Struct, frozen=True):
    """`target` is a step of the same list, SUCCEED or FAIL; `is_explicit` is False for a default."""

    target: str
    trigger: Trigger
    when: str = ""
    is_explicit: bool = True


def outgoing_edges(place: Place) -> list[OutgoingEdge]:
    """Return the outgoing edges of a step. Handlers have none: a protocol can't set what follows them."""
    spec = place.spec
    if place.handler_of is not None:
        return []
    found: list[OutgoingEdge] = []
    if spec.decision is not None:
        found += [OutgoingEdge(choice.then, "choice", choice.when) for choice in spec.decision.choices]
        found.append(OutgoingEdge(spec.decision.otherwise, "otherwise"))
    else:
        found.append(
            OutgoingEdge(spec.on_success or place.following, "success", is_explicit=spec.on_success is not None)
        )
    failure = OutgoingEdge(spec.on_failure or FAIL, "failure", is_explicit=spec.on_failure is not None)
    found.append(failure)
    found.append(OutgoingEdge(spec.on_timeout or failure.target, "timeout", is_explicit=spec.on_timeout is not None))
    return found


def outgoing_edge(place: Place, trigger: Trigger) -> OutgoingEdge | None:
    return next((found for found in outgoing_edges(place) if found.trigger == trigger), None)
