"""Script of a simulation: answers of services, votes, signals and operator actions."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct, field

from lucius.core.model.records import Millis
from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import Approval, ProtocolDefinition, StepSpec, spec_id

Silence = Literal["ack", "lease", "step"]
T = TypeVar("T")


class ScriptError(Exception):
    """Raised if a script does not fit the protocol. The message is for its author."""


class ScriptedFailure(Struct, frozen=True):
    """An attempt that ends with a failure."""

    failure_class: FailureClass


class ScriptedSilence(Struct, frozen=True):
    """An attempt that is never acknowledged, loses its lease, or runs until its time limit."""

    until: Silence


class ScriptedAnswer(Struct, frozen=True):
    """Answer to an attempt: the result of a task, or a call's status and body."""

    body: Any = None
    status: int = 200


class Ballot(Struct, frozen=True):
    """A vote. Without `by`, as many people vote as needed. Without `at`, they vote a while after the request."""

    approves: bool
    by: str | None = None
    groups: tuple[str, ...] = ()
    at: Millis | None = None


class ScriptedSignal(Struct, frozen=True):
    """A signal. Without `at`, it is sent a while after a step starts to wait for it."""

    name: str
    payload: Any = None
    at: Millis | None = None


class ScriptedAct(Struct, frozen=True):
    what: Literal["pause", "resume", "cancel"]
    at: Millis


class Script(Struct, frozen=True, kw_only=True):
    """Behaviour by step: `ocr` means that step in every map item, `ocr.3` only in the fourth.

    An attempt takes the next of `failures`; after these the next of `answers`, whose last one repeats.
    """

    failures: Mapping[str, tuple[ScriptedFailure | ScriptedSilence, ...]] = field(default_factory=dict)
    answers: Mapping[str, tuple[ScriptedAnswer, ...]] = field(default_factory=dict)
    guards: Mapping[str, tuple[ScriptedAnswer, ...]] = field(default_factory=dict)
    durations: Mapping[str, Millis] = field(default_factory=dict)
    ballots: Mapping[str, tuple[Ballot, ...]] = field(default_factory=dict)
    signals: tuple[ScriptedSignal, ...] = ()
    acts: tuple[ScriptedAct, ...] = ()


def for_step(by_step: Mapping[str, T], step_id: str) -> T | None:
    return by_step.get(step_id, by_step.get(spec_id(step_id)))


def default_silence(protocol: ProtocolDefinition, step_id: str) -> Silence:
    """Return how a step times out by default: by its own limit, and without one by its lease."""
    spec = _known(protocol, step_id)
    return "lease" if spec is not None and spec.kind == "task" and not spec.timeout_ms else "step"


def check(script: Script, protocol: ProtocolDefinition) -> None:
    """Raise ScriptError if the script does not fit the protocol."""
    for step_id, failures in script.failures.items():
        spec = _spec(protocol, step_id, _DISPATCHED, "can't fail or time out by itself")
        for failure in failures:
            if isinstance(failure, ScriptedSilence):
                _check_silence(spec, failure.until)
    for step_id in script.answers:
        _spec(protocol, step_id, _DISPATCHED, "takes no answer")
    for step_id in script.durations:
        _spec(protocol, step_id, _DISPATCHED, "takes no time of its own")
    for step_id in script.guards:
        spec = _spec(protocol, step_id, frozenset({"external_call"}), "has no guard")
        if spec.external_call is None or spec.external_call.guard is None:
            raise ScriptError(f"step {step_id} has no guard")
    for step_id in script.ballots:
        _spec(protocol, step_id, frozenset({"human_approval"}), "is not voted on")
    _check_signals(script, protocol)


_DISPATCHED = frozenset({"task", "external_call", "notify"})


def _spec(protocol: ProtocolDefinition, step_id: str, kinds: frozenset[str], why: str) -> StepSpec:
    spec = _known(protocol, step_id)
    if spec is None:
        known = ", ".join(protocol.plan.places)
        raise ScriptError(f"there is no step {step_id}; there are {known}")
    if spec.kind not in kinds:
        raise ScriptError(f"step {step_id} ({spec.kind}) {why}")
    return spec


def _known(protocol: ProtocolDefinition, step_id: str) -> StepSpec | None:
    """Return the step, or None. Item numbers are valid only for steps that are inside as many maps."""
    spec, _, items = step_id.partition(".")
    place = protocol.plan.places.get(spec)
    if place is None or (items and len(items.split(".")) != place.maps):
        return None
    return place.spec if all(item.isdecimal() for item in items.split(".") if items) else None


def _check_silence(spec: StepSpec, until: Silence) -> None:
    if spec.kind != "task" and until == "ack":
        raise ScriptError(f"step {spec.step_id} ({spec.kind}) is done by the engine itself, without an ACK")
    if spec.kind == "task" and until == "step" and not spec.timeout_ms:
        raise ScriptError(f"step {spec.step_id} has no timeout_ms; it can lose its lease, as in {spec.step_id}:lease")


def _check_signals(script: Script, protocol: ProtocolDefinition) -> None:
    specs = [place.spec for place in protocol.plan.places.values()]
    known = sorted({spec.wait.signal for spec in specs if spec.wait is not None and spec.wait.signal})
    for signal in script.signals:
        if signal.name not in known:
            raise ScriptError(f"no step waits for a signal {signal.name}; known: {', '.join(known) or 'none'}")


def voters(ballot: Ballot, approval: Approval) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the voters of a ballot, each with the groups they are in."""
    if ballot.by is not None:
        yield ballot.by, ballot.groups
        return
    for number in range(approval.quorum if ballot.approves else 1):
        turn, which = divmod(number, len(approval.approvers))
        name = approval.approvers[which]
        yield (name if turn == 0 else f"{name}-{turn + 1}"), (name,)
