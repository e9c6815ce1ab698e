"""A start that fails half-way raises its error, and leaves nothing running or open behind."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lucius.adapters.bus.memory import MemoryBus
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.versions import SqliteVersions
from lucius.bootstrap import control_plane, lifecycle
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.reload import Reloader
from lucius.bootstrap.settings import Settings
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.loops import EngineLoops
from lucius.ports.errors import LedgerBusy, ProtocolError
from lucius.usecases.queries.services import ServiceRegistry
from tests.support.api import settings_for
from tests.support.until import until


class StartError(Exception):
    """What the part that can't start raises."""


class Bus(MemoryBus):
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True
        await super().close()


class Cache:
    """An admission cache that does nothing."""

    is_closed = False

    async def run_once(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.is_closed = True


class Opened:
    """Parts that a start opened, and what ran before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bus, self.cache = Bus(), Cache()
        monkeypatch.setattr(lifecycle, "open_publisher", lambda *args: self.bus)
        monkeypatch.setattr(lifecycle, "open_admission_cache", lambda *args: self.cache)
        self._tasks = asyncio.all_tasks()
        self._threads = {*threading.enumerate()}
        self._files = self._open_files()

    def _open_files(self) -> Counter[str]:
        names: Counter[str] = Counter()
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                names[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
            except FileNotFoundError:  # that of the listing
                continue
        return Counter({name: n for name, n in names.items() if name.startswith("/") and not name.startswith("/dev/")})

    async def assert_nothing_is_left(self) -> None:
        assert asyncio.all_tasks() - self._tasks == set()
        await until(lambda: not {*threading.enumerate()} - self._threads)
        assert not self._open_files() - self._files


def fail(*args: Any, **kwargs: Any) -> Any:
    raise StartError


async def fail_later(*args: Any, **kwargs: Any) -> Any:
    raise StartError


async def start_loops_and_fail(self: EngineLoops) -> None:
    await START_LOOPS(self)
    raise StartError


START_LOOPS = EngineLoops.start


Break = Callable[[pytest.MonkeyPatch], None]

PARTS: dict[str, Break] = {
    "ledger": lambda patch: patch.setattr(lifecycle, "open_ledger", fail_later),
    "shared secrets": lambda patch: patch.setattr(lifecycle, "with_shared_secrets", fail_later),
    "bus": lambda patch: patch.setattr(lifecycle, "open_publisher", fail),
    "admission cache": lambda patch: patch.setattr(lifecycle, "open_admission_cache", fail),
    "outbound calls": lambda patch: patch.setattr(control_plane, "open_caller", fail),
    "protocols": lambda patch: patch.setattr(SqliteVersions, "protocol_revision", fail_later),
    "notifier": lambda patch: patch.setattr(lifecycle, "attach", fail),
    "loops": lambda patch: patch.setattr(EngineLoops, "start", start_loops_and_fail),
    "engine": lambda patch: patch.setattr(EmbeddedEngine, "start", fail_later),
    "background tasks": lambda patch: patch.setattr(Reloader, "__init__", fail),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/ledger.db", bus_url="memory:")


@pytest.mark.parametrize("part", PARTS)
async def test_failed_start_raises_its_error_and_leaves_nothing_behind(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    opened = Opened(monkeypatch)
    with monkeypatch.context() as broken:
        PARTS[part](broken)
        with pytest.raises(StartError):
            async with open_runtime(settings):
                pytest.fail("it started")
        await opened.assert_nothing_is_left()
    not_reached = {"ledger", "shared secrets", "bus"}
    assert opened.bus.is_closed is (part not in not_reached)
    assert opened.cache.is_closed is (part not in {*not_reached, "admission cache"})
    async with open_runtime(settings):  # the lock of the ledger is free
        pass
    await opened.assert_nothing_is_left()


async def test_start_with_an_invalid_config_file_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    config = tmp_path / "lucius.yaml"
    config.write_text("limits: 7\n")
    with pytest.raises(ProtocolError, match=r"lucius\.yaml:1"):
        async with open_runtime(settings_for(tmp_path, ledger_url=f"sqlite:///{tmp_path}/l.db", config_path=config)):
            pytest.fail("it started")
    assert opened.bus.is_closed
    await opened.assert_nothing_is_left()


async def test_start_beside_another_process_leaves_the_ledger_to_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_runtime(settings) as runtime:
        opened = Opened(monkeypatch)
        with pytest.raises(LedgerBusy):
            async with open_runtime(settings):
                pytest.fail("it started")
        await opened.assert_nothing_is_left()
        await runtime.store.jobs.counters()


async def test_part_that_can_not_be_closed_hides_no_error_and_leaves_no_other_part_open(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    monkeypatch.setattr(EmbeddedEngine, "start", fail_later)
    monkeypatch.setattr(EmbeddedEngine, "stop", fail_to_close)
    monkeypatch.setattr(opened.cache, "close", fail_to_close)
    with pytest.raises(StartError):
        async with open_runtime(settings):
            pytest.fail("it started")
    assert opened.bus.is_closed
    await opened.assert_nothing_is_left()


async def test_part_that_can_not_be_closed_is_raised_by_the_stop_after_the_others_are_closed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    monkeypatch.setattr(EmbeddedEngine, "stop", fail_to_close)
    with pytest.raises(RuntimeError, match="can't be closed"):
        async with open_runtime(settings):
            pass
    assert opened.bus.is_closed
    assert opened.cache.is_closed
    await opened.assert_nothing_is_left()


async def test_stop_waits_for_background_tasks_before_it_closes_the_ledger(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    close = SqliteFile.close

    async def run_once(self: ServiceRegistry) -> None:
        order.append("start")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            order.append("stop")

    def close_ledger(self: SqliteFile) -> None:
        order.append("ledger")
        close(self)

    monkeypatch.setattr(ServiceRegistry, "run_once", run_once)
    monkeypatch.setattr(SqliteFile, "close", close_ledger)
    async with open_runtime(settings):
        await until(lambda: bool(order))
    assert order == ["start", "stop", "ledger"]


async def fail_to_close(*args: Any) -> None:
    raise RuntimeError("can't be closed")
