"""A stop signal that takes effect before the server has waited for its connections."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from lucius.api.app import on_stop_signals


@pytest.fixture
def server_signals() -> Iterator[list[int]]:
    """Install a SIGTERM handler as a server would; yield the signals it received."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


async def test_stop_signal_reaches_application_and_server(server_signals: list[int]) -> None:
    told = asyncio.Event()
    with on_stop_signals(told.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(told.wait(), 10)
    assert server_signals == [signal.SIGTERM]


async def test_handler_of_the_server_is_restored(server_signals: list[int]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with on_stop_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not handler
    assert signal.getsignal(signal.SIGTERM) is handler


async def test_default_handler_is_not_replaced() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with on_stop_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, before)
