"""Converts results of evaluations to plain JSON, and errors to sentences that quote no values."""

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import cel_expr_python.cel as cel

from lucius.core.model.tools import ToolError

MAX_RESULT_COST = 2_000_000
_PART = 16  # cost of each value; a text costs its length besides

# Start of the library's message → ours. The library may quote a value, so its text is never passed on.
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
    ("Type conversion error", "a value can't be converted to the requested type"),
    ("invalid regular expression", "a regular expression is malformed"),
    ("regular expression too large", "a regular expression is too large"),
    ("duplicate key in map", "a map has the same key twice"),
    ("optional.none() dereference", "an optional value is not there: use orValue(…)"),
)
_MISSING = re.compile(r'Key not found in map : "(.*)"', re.DOTALL)
_PLACE = re.compile(r"ERROR: <input>:(\d+):(\d+): (.*)")
_FRACTION = re.compile(r"\.([0-9]{1,9})Z$")
_COUNTED = re.compile(r"([0-9.]+)(h|ms|m|s|us|ns)")
_UNITS = {
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
}
_NESTED = ("Expression recursion limit exceeded", "Exceeded max recursion depth")


def plain(value: cel.Value, expression: str) -> Any:
    """Return a value as plain JSON. Raises ToolError for an error and for what JSON can't express."""
    if value.type() == cel.Type.ERROR:
        raise ToolError(complaint(_python(value), expression))
    return _Plain().of(value)


def _python(value: cel.Value) -> Any:
    try:
        return value.value()
    except TypeError:  # raised by the binding for types that Python lacks, such as an optional
        raise ToolError("its value is no JSON: an optional value needs orValue(…)") from None


class _Plain:
    """Turns values into JSON up to a limit: a small expression can repeat a large value."""

    def __init__(self) -> None:
        self._left = MAX_RESULT_COST

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
                return _timestamp(found, str(value))
            case timedelta():
                return _duration(str(value))
            case _:
                raise ToolError(f"its value is no JSON but of the type {value.type().name().lower()}")


def _timestamp(found: datetime, written: str) -> str:
    """Write a timestamp with all of its nanoseconds. Python's type ends at microseconds; the library's text doesn't."""
    fraction = _FRACTION.search(written)
    if fraction is None or len(fraction[1]) <= 6:
        return found.astimezone(UTC).isoformat().replace("+00:00", "Z")
    year, _, rest = written[: fraction.start()].partition("-")
    return f"{year.zfill(4)}-{rest}.{fraction[1].ljust(9, '0')}Z"


def _duration(written: str) -> str:
    """Write a duration in seconds with all of its nanoseconds, from the library's text: `-1h0.000000001s`."""
    total = sum((Decimal(count) * _UNITS[unit] for count, unit in _COUNTED.findall(written)), Decimal(0))
    text = f"{total:.9f}".rstrip("0").rstrip(".")
    return f"-{text}s" if written.startswith("-") else f"{text}s"


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ToolError("its value is no JSON: a number is infinite or not a number at all")
    return number


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ToolError("its value is no JSON: the keys of a map must be text")
    return key


def complaint(message: str, expression: str) -> str:
    """Return a sentence about a failed evaluation."""
    _, _, said = message.partition(": ")
    if missing := _MISSING.match(said):
        # A key in the expression's own text is a name; any other is private data.
        known = re.search(rf"(?<!\w){re.escape(missing[1])}(?!\w)", expression)
        return f"there is no {missing[1]}" if known and missing[1] else "a key is not there"
    return next((meaning for start, meaning in _COMPLAINTS if said.startswith(start)), "it can't be evaluated")


def syntax_fault(message: str) -> str:
    """Return a sentence about an expression that the library can't compile."""
    if any(text in message for text in _NESTED):
        return "is nested too deeply: at most 32 levels, and a chain of operators counts each of them"
    found = _PLACE.search(message)
    if found is None:
        return "is no CEL expression"
    line, column, said = found.groups()
    where = f"column {column}" if line == "1" else f"line {line}, column {column}"
    said = re.sub(r"^Syntax error: | \(in container '.*?'\)| expecting \{.*\}", "", said)
    return f"{said} ({where})"
