"""Limits concurrent calls per host, and pauses hosts that sent Retry-After."""

from collections import Counter

from lucius.core.model.records import Instant, Millis
from lucius.ports.http import Closed, Slot

MAX_PAUSE_MS: Millis = 3_600_000


class HostConcurrency:
    """Counts the calls to each host and pauses hosts that asked for it.

    `host` is a key from `Caller.host`. One 429 pauses every job's calls with that key. Hosts that clients name have a
    key for each tenant: the receiver of one tenant must not stop the calls of another, or those of protocols.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._paused_until: dict[str, Instant] = {}

    def admit(self, host: str, max_calls: int, now: Instant) -> Slot | Closed:
        opens_at = self._paused_until.get(host, now)
        if opens_at > now:
            return Closed(opens_at)
        if self._calls[host] >= max_calls:
            return Closed()
        self._calls[host] += 1
        return Slot(lambda: self._release(host))

    def _release(self, host: str) -> None:
        self._calls[host] -= 1
        if not self._calls[host]:
            del self._calls[host]

    def pause(self, host: str, now: Instant, wait_ms: Millis) -> None:
        """Pause a host, for an hour at most: the call that got a longer Retry-After honours it, others try again."""
        self._paused_until = {other: until for other, until in self._paused_until.items() if until > now}
        self._paused_until[host] = max(now + min(wait_ms, MAX_PAUSE_MS), self._paused_until.get(host, 0))
