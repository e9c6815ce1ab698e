"""The loops of the embedded engine: outcomes of their health, and shutdown."""

import asyncio
from typing import Any, cast

import pytest

from lucius.engine import supervisor
from lucius.engine.loops import EngineLoops
from lucius.engine.supervisor import LoopHealth, supervised
from tests.simulation.clock import in_virtual_time


class Steady:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class TestLoopHealth:
    def test_loop_that_has_just_begun_reports_no_trouble(self) -> None:
        assert LoopHealth(Steady()).trouble(60) == ""

    def test_loop_reports_trouble_only_after_failing_for_some_seconds(self) -> None:
        now = Steady()
        health = LoopHealth(now)
        now.at += 50
        health.went_well()
        health.failed()
        assert health.trouble(60) == ""
        now.at += supervisor.FAILING_SECONDS + 1
        health.failed()
        assert health.trouble(60) == "every iteration failed for 6 s"
        health.went_well()
        assert health.trouble(60) == ""

    def test_stuck_turn_is_reported_as_trouble(self) -> None:
        now = Steady()
        health = LoopHealth(now)
        now.at += 61
        assert health.trouble(60) == "stuck for 61 s"

    async def test_supervisor_records_failed_and_successful_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "MIN_BACKOFF_SECONDS", 0.0)
        noted: list[str] = []
        health = LoopHealth()
        monkeypatch.setattr(health, "went_well", lambda: noted.append("well"))
        monkeypatch.setattr(health, "failed", lambda: noted.append("failed"))
        outcomes = iter([None, RuntimeError("no"), None, asyncio.CancelledError()])

        async def run_once() -> None:
            outcome = next(outcomes)
            if outcome is not None:
                raise outcome

        with pytest.raises(asyncio.CancelledError):
            await supervised("loop", run_once, lambda _: None, health)
        assert noted == ["well", "failed", "well"]


class Part:
    """A sweeper, call runner or webhook runner, reduced to what the engine uses."""

    def __init__(self) -> None:
        self.graces: list[float] = []

    async def run_once(self) -> None:
        await asyncio.Event().wait()

    run_deadlines = run_repair = run_once

    async def stop(self, grace: float) -> None:
        self.graces.append(grace)


class Pushing:
    """A relay with a publish in flight when it is asked to stop."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.ended = ""

    async def run_claims(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, grace: float) -> None:
        self.graces = [grace]

    async def run_once(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended = "cut off"
            await self.done.wait()
            self.ended = "done"
            raise


def engine_of(relay: Pushing, part: Part) -> EngineLoops:
    parts = cast(Any, part)
    return EngineLoops(parts, cast(Any, relay), parts, parts, lambda _: None)


class TestStop:
    @in_virtual_time
    async def test_stop_waits_for_the_work_in_flight(self) -> None:
        relay, part = Pushing(), Part()
        engine = engine_of(relay, part)
        await engine.start()
        assert engine.running
        await asyncio.sleep(0)
        stopping = asyncio.create_task(engine.stop(30))
        await asyncio.sleep(0.01)
        assert not stopping.done()
        relay.done.set()
        await asyncio.wait_for(stopping, 5)
        assert (relay.ended, part.graces, engine.running) == ("done", [30, 30], False)

    async def test_stop_cancels_work_in_flight_after_its_grace(self) -> None:
        relay = Pushing()
        engine = engine_of(relay, Part())
        await engine.start()
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.stop(0.01), 5)
        assert (relay.ended, engine.running) == ("cut off", False)

    async def test_stop_may_be_called_before_start_and_twice(self) -> None:
        engine = engine_of(Pushing(), Part())
        await engine.stop(0)
        await engine.start()
        assert engine.running
        await engine.stop(0)
        await engine.stop(0)
        assert not engine.running
