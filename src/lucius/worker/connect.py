"""Opens the buses and stores that URLs name: the one module of the SDK that names adapters, imported when chosen."""

from urllib.parse import urlsplit

from lucius.ports.bus import Consumer
from lucius.worker.idempotency import IdempotencyStore, MemoryIdempotency
from lucius.worker.idempotency_sqlite import SqliteIdempotency
from lucius.worker.journal import Journal
from lucius.worker.resolver import Resolver
from lucius.worker.settings import BadSetting, WorkerSettings


def open_consumer(settings: WorkerSettings, service: str) -> Consumer:
    scheme = urlsplit(settings.bus_url).scheme
    if scheme == "local":
        from lucius.adapters.bus_local import LocalConsumer  # noqa: PLC0415

        return LocalConsumer(settings.orchestrator_url, service, settings.api_key, settings.lanes, Resolver())
    if scheme in ("redis", "rediss", "unix"):
        try:
            from lucius.adapters.bus_redis.consumer import RedisConsumer  # noqa: PLC0415 - its client is an extra
        except ImportError as error:
            raise BadSetting(f"LUCIUS_BUS_URL: {scheme}: URLs need the extra: pip install 'lucius[redis]'") from error
        try:
            return RedisConsumer(settings.bus_url, service, settings.lanes, settings.topic_layout)
        except ValueError as error:
            raise BadSetting(f"LUCIUS_BUS_URL: {error}") from error
    raise BadSetting(
        f"LUCIUS_BUS_URL: no bus for such {scheme}: URLs that a service process can reach; there are local: and redis://…"
    )


def open_store(url: str, journal: Journal) -> IdempotencyStore:
    """The store a URL names; none, or `sqlite:`, is the one in the journal's own file."""
    scheme = urlsplit(url).scheme
    if url in ("", "sqlite:"):
        return SqliteIdempotency(journal)
    if url == "memory:":
        return MemoryIdempotency()
    if scheme in ("redis", "rediss", "unix"):
        try:
            from lucius.worker.idempotency_redis import RedisIdempotency  # noqa: PLC0415 - its client is an extra
        except ImportError as error:
            raise BadSetting(
                f"LUCIUS_IDEMPOTENCY_URL: {scheme}: URLs need the extra: pip install 'lucius[redis]'"
            ) from error
        try:
            return RedisIdempotency(url)
        except ValueError as error:
            raise BadSetting(f"LUCIUS_IDEMPOTENCY_URL: {error}") from error
    raise BadSetting(
        f"LUCIUS_IDEMPOTENCY_URL: no idempotency store for such {scheme}: URLs; there are sqlite:, memory: and redis://…"
    )
