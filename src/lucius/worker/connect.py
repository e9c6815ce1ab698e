"""Opens the buses and stores that URLs name: the one module of the SDK that names adapters, imported when chosen."""

from urllib.parse import urlsplit

from lucius.ports.bus import Consumer
from lucius.worker import idempotency
from lucius.worker.idempotency import IdempotencyStore
from lucius.worker.journal import Journal
from lucius.worker.resolver import Resolver
from lucius.worker.settings import BadSetting, WorkerSettings


def open_consumer(settings: WorkerSettings, service: str) -> Consumer:
    scheme = urlsplit(settings.bus_url).scheme
    if scheme == "local":
        from lucius.adapters.bus_local import LocalConsumer  # noqa: PLC0415

        return LocalConsumer(settings.orchestrator_url, service, settings.api_key, settings.lanes, Resolver())
    raise BadSetting(f"LUCIUS_BUS_URL: no bus {settings.bus_url!r} that a service process can reach; there is: local:")


def open_store(settings: WorkerSettings, journal: Journal) -> IdempotencyStore:
    try:
        return idempotency.open_store(settings.idempotency_url, journal)
    except ValueError as error:
        raise BadSetting(f"LUCIUS_IDEMPOTENCY_URL: {error}") from error
