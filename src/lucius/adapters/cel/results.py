"""What an evaluation gives, as plain JSON; and what it complains about, as a sentence without anybody's values."""

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import cel_expr_python.cel as cel

from lucius.core.tools import ToolError

MAX_RESULT = 2_000_000
_PART = 16  # what a number, a list or a member costs of it; a text costs its length besides

# The library's complaints about values. Some of them quote a value, so none is passed on as it is.
_COMPLAINTS = (
    ("No matching overloads found : <jump_condition>", "the condition before ? is neither true nor false"),
    ("No matching overloads found", "an operator or function got a value of a type that it can't take"),
    ("Index error: expected integer", "a list is indexed by something other than an integer"),
    ("Index error", "an index is outside of its list"),
    ("index ", "a format has more placeholders than values"),
    ("Applying SELECT to non-message type", "a member is read of something that is not an object"),
    ("Invalid container type", "something that is neither a list nor an object is indexed"),
    ("Iteration budget exceeded", "it goes through more than 10,000 items"),
    ("integer overflow", "an integer gets too large"),
    ("Integer value", "an integer is too large"),
    ("timestamp overflow", "a time is too far away"),
    ("duration overflow", "a duration is too long"),
    ("divide by zero", "a division by zero"),
    ("modulus by zero", "a division by zero"),
    ("cannot convert string to int", "a text that is no integer can't become one"),
    ("cannot convert string to double", "a text that is no number can't become one"),
    ("String to Timestamp conversion failed", "a text is no timestamp such as 2030-01-31T12:00:00Z"),
    ("String to Duration conversion failed", "a text is no duration such as 90s or 1h30m"),
    ("Type conversion error", "a value can't be converted to the type asked for"),
    ("invalid regular expression", "a regular expression is malformed"),
    ("regular expression too large", "a regular expression is too large"),
    ("duplicate key in map", "a map has the same key twice"),
    ("optional.none() dereference", "an optional value is not there: use orValue(…)"),
)
_MISSING = re.compile(r'Key not found in map : "(.*)"', re.DOTALL)
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_NESTED = ("Expression recursion limit exceeded", "Exceeded max recursion depth")


def plain(value: cel.Value, expression: str) -> Any:
    """Raises ToolError for an error, and for what JSON has no word for."""
    if value.type() == cel.Type.ERROR:
        raise ToolError(complaint(_python(value), expression))
    return _Plain().of(value)


def _python(value: cel.Value) -> Any:
    try:
        return value.value()
    except TypeError:  # raised by the binding for what Python has no type for, such as an optional
        raise ToolError("its value is no JSON: an optional value needs orValue(…)") from None


class _Plain:
    """Turns values into JSON, and stops when it gets too much: a small expression can repeat a large value."""

    def __init__(self) -> None:
        self._left = MAX_RESULT

    def of(self, value: cel.Value) -> Any:
        found = _python(value)
        self._left -= _PART + (len(found) if isinstance(found, str) else 0)
        if self._left < 0:
            raise ToolError("its value is too large")
        match found:
            case None | bool() | int() | str():
                return found
            case float():
                return _finite(found)
            case list():
                return [self.of(item) for item in found]
            case dict():
                return {_key(key): self.of(item) for key, item in found.items()}
            case datetime():
                return found.astimezone(UTC).isoformat().replace("+00:00", "Z")
            case timedelta():
                return f"{found.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
            case _:
                raise ToolError(f"its value is no JSON but of the type {value.type().name().lower()}")


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ToolError("its value is no JSON: a number is infinite or not a number at all")
    return number


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ToolError("its value is no JSON: the keys of a map must be text")
    return key


def complaint(message: str, expression: str) -> str:
    """A sentence about a failed evaluation."""
    _, _, said = message.partition(": ")
    if missing := _MISSING.match(said):
        # A key that the author wrote is a name; any other is somebody's value.
        known = re.search(rf"(?<!\w){re.escape(missing[1])}(?!\w)", expression)
        return f"there is no {missing[1]}" if known and missing[1] else "a key is not there"
    return next((meaning for start, meaning in _COMPLAINTS if said.startswith(start)), "it can't be evaluated")


def syntax_fault(message: str) -> str:
    """A sentence about an expression that the library can't compile."""
    if any(text in message for text in _NESTED):
        return "is nested too deeply: at most 32 levels, and a chain of operators counts each of them"
    found = _PLACE.search(message)
    if found is None:
        return "is no CEL expression"
    line, column, said = found.groups()
    where = f"column {column}" if line == "1" else f"line {line}, column {column}"
    said = re.sub(r"^Syntax error: | \(in container '.*?'\)| expecting \{.*\}", "", said)
    return f"{said} ({where})"
