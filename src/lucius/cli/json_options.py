"""Options that take JSON."""

from typing import Any

from lucius.cli.errors import Misused
from lucius.strict_json import decode_object_option, decode_option, decode_strictly


def parse_json(option: str, text: str) -> Any:
    """Decode JSON. Raises Misused."""
    try:
        return decode_strictly(text)
    except ValueError as error:
        raise Misused(f"{option} is not JSON: {error}") from error


def read_json(option: str, given: str) -> Any:
    """Decode JSON or @FILE. Raises Misused."""
    try:
        return decode_option(option, given)
    except ValueError as error:
        quotes = "; text needs quotes of its own, as in '\"text\"'" if given[:1].isalpha() else ""
        raise Misused(f"{error}{quotes}") from error


def read_object(option: str, given: str) -> dict[str, Any]:
    """Decode JSON or @FILE that must be an object. Raises Misused."""
    try:
        return decode_object_option(option, given)
    except ValueError as error:
        raise Misused(str(error)) from error
