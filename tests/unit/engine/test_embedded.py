"""The engine's loops: what becomes of their turns, and how they end."""

import asyncio
from typing import Any, cast

import pytest

from lucius.engine import supervise
from lucius.engine.embedded import EmbeddedEngine
from lucius.engine.supervise import Turns, supervised


class Steady:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class TestTurns:
    def test_a_loop_that_has_just_begun_is_in_no_trouble(self) -> None:
        assert Turns(Steady()).trouble(60) == ""

    def test_one_failure_is_no_trouble_and_many_are(self) -> None:
        now = Steady()
        turns = Turns(now)
        now.at += 50
        turns.went_well()
        turns.failed()
        assert turns.trouble(60) == ""
        now.at += supervise.FAILING_SECONDS + 1
        turns.failed()
        assert turns.trouble(60) == "every turn failed for 6 s"
        turns.went_well()
        assert turns.trouble(60) == ""

    def test_a_turn_that_never_ends_is(self) -> None:
        now = Steady()
        turns = Turns(now)
        now.at += 61
        assert turns.trouble(60) == "stuck for 61 s"

    async def test_the_supervisor_notes_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervise, "FIRST_BACKOFF", 0.0)
        noted: list[str] = []
        turns = Turns()
        monkeypatch.setattr(turns, "went_well", lambda: noted.append("well"))
        monkeypatch.setattr(turns, "failed", lambda: noted.append("failed"))
        outcomes = iter([None, RuntimeError("no"), None, asyncio.CancelledError()])

        async def turn() -> None:
            outcome = next(outcomes)
            if outcome is not None:
                raise outcome

        with pytest.raises(asyncio.CancelledError):
            await supervised("loop", turn, lambda _: None, turns)
        assert noted == ["well", "failed", "well"]


class Part:
    """A sweeper, a runner of calls and one of notices, as far as the engine knows them."""

    def __init__(self) -> None:
        self.graces: list[float] = []

    async def turn(self) -> None:
        await asyncio.Event().wait()

    deadlines_turn = repair_turn = turn

    async def stop(self, grace: float) -> None:
        self.graces.append(grace)


class Pushing:
    """A relay that has something under way when it is told to stop."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.ended = ""

    async def claims_turn(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, grace: float) -> None:
        self.graces = [grace]

    async def turn(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended = "cut off"
            await self.done.wait()
            self.ended = "done"
            raise


def engine_of(relay: Pushing, part: Part) -> EmbeddedEngine:
    parts = cast(Any, part)
    return EmbeddedEngine(parts, cast(Any, relay), parts, parts, lambda _: None)


class TestStop:
    async def test_what_is_under_way_may_end(self) -> None:
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

    async def test_but_not_for_ever(self) -> None:
        relay = Pushing()
        engine = engine_of(relay, Part())
        await engine.start()
        await asyncio.sleep(0)
        await asyncio.wait_for(engine.stop(0.01), 5)
        assert (relay.ended, engine.running) == ("cut off", False)

    async def test_it_can_be_told_again_and_before_it_began(self) -> None:
        engine = engine_of(Pushing(), Part())
        await engine.stop(0)
        await engine.start()
        await engine.stop(0)
        await engine.stop(0)
