"""Parsing of instants, shared by the validation of protocols and by their execution."""

from datetime import datetime
from typing import Any

from lucius.core.model.records import Instant

MAX_INSTANT_MS: Instant = 253_402_214_400_000  # the last day of the year 9999, in every time zone


def parse_instant(value: Any) -> Instant | None:
    """Parse RFC 3339 text with its UTC offset, or milliseconds; return None for anything else."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
            value = round(at.timestamp() * 1000) if at.tzinfo else None
        except (ValueError, OverflowError):
            return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INSTANT_MS:
        return None
    return value
