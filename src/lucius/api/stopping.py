"""Early notice of a stop: a server informs its application only after the last connection has closed."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_signals(act: Callable[[], None]) -> Iterator[None]:
    """Run `act` in this loop as soon as SIGINT or SIGTERM arrives, then the server's own handler.

    Long polls and streams would hold up a server that waits for its connections; `act` ends them. Where no server
    handles these signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is on_signal:
                signal.signal(number, handler)
