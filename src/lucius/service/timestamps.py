"""Instants on the wire: RFC 3339, UTC, milliseconds."""

from datetime import UTC, datetime

from lucius.core.model import Instant


def timestamp(at: Instant) -> str:
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at % 1000:03d}Z"


def timestamp_or_none(at: Instant | None) -> str | None:
    return None if at is None else timestamp(at)


def parse_timestamp(text: str) -> Instant:
    """Raises ValueError for what is not an RFC 3339 instant with an offset."""
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError("an offset is missing; write for example 2026-01-31T12:00:00Z")
    return round(parsed.timestamp() * 1000)
