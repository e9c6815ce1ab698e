"""Instants in messages and responses: RFC 3339, UTC, milliseconds."""

from datetime import UTC, datetime
from functools import lru_cache

from lucius.core.model.records import Instant


def timestamp(at: Instant) -> str:
    return f"{_second(at // 1000)}.{at % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Format a whole second; cached, because most instants shown are from the last minutes."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def timestamp_or_none(at: Instant | None) -> str | None:
    return None if at is None else timestamp(at)


def parse_timestamp(text: str) -> Instant:
    """Read an RFC 3339 instant, whose T and Z may be lower case. Raises ValueError if invalid or without an offset."""
    try:
        parsed = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-01-31T12:00:00Z") from None
    if parsed.tzinfo is None:
        raise ValueError("an offset is missing; write for example 2026-01-31T12:00:00Z")
    return round(parsed.timestamp() * 1000)
