"""A process of platform services: one sender and one runtime per service, started, watched and stopped together."""

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import structlog

from lucius.ports.bus import Consumer
from lucius.worker.callbacks import LATE_WINDOW, CallbackSender
from lucius.worker.dedupe import Dedupe
from lucius.worker.health import health_server
from lucius.worker.runtime import Runtime, RuntimeOptions
from lucius.worker.service import PlatformService
from lucius.worker.transport import Transport

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    orchestrator_url: str
    runtime: RuntimeOptions = RuntimeOptions()
    data_dir: Path | None = None
    """Where finished attempts are remembered across restarts; None: in memory only."""
    late_window: float = LATE_WINDOW
    flush_seconds: float = 10.0
    health_port: int | None = None
    handle_signals: bool = True


async def host(
    services: Iterable[PlatformService],
    consumer_for: Callable[[str], Consumer],
    options: HostOptions,
    stop: asyncio.Event | None = None,
) -> None:
    """Run until SIGTERM, SIGINT or `stop`; raises what ended a service that could not go on."""
    stop = stop or asyncio.Event()
    async with AsyncExitStack() as stack:
        transport = await stack.enter_async_context(Transport())
        sender = CallbackSender(options.orchestrator_url, transport, late_window=options.late_window)
        runtimes = {
            service.service: _runtime(service, consumer_for(service.service), sender, options, stack)
            for service in services
        }
        if options.health_port is not None:
            ready = lambda: {name: runtime.ready for name, runtime in runtimes.items()}  # noqa: E731 - one expression
            await stack.enter_async_context(health_server(options.health_port, ready))
        if options.handle_signals:
            _stop_on_signals(stop, runtimes, stack)
        await _supervise(runtimes, sender, options.flush_seconds, stop)


def _runtime(
    service: PlatformService, consumer: Consumer, sender: CallbackSender, options: HostOptions, stack: AsyncExitStack
) -> Runtime:
    stack.push_async_callback(consumer.close)
    dedupe = Dedupe(options.data_dir / "services" / service.service if options.data_dir else None)
    stack.callback(dedupe.close)
    return Runtime(service, consumer, sender, dedupe, options.runtime)


def _stop_on_signals(stop: asyncio.Event, runtimes: dict[str, Runtime], stack: AsyncExitStack) -> None:
    """The first signal asks to stop; a second one gives up what still runs."""

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


async def _supervise(
    runtimes: dict[str, Runtime], sender: CallbackSender, flush_seconds: float, stop: asyncio.Event
) -> None:
    sending = asyncio.create_task(sender.run(), name="callbacks")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    working = [asyncio.create_task(runtime.run(), name=name) for name, runtime in runtimes.items()]
    log.info("services started", services=sorted(runtimes))
    try:
        await asyncio.wait([sending, stopping, *working], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for runtime in runtimes.values():
            runtime.stop()
        outcomes = await asyncio.gather(*working, return_exceptions=True)
        if not sending.done():
            await _flush(sender, flush_seconds)
        for task in (stopping, sending):
            task.cancel()
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if sending.done() and not sending.cancelled():
        sending.result()  # it only ever ends by an error
    if errors:
        raise errors[0]


async def _flush(sender: CallbackSender, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await sender.undelivered_below(1)
    except TimeoutError:
        log.error("stopped with undelivered callbacks; their leases will run out", undelivered=sender.undelivered)
