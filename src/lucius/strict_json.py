"""Decodes JSON that a user gave, and refuses what other decoders read differently or encoders change silently."""

import json
import math
from pathlib import Path
from typing import Any

MAX_SHOWN_CHARACTERS = 64


def decode_strictly(text: str) -> Any:
    """Decode JSON without duplicate members and with finite numbers only. Raises ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_members, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_option(option: str, given: str) -> Any:
    """Decode the value of an option, JSON or @FILE. Raises ValueError with the whole message."""
    where = option
    if given.startswith("@"):
        where = given[1:]
        try:
            given = Path(where).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"can't read {option} from {where}: {error}") from error
    try:
        return decode_strictly(given)
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error


def decode_object_option(option: str, given: str) -> dict[str, Any]:
    """Decode the value of an option that must be an object, JSON or @FILE. Raises ValueError with the whole message."""
    value = decode_option(option, given)
    if not isinstance(value, dict):
        raise ValueError(f"{option} must be a JSON object")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"an object has the member {json.dumps(name[:MAX_SHOWN_CHARACTERS])} twice")
        members[name] = value
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:MAX_SHOWN_CHARACTERS]} is larger than a JSON number may be")
    return number
