"""The arguments of `lucius simulate` as a script. What is wrong with one is told with the option it came by."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from lucius.authoring.script import Answers, Asked, Ballot, Fails, Script, Silence, Silent, Told, usual_silence
from lucius.cli.errors import Misused
from lucius.core.model import FailureClass, Instant, Millis
from lucius.core.protocol import Protocol

T = TypeVar("T")
U = TypeVar("U")

MAX_TIMES = 1_000
_UNITS = {"": 1_000, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_AT = re.compile(r"(.*)@(\d+(?:\.\d+)?[a-z]*)", re.DOTALL)


Given = Iterable[str] | None


def script_of(
    protocol: Protocol,
    *,
    fail: Given,
    timeout: Given,
    result: Given,
    respond: Given,
    guard: Given,
    lasts: Given,
    approve: Given,
    reject: Given,
    signal: Given,
    asked: tuple[Asked, ...],
) -> Script:
    """Raises Misused. Of what is said about one step, timeouts come before failures, and a no before any yes."""
    results, responses = _by_step("--result", result, _result), _by_step("--respond", respond, _response)
    if both := sorted(results.keys() & responses.keys()):
        raise Misused(f"--result and --respond both say how {both[0]} is answered; say it in one of them")
    timeouts = _by_step("--timeout", timeout, _silence_in(protocol))
    failures = _by_step("--fail", fail, _failure)
    durations = _by_step("--duration", lasts, _duration)
    return Script(
        troubles=_joined(timeouts, failures),
        answers={**results, **responses},
        guards=_by_step("--guard", guard, _response),
        durations={step_id: told[-1] for step_id, told in durations.items()},
        ballots=_joined(_by_step("--reject", reject, _no), _by_step("--approve", approve, _yes)),
        signals=tuple(_signal("--signal", text) for text in signal or ()),
        asked=asked,
    )


def _by_step(option: str, given: Given, read: Callable[[str, str], tuple[str, list[T]]]) -> dict[str, tuple[T, ...]]:
    """Everything that an option says, by step and in order."""
    found: dict[str, tuple[T, ...]] = {}
    for text in given or ():
        step_id, told = read(option, text)
        found[step_id] = (*found.get(step_id, ()), *told)
    return found


def _joined(first: Mapping[str, tuple[T, ...]], then: Mapping[str, tuple[U, ...]]) -> dict[str, tuple[T | U, ...]]:
    return {step_id: (*first.get(step_id, ()), *then.get(step_id, ())) for step_id in {**first, **then}}


def _failure(option: str, text: str) -> tuple[str, list[Fails]]:
    """STEP:CLASS[:TIMES]"""
    step_id, *parts = text.split(":")
    if not 1 <= len(parts) <= 2:
        raise Misused(f"{option} {text}: must be STEP:CLASS or STEP:CLASS:TIMES")
    try:
        cause = FailureClass(parts[0].upper())
    except ValueError:
        raise Misused(f"{option} {text}: the class must be one of {', '.join(FailureClass)}") from None
    return step_id, [Fails(cause)] * _times(option, text, parts[1:])


def _silence_in(protocol: Protocol) -> Callable[[str, str], tuple[str, list[Silent]]]:
    def read(option: str, text: str) -> tuple[str, list[Silent]]:
        """STEP[:ack|lease|step][:TIMES]"""
        step_id, *parts = text.split(":")
        until: Silence = usual_silence(protocol, step_id)
        if parts and not parts[0].isdecimal():
            until = _silence(option, text, parts.pop(0))
        if len(parts) > 1:
            raise Misused(f"{option} {text}: must be STEP, STEP:ack|lease|step or STEP:ack|lease|step:TIMES")
        return step_id, [Silent(until)] * _times(option, text, parts)

    return read


def _silence(option: str, text: str, word: str) -> Silence:
    match word:
        case "ack" | "lease" | "step":
            return word
        case _:
            raise Misused(f"{option} {text}: {word} must be ack, lease or step")


def _times(option: str, text: str, parts: list[str]) -> int:
    if not parts:
        return 1
    if not parts[0].isdecimal() or not 1 <= int(parts[0]) <= MAX_TIMES:
        raise Misused(f"{option} {text}: how often must be a number from 1 to {MAX_TIMES}")
    return int(parts[0])


def _result(option: str, text: str) -> tuple[str, list[Answers]]:
    """STEP=JSON"""
    step_id, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"{option} {text}: must be STEP=JSON")
    return step_id, [Answers(json_value(option, value))]


def _response(option: str, text: str) -> tuple[str, list[Answers]]:
    """STEP=STATUS[:JSON]"""
    step_id, _, rest = text.partition("=")
    status, colon, body = rest.partition(":")
    if not status.isdecimal() or not 100 <= int(status) <= 599:
        raise Misused(f"{option} {text}: must be STEP=STATUS or STEP=STATUS:JSON, as in post=409")
    return step_id, [Answers(json_value(option, body) if colon else None, int(status))]


def _yes(option: str, text: str) -> tuple[str, list[Ballot]]:
    return _ballot(option, text, approves=True)


def _no(option: str, text: str) -> tuple[str, list[Ballot]]:
    return _ballot(option, text, approves=False)


def _ballot(option: str, text: str, *, approves: bool) -> tuple[str, list[Ballot]]:
    """STEP[=WHO[:GROUP…]][@TIME]"""
    rest, at = _at(text)
    step_id, equals, who = rest.partition("=")
    name, *groups = who.split(":")
    if equals and not name:
        raise Misused(f"{option} {text}: must be STEP, STEP=WHO or STEP=WHO:GROUP")
    return step_id, [Ballot(approves, name or None, tuple(groups), at)]


def _signal(option: str, text: str) -> Told:
    """NAME[=JSON][@TIME]"""
    rest, at = _at(text)
    name, equals, value = rest.partition("=")
    return Told(name, json_value(option, value) if equals else None, at)


def _duration(option: str, text: str) -> tuple[str, list[Millis]]:
    """STEP=SECONDS"""
    step_id, equals, value = text.partition("=")
    if not equals:
        raise Misused(f"{option} {text}: must be STEP=SECONDS")
    return step_id, [millis(option, value)]


def asked_of(pauses: Given, resumes: Given, cancels: Given) -> tuple[Asked, ...]:
    return (
        *(Asked("pause", millis("--pause-at", at)) for at in pauses or ()),
        *(Asked("resume", millis("--resume-at", at)) for at in resumes or ()),
        *(Asked("cancel", millis("--cancel-at", at)) for at in cancels or ()),
    )


def millis(option: str, text: str) -> Millis:
    """Seconds, or a number with a unit: 90, 1.5s, 10m, 2h, 7d."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = _UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise Misused(f"{option} {text}: must be seconds, or a number with ms, s, m, h or d")
    return round(float(found[1]) * unit)


def instant(option: str, text: str) -> Instant:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Misused(f"{option} {text}: must be an instant such as 2026-01-01T00:00:00Z") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def json_value(option: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Misused(f"{option}: this is not JSON: {text} ({error})") from None


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _at(text: str) -> tuple[str, Millis | None]:
    """What comes before the last `@`, and when it is to happen."""
    found = _AT.fullmatch(text)
    return (found[1], millis("@", found[2])) if found else (text, None)
