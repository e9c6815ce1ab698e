"""Parses the arguments of `lucius simulate` into a script. Errors name the option they are about."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from lucius.authoring.script import (
    Ballot,
    Script,
    ScriptedAct,
    ScriptedAnswer,
    ScriptedFailure,
    ScriptedSignal,
    ScriptedSilence,
    Silence,
    default_silence,
)
from lucius.cli.durations import parse_duration
from lucius.cli.errors import Misused
from lucius.cli.json_options import parse_json
from lucius.core.model.records import Instant, Millis
from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import ProtocolDefinition

T = TypeVar("T")
U = TypeVar("U")

MAX_TIMES = 1_000
_AT = re.compile(r"(.*)@(\d+(?:\.\d+)?[a-z]*)", re.DOTALL)


OptionValues = Iterable[str] | None


def script_of(
    protocol: ProtocolDefinition,
    *,
    fail: OptionValues,
    timeout: OptionValues,
    result: OptionValues,
    respond: OptionValues,
    guard: OptionValues,
    durations: OptionValues,
    approve: OptionValues,
    reject: OptionValues,
    signal: OptionValues,
    acts: tuple[ScriptedAct, ...],
) -> Script:
    """Return the script. Raises Misused.

    For one step, timeouts come before failures, and rejections before approvals.
    """
    results, responses = _by_step("--result", result, _result), _by_step("--respond", respond, _response)
    if both := sorted(results.keys() & responses.keys()):
        raise Misused(f"--result and --respond both set the answer of {both[0]}; use only one of them")
    timeouts = _by_step("--timeout", timeout, _timeout_parser(protocol))
    failures = _by_step("--fail", fail, _failure)
    durations_by_step = _by_step("--duration", durations, _duration)
    return Script(
        failures=_merge_by_step(timeouts, failures),
        answers={**results, **responses},
        guards=_by_step("--guard", guard, _response),
        durations={step_id: values[-1] for step_id, values in durations_by_step.items()},
        ballots=_merge_by_step(_by_step("--reject", reject, _rejection), _by_step("--approve", approve, _approval)),
        signals=tuple(_signal("--signal", text) for text in signal or ()),
        acts=acts,
    )


def _by_step(
    option: str, given: OptionValues, read: Callable[[str, str], tuple[str, list[T]]]
) -> dict[str, tuple[T, ...]]:
    """Return all values of an option by step, in order."""
    by_step: dict[str, tuple[T, ...]] = {}
    for text in given or ():
        step_id, values = read(option, text)
        by_step[step_id] = (*by_step.get(step_id, ()), *values)
    return by_step


def _merge_by_step(
    first: Mapping[str, tuple[T, ...]], then: Mapping[str, tuple[U, ...]]
) -> dict[str, tuple[T | U, ...]]:
    return {step_id: (*first.get(step_id, ()), *then.get(step_id, ())) for step_id in {**first, **then}}


def _failure(option: str, text: str) -> tuple[str, list[ScriptedFailure]]:
    """STEP:CLASS[:TIMES]"""
    step_id, *parts = text.split(":")
    if not 1 <= len(parts) <= 2:
        raise Misused(f"{option} {text}: must be STEP:CLASS or STEP:CLASS:TIMES")
    try:
        cause = FailureClass(parts[0].upper())
    except ValueError:
        raise Misused(f"{option} {text}: the class must be one of {', '.join(FailureClass)}") from None
    return step_id, [ScriptedFailure(cause)] * _times(option, text, parts[1:])


def _timeout_parser(protocol: ProtocolDefinition) -> Callable[[str, str], tuple[str, list[ScriptedSilence]]]:
    def read(option: str, text: str) -> tuple[str, list[ScriptedSilence]]:
        """STEP[:ack|lease|step][:TIMES]"""
        step_id, *parts = text.split(":")
        until: Silence = default_silence(protocol, step_id)
        if parts and not parts[0].isdecimal():
            until = _timeout_kind(option, text, parts.pop(0))
        if len(parts) > 1:
            raise Misused(f"{option} {text}: must be STEP, STEP:ack|lease|step or STEP:ack|lease|step:TIMES")
        return step_id, [ScriptedSilence(until)] * _times(option, text, parts)

    return read


def _timeout_kind(option: str, text: str, word: str) -> Silence:
    match word:
        case "ack" | "lease" | "step":
            return word
        case _:
            raise Misused(f"{option} {text}: {word} must be ack, lease or step")


def _times(option: str, text: str, parts: list[str]) -> int:
    if not parts:
        return 1
    if not parts[0].isdecimal() or not 1 <= int(parts[0]) <= MAX_TIMES:
        raise Misused(f"{option} {text}: TIMES must be a number from 1 to {MAX_TIMES}")
    return int(parts[0])


def _result(option: str, text: str) -> tuple[str, list[ScriptedAnswer]]:
    """STEP=JSON"""
    step_id, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"{option} {text}: must be STEP=JSON")
    return step_id, [ScriptedAnswer(parse_json(option, value))]


def _response(option: str, text: str) -> tuple[str, list[ScriptedAnswer]]:
    """STEP=STATUS[:JSON]"""
    step_id, _, rest = text.partition("=")
    status, colon, body = rest.partition(":")
    if not status.isdecimal() or not 100 <= int(status) <= 599:
        raise Misused(f"{option} {text}: must be STEP=STATUS or STEP=STATUS:JSON, for example post=409")
    return step_id, [ScriptedAnswer(parse_json(option, body) if colon else None, int(status))]


def _approval(option: str, text: str) -> tuple[str, list[Ballot]]:
    return _ballot(option, text, approves=True)


def _rejection(option: str, text: str) -> tuple[str, list[Ballot]]:
    return _ballot(option, text, approves=False)


def _ballot(option: str, text: str, *, approves: bool) -> tuple[str, list[Ballot]]:
    """STEP[=WHO[:GROUP…]][@TIME]"""
    rest, at = _at(text)
    step_id, equals, who = rest.partition("=")
    name, *groups = who.split(":")
    if equals and not name:
        raise Misused(f"{option} {text}: must be STEP, STEP=WHO or STEP=WHO:GROUP")
    return step_id, [Ballot(approves, name or None, tuple(groups), at)]


def _signal(option: str, text: str) -> ScriptedSignal:
    """NAME[=JSON][@TIME]"""
    rest, at = _at(text)
    name, equals, value = rest.partition("=")
    return ScriptedSignal(name, parse_json(option, value) if equals else None, at)


def _duration(option: str, text: str) -> tuple[str, list[Millis]]:
    """STEP=SECONDS"""
    step_id, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"{option} {text}: must be STEP=SECONDS")
    return step_id, [millis(option, value)]


def asked_of(pauses: OptionValues, resumes: OptionValues, cancels: OptionValues) -> tuple[ScriptedAct, ...]:
    return (
        *(ScriptedAct("pause", millis("--pause-at", at)) for at in pauses or ()),
        *(ScriptedAct("resume", millis("--resume-at", at)) for at in resumes or ()),
        *(ScriptedAct("cancel", millis("--cancel-at", at)) for at in cancels or ()),
    )


def millis(option: str, text: str) -> Millis:
    """Parse seconds, or a number with a unit: 90, 1.5s, 10m, 2h, 7d. Raises Misused."""
    found = parse_duration(text.lower(), default_unit="s")
    if found is None:
        raise Misused(f"{option} {text}: must be seconds, or a number with ms, s, m, h or d")
    return found


def instant(option: str, text: str) -> Instant:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Misused(f"{option} {text}: must be a time such as 2026-01-01T00:00:00Z") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _at(text: str) -> tuple[str, Millis | None]:
    """Return the text before the last `@`, and the time after it."""
    found = _AT.fullmatch(text)
    return (found[1], millis("@", found[2])) if found else (text, None)
