"""Buses that the kit supports, chosen by the scheme of their URL."""

from lucius.conformance.attempt_log import AttemptLog
from lucius.conformance.feed import Feed
from lucius.conformance.feed_redis import RedisFeed, check_redis
from lucius.conformance.model import Misuse

LOCAL_SCHEME = "local"
REDIS_SCHEMES = ("redis", "rediss", "unix")


def check_bus(url: str, service: str | None) -> None:
    """Raise Misuse for a bus that the kit does not support or that it cannot use as asked."""
    scheme = _scheme(url)
    if scheme not in (LOCAL_SCHEME, *REDIS_SCHEMES):
        raise Misuse(f"the kit supports the buses local: and redis://, not {scheme}:")
    if scheme != LOCAL_SCHEME and not service:
        raise Misuse(f"--service is required for this bus ({scheme}:)")


def check_bus_packages(url: str) -> None:
    """Raise Misuse if a package that the bus needs is not installed."""
    if _scheme(url) in REDIS_SCHEMES:
        check_redis()


def new_feed(url: str, service: str | None, attempt_log: AttemptLog, local: Feed) -> Feed:
    """Return the feed over the bus of this URL; `local` is the one behind the kit's own pull route."""
    if _scheme(url) == LOCAL_SCHEME:
        return local
    assert service is not None
    feed = RedisFeed(url, service, attempt_log.handed_over)
    attempt_log.on_implied_hand_over = feed.was_taken
    return feed


def _scheme(url: str) -> str:
    return url.partition(":")[0]
