"""Opens the buses and stores that URLs name: the one module of the SDK that names adapters, imported when chosen."""

from urllib.parse import urlsplit

from lucius.ports.bus import Consumer
from lucius.worker.idempotency import IdempotencyStore, MemoryIdempotency
from lucius.worker.idempotency_sqlite import SqliteIdempotency
from lucius.worker.journal import Journal
from lucius.worker.settings import BadSetting, WorkerSettings


def open_consumer(settings: WorkerSettings, service: str) -> Consumer:
    scheme = urlsplit(settings.bus_url).scheme
    if scheme == "local":
        from lucius.adapters.bus_local import LocalConsumer  # noqa: PLC0415

        return LocalConsumer(settings.orchestrator_url, service, settings.api_key, settings.lanes)
    raise BadSetting(f"LUCIUS_BUS_URL: no bus {settings.bus_url!r} that a service process can reach; there is: local:")


def open_store(settings: WorkerSettings, journal: Journal) -> IdempotencyStore:
    scheme = urlsplit(settings.idempotency_url).scheme
    if scheme in ("redis", "rediss"):
        from lucius.worker.idempotency_redis import RedisIdempotency  # noqa: PLC0415

        return RedisIdempotency(settings.idempotency_url)
    if scheme == "memory":
        return MemoryIdempotency()
    if scheme in ("", "sqlite"):
        return SqliteIdempotency(journal)
    raise BadSetting(f"LUCIUS_IDEMPOTENCY_URL: {settings.idempotency_url!r} is none of sqlite:, memory:, redis://…")
