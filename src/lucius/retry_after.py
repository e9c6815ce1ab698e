"""Parses the `Retry-After` header of HTTP answers."""

import time
from datetime import UTC
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_SECONDS = 86_400.0


def parse_retry_after(
    header: str | None,
    *,
    max_seconds: float = MAX_RETRY_AFTER_SECONDS,
    whole_only: bool = False,
    now: float | None = None,
) -> float | None:
    """Return the seconds to wait, from 0 to `max_seconds`; None if the header is missing or invalid.

    It holds a number of seconds or a date, which is compared with `now`, in seconds since the epoch. With `whole_only`
    the number must be as RFC 9110 defines it; otherwise it may also have a fraction, an exponent or a sign.
    """
    if not header:
        return None
    text = header.strip()
    seconds = _parse_number(text, whole_only)
    if seconds is None:
        seconds = _parse_date(text, time.time() if now is None else now)
    return bound_seconds(seconds, max_seconds)


def bound_seconds(seconds: float | None, max_seconds: float = MAX_RETRY_AFTER_SECONDS) -> float | None:
    """Return a plain float from 0 to `max_seconds`, None for NaN: a number type of a library may not fit into JSON."""
    return None if seconds is None or seconds != seconds else min(max_seconds, max(0.0, float(seconds)))


def _parse_number(text: str, whole_only: bool) -> float | None:
    if whole_only and not (text.isascii() and text.isdigit()):
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _parse_date(text: str, now: float) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
