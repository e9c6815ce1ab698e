"""Opens the bus and the idempotency store that URLs name: the only SDK module that names adapters, imported lazily."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from lucius.ports.bus import Consumer
from lucius.worker.idempotency import IdempotencyStore, MemoryIdempotency
from lucius.worker.idempotency_sqlite import SqliteIdempotency
from lucius.worker.journal import Journal
from lucius.worker.resolver import Resolver
from lucius.worker.settings import BadSetting, WorkerSettings


def open_consumer(settings: WorkerSettings, service: str, headers: Mapping[str, str] | None = None) -> Consumer:
    """Open the bus that the settings name; `headers` name the process to the orchestrator. Raises BadSetting."""
    scheme = urlsplit(settings.bus_url).scheme
    if scheme == "local":
        from lucius.adapters.bus.local import LocalConsumer  # noqa: PLC0415

        return LocalConsumer(settings.orchestrator_url, service, settings.api_key, settings.lanes, Resolver(), headers)
    if scheme in ("redis", "rediss", "unix"):
        try:
            from lucius.adapters.bus.redis.consumer import RedisConsumer  # noqa: PLC0415 - its client is an extra
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
    """Open the store that a URL names; an empty URL or `sqlite:` is the one in the journal's file.

    Raises BadSetting if the URL is invalid, unsupported or needs an extra that is not installed.
    """
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
