"""How many calls a host has at the moment, and until when it wants none."""

from collections import Counter
from datetime import UTC
from email.utils import parsedate_to_datetime

from lucius.core.model import Instant, Millis
from lucius.ports.calls import Closed, Slot

LONGEST_MS: Millis = 3_600_000
DAY_MS: Millis = 86_400_000


class Gates:
    """One 429 counts for every job: whoever comes next to that host waits as long."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._closed: dict[str, Instant] = {}

    def admit(self, host: str, most: int, now: Instant) -> Slot | Closed:
        opens_at = self._closed.get(host, now)
        if opens_at > now:
            return Closed(opens_at)
        if self._calls[host] >= most:
            return Closed()
        self._calls[host] += 1
        return Slot(lambda: self._leave(host))

    def _leave(self, host: str) -> None:
        self._calls[host] -= 1
        if not self._calls[host]:
            del self._calls[host]

    def close(self, host: str, now: Instant, wait_ms: Millis) -> None:
        """For an hour at most: whoever was told to wait for longer does, the others ask again."""
        self._closed = {other: until for other, until in self._closed.items() if until > now}
        self._closed[host] = max(now + min(wait_ms, LONGEST_MS), self._closed.get(host, 0))


def retry_after_ms(header: str | None, now: Instant) -> Millis | None:
    """Seconds or an HTTP date, a day at most; None if it says nothing that can be used."""
    if header is None:
        return None
    text = header.strip()
    wait = int(text[:10]) * 1000 if text.isascii() and text.isdigit() else _until(text, now)
    return min(wait, DAY_MS) if wait is not None and wait > 0 else None


def _until(text: str, now: Instant) -> Millis | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return round((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000) - now
