"""A stop that is heard before the server has waited for its connections."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from lucius.api.stopping import on_stop_signals


@pytest.fixture
def server_heard() -> Iterator[list[int]]:
    """A server's own handler of SIGTERM, and what it got."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


async def test_the_application_hears_of_a_stop_and_so_does_the_server(server_heard: list[int]) -> None:
    told = asyncio.Event()
    with on_stop_signals(told.set):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(told.wait(), 10)
    assert server_heard == [signal.SIGTERM]


async def test_afterwards_the_server_has_its_handler_back(server_heard: list[int]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with on_stop_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not handler
    assert signal.getsignal(signal.SIGTERM) is handler


async def test_a_signal_that_nobody_handles_stays_as_it_is() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with on_stop_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGTERM, before)
