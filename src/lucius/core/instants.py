"""Instants as people write them: one rule for whoever validates a protocol and whoever runs it."""

from datetime import datetime
from typing import Any

from lucius.core.model import Instant

LAST_INSTANT: Instant = 253_402_214_400_000  # the last day of the year 9999, in every time zone


def instant(value: Any) -> Instant | None:
    """From RFC 3339 text with its offset from UTC, or from milliseconds; None for anything else."""
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
            value = round(at.timestamp() * 1000) if at.tzinfo else None
        except (ValueError, OverflowError):
            return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LAST_INSTANT:
        return None
    return value
