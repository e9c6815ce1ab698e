"""The random protocols of varied worlds are sound, and together they use every feature."""

import random
from collections import Counter

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.protocol import check_protocol
from tests.simulation.protocols import KINDS, draw_protocol

DRAWN = [draw_protocol(random.Random(seed), 1) for seed in range(600)]


def test_random_protocols_have_no_fatal_findings() -> None:
    tools = CelTools()
    findings = [finding for protocol in DRAWN for finding in check_protocol(protocol, tools) if finding.fatal]
    assert findings == []


def features(protocol: ProtocolDefinition) -> Counter[str]:
    found: Counter[str] = Counter([f"undone by {protocol.policies.compensation}"])
    for place in protocol.plan.places.values():
        spec, around = place.spec, protocol.plan.places.get(place.container or "")
        found[spec.kind] += 1
        found[spec.retry_safety] += 1
        found["a handler"] += place.handler_of is not None
        found["a wait for a signal"] += spec.wait is not None and spec.wait.signal is not None
        found["a way back"] += _leads_back(protocol, spec.step_id)
        found["on_failure"] += spec.on_failure is not None
        found["on_timeout"] += spec.on_timeout is not None
        found[f"{spec.kind} in {around.spec.kind if around else 'the job'}"] += 1
    return found


def _leads_back(protocol: ProtocolDefinition, name: str) -> bool:
    place = protocol.plan.places[name]
    spec = place.spec
    named = {spec.on_success, spec.on_failure, spec.on_timeout}
    named |= {choice.then for choice in spec.decision.choices} if spec.decision else set()
    others = (protocol.plan.places[target] for target in named if target in protocol.plan.places)
    return any(other.index <= place.index for other in others)


def test_random_protocols_cover_every_feature() -> None:
    found = sum(map(features, DRAWN), Counter[str]())
    kinds = [*KINDS, *(f"{inner} in {outer}" for inner in KINDS for outer in ("map", "parallel"))]
    safety = ["SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY", "SAFE_TO_RETRY_WITH_GUARD"]
    more = ["a handler", "a wait for a signal", "a way back", "on_failure", "on_timeout"]
    more += ["undone by auto", "undone by manual"]
    assert [name for name in (*kinds, *safety, *more) if found[name] < 5] == []
