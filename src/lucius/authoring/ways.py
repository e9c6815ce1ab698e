"""Where a step leads: the arrows of a protocol, as the core follows them."""

from typing import Literal

from msgspec import Struct

from lucius.core.protocol import FAIL, Place

By = Literal["success", "choice", "otherwise", "failure", "timeout"]


class Way(Struct, frozen=True):
    """`target` is a step of the same list, SUCCEED or FAIL; `said` is False for what the protocol leaves unsaid."""

    target: str
    by: By
    when: str = ""
    said: bool = True


def ways(place: Place) -> list[Way]:
    """Every way out of a step. What ends a handler is not the protocol's to say."""
    spec = place.spec
    if place.handler_of is not None:
        return []
    found: list[Way] = []
    if spec.decision is not None:
        found += [Way(choice.then, "choice", choice.when) for choice in spec.decision.choices]
        found.append(Way(spec.decision.otherwise, "otherwise"))
    else:
        found.append(Way(spec.on_success or place.following, "success", said=spec.on_success is not None))
    failure = Way(spec.on_failure or FAIL, "failure", said=spec.on_failure is not None)
    found.append(failure)
    found.append(Way(spec.on_timeout or failure.target, "timeout", said=spec.on_timeout is not None))
    return found


def way(place: Place, by: By) -> Way | None:
    return next((found for found in ways(place) if found.by == by), None)
