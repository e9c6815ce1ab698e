"""The process that runs workflows does not give up, and says how it is."""

import asyncio
import inspect
from unittest.mock import create_autospec

import pytest
from temporalio.client import Client

from lucius.adapters.expressions import CelTools
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.client import Address, connect
from lucius.engine.temporal.worker import TemporalWorker
from tests.support.temporal import TemporalServer


class Connecting:
    """Fails first, in this way, and then no more."""

    def __init__(self, server: TemporalServer, error: Exception) -> None:
        self._server = server
        self._errors = [error]

    async def __call__(self) -> Client:
        if self._errors:
            raise self._errors.pop()
        return await connect(Address(target=self._server.address))


@pytest.mark.parametrize("error", [RuntimeError("not yet"), ValueError("nobody thought of this"), TimeoutError()])
async def test_whatever_goes_wrong_at_first_is_tried_again(temporal_server: TemporalServer, error: Exception) -> None:
    connecting = Connecting(temporal_server, error)
    worker = TemporalWorker(connecting, "does-not-give-up", _activities(), CelTools())
    assert (worker.running, worker.troubles()) == (False, {"temporal": "not connected yet"})
    await worker.start()
    async with asyncio.timeout(20):
        while worker.troubles():
            assert worker.running
            await asyncio.sleep(0.01)
    await worker.stop(5)
    assert not worker.running


async def test_it_does_not_read_all_modules_before_it_works(
    temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would, in the loop that answers everybody, to give the worker a name."""
    monkeypatch.setattr("temporalio.worker._worker.load_default_build_id", lambda: pytest.fail("it reads all modules"))
    client = await connect(Address(target=temporal_server.address))
    TemporalWorker(Connecting(temporal_server, ValueError()), "named", _activities(), CelTools())._worker(client)


async def test_one_that_never_was_connected_stops_at_once() -> None:
    tries = asyncio.Event()

    async def nowhere() -> Client:
        tries.set()
        await asyncio.Event().wait()
        raise AssertionError

    worker = TemporalWorker(nowhere, "nowhere", _activities(), CelTools())
    await worker.start()
    await tries.wait()
    async with asyncio.timeout(2):
        await worker.stop(60)
    assert not worker.running


def _activities() -> Activities:
    """Nobody calls them here."""
    part = create_autospec(object)
    names = list(inspect.signature(Activities).parameters)
    return Activities(**dict.fromkeys(names, part))
