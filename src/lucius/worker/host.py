"""Process of platform services: one callback sender, and one runtime per service, started and stopped together."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress

import structlog

from lucius.contract.process_headers import process_headers
from lucius.ports.bus import Consumer
from lucius.private_files import make_data_folder
from lucius.worker.attempt import RunningAttempt
from lucius.worker.callbacks import CallbackSender
from lucius.worker.connect import open_consumer, open_store
from lucius.worker.definition import BadService, ServiceDefinition
from lucius.worker.health import Health, health_server
from lucius.worker.journal import Journal
from lucius.worker.metrics import Metrics
from lucius.worker.runtime import Runtime, RuntimeOptions
from lucius.worker.settings import WorkerSettings
from lucius.worker.stall_heartbeat import StallHeartbeat
from lucius.worker.transport import Transport

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FLUSH_TIMEOUT_SECONDS = 10.0
NO_DATA_DIR_WARNING = (
    "LUCIUS_DATA_DIR is not set: finished results that the orchestrator has not received are lost with this process, "
    "and interrupted steps wait until their leases expire"
)


async def host(
    services: Iterable[ServiceDefinition],
    settings: WorkerSettings,
    stop: asyncio.Event | None = None,
    consumer_for: Callable[[str], Consumer] | None = None,
) -> None:
    """Run until SIGTERM, SIGINT or `stop`. Raises the error of a service that could not continue."""
    served = _complete(services)
    if settings.data_dir is None:
        log.warning(NO_DATA_DIR_WARNING)
    else:
        with suppress(OSError):  # a folder that can't be used is reported when the journal is opened
            make_data_folder(settings.data_dir)
    stop = stop or asyncio.Event()
    versions = {service.name: service.version for service in served}
    headers = process_headers(versions)
    consume = consumer_for or (lambda name: open_consumer(settings, name, headers))
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(Transport(headers))
        sender = CallbackSender(settings.orchestrator_url, transport)
        metrics = Metrics()
        runtimes: dict[str, Runtime] = {}
        if settings.health_port is not None:  # first: loading a model may take longer than a probe's timeout
            health = Health(served, runtimes, sender, metrics)
            await stack.enter_async_context(health_server(settings.health_port, health, settings.health_host))
        consumers = {service.name: consume(service.name) for service in served}
        for service in served:
            consumer = consumers[service.name]
            runtimes[service.name] = await _runtime(service, consumer, sender, settings, metrics, stack)
        stack.enter_context(
            StallHeartbeat(settings.orchestrator_url, lambda: _attempts(runtimes), metrics.stalls.inc, headers)
        )
        if settings.handle_signals:
            _stop_on_signals(stop, runtimes, stack)
        log.info("services started", services=sorted(versions), versions=versions)
        await _supervise(runtimes, sender, stop, keeps=settings.data_dir is not None)


def _complete(services: Iterable[ServiceDefinition]) -> list[ServiceDefinition]:
    """Return the services as a list. Raises BadService if one can't work."""
    served = list(services)
    names = [service.name for service in served]
    for service in served:
        if not service.step_types:
            raise BadService(f"service {service.name} has no step: there is no function under @service.step()")
        if names.count(service.name) > 1:
            raise BadService(f"there are two services {service.name}")
        service.check_processes()
    return served


async def _runtime(
    service: ServiceDefinition,
    consumer: Consumer,
    sender: CallbackSender,
    settings: WorkerSettings,
    metrics: Metrics,
    stack: AsyncExitStack,
) -> Runtime:
    stack.push_async_callback(consumer.close)
    folder = settings.data_dir / "services" / service.name if settings.data_dir else None
    journal = Journal(folder, sync=settings.journal_sync)
    stack.callback(journal.close)
    store = open_store(settings.idempotency_url, journal)
    stack.push_async_callback(store.close)
    options = RuntimeOptions(
        concurrency=settings.concurrency,
        grace_seconds=settings.grace_seconds,
        delay_seconds=settings.delay_seconds,
        places=settings.places,
    )
    runtime = Runtime(service, consumer, sender, journal, store, options, metrics)
    stack.push_async_callback(runtime.close)
    return runtime


def _attempts(runtimes: Mapping[str, Runtime]) -> list[RunningAttempt]:
    return [attempt for runtime in runtimes.values() for attempt in runtime.attempts]


def _stop_on_signals(stop: asyncio.Event, runtimes: dict[str, Runtime], stack: AsyncExitStack) -> None:
    """Handle SIGTERM and SIGINT: the first one starts a graceful stop, a second one abandons what still runs."""

    def on_signal() -> None:
        if stop.is_set():
            for runtime in runtimes.values():
                runtime.stop()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, on_signal)
            stack.callback(loop.remove_signal_handler, number)


async def _supervise(runtimes: dict[str, Runtime], sender: CallbackSender, stop: asyncio.Event, *, keeps: bool) -> None:
    sending = asyncio.create_task(sender.run(), name="callbacks")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    working = [asyncio.create_task(runtime.run(), name=name) for name, runtime in runtimes.items()]
    try:
        await asyncio.wait([sending, stopping, *working], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for runtime in runtimes.values():
            runtime.stop()
        outcomes = await asyncio.gather(*working, return_exceptions=True)
        if not sending.done():
            await _flush(sender, keeps)
        for task in (stopping, sending):
            task.cancel()
        await asyncio.wait((stopping, sending))
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if sending.done() and not sending.cancelled():
        sending.result()  # `run` ends only with an error
    if errors:
        raise errors[0]


async def _flush(sender: CallbackSender, keeps: bool) -> None:
    try:
        async with asyncio.timeout(FLUSH_TIMEOUT_SECONDS):
            await sender.wait_until_below(1)
    except TimeoutError:
        fate = "results are sent at the next start" if keeps else "they are lost, as there is no LUCIUS_DATA_DIR"
        log.warning(f"stopped with undelivered callbacks; {fate}", waiting=sender.undelivered)
