"""Parses a `redis://` bus URL: the server's address and this bus's options."""

from collections.abc import Iterable
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

SCHEMES = frozenset({"redis", "rediss", "unix"})
LANES = range(16)
_TOPICS = {"shared": ("global-bus-p{}",), "isolated": ("global-default-p{}", "global-burst-p{}")}


class RedisAddress(Struct, frozen=True):
    url: str
    """For the client library: without the options that only this bus knows."""
    prefix: str = "lucius:"
    idle_seconds: float = 60.0
    """Idle time after which another consumer may claim a message."""
    deliveries: int = 5
    """Deliveries of a message before it counts as poison."""

    def stream(self, topic: str, service: str) -> str:
        return f"{self.prefix}{topic}:{service}"

    def streams(self, service: str, lanes: Iterable[int] | None = None, layout: str = "shared") -> list[str]:
        wanted = LANES if lanes is None else sorted(set(lanes))
        return [self.stream(topic.format(lane), service) for topic in _TOPICS[layout] for lane in wanted]

    @property
    def dead(self) -> str:
        return f"{self.prefix}dead"


def parse(url: str) -> RedisAddress:
    """Parse a bus URL. Raises ValueError, with no secret in the message."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"no Redis at {parts.scheme}: URLs; it is redis://, rediss:// or unix://")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", "lucius:")
    idle = _number("idle", query.pop("idle", "60"), 0.05, 86_400)
    deliveries = _number("deliveries", query.pop("deliveries", "5"), 1, 1_000)
    return RedisAddress(urlunsplit(parts._replace(query=urlencode(query))), prefix, idle, int(deliveries))


def _number(name: str, text: str, minimum: float, maximum: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be a number from {minimum:g} to {maximum:g}, not {text!r}")
    return number
