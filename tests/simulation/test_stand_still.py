"""A sweeper that stood still between its look at the clock and its act: too rare in a seed to be left to chance."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from lucius.core.decision import Ignored
from lucius.core.inputs import DeadlinePassed, Input
from lucius.engine.presence import LonePresence
from lucius.engine.sweeper import Sweeper
from lucius.ports.ledger import Ledger
from lucius.service.jobs import Jobs

START = 1_000_000
STAND_STILL = 60_000


class Clock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> int:
        return self.time


class StoppedMachine:
    """A ledger and its jobs: one job is due, and at the first look the machine stops before the answer arrives."""

    def __init__(self, clock: Clock) -> None:
        self.ticks: list[DeadlinePassed] = []
        self._clock = clock
        self._stops = True

    async def due(self, now: int, limit: int, hold_ms: int) -> list[str]:
        if self._stops:
            self._clock.time += STAND_STILL
        self._stops = False
        return ["job"]

    async def apply(self, job_id: str, inputs: Sequence[Input]) -> Any:
        self.ticks += [tick for tick in inputs if isinstance(tick, DeadlinePassed)]
        return type("Answer", (), {"reply": Ignored("nothing is due"), "job": type("Job", (), {"engine": ""})})


def test_what_ran_out_while_the_machine_stood_still_is_left_to_the_next_look() -> None:
    clock = Clock()
    machine = StoppedMachine(clock)
    sweeper = Sweeper(
        ledger=cast(Ledger, machine),
        jobs=cast(Jobs, machine),
        presence=LonePresence(clock.now()),
        clock=clock,
        interval=0.2,
        repair_interval=30,
        on_action=lambda _: None,
        wake=asyncio.Event(),
    )
    asyncio.run(sweeper.sweep())
    asyncio.run(sweeper.sweep())
    first, second = machine.ticks
    assert first.as_of == START
    assert (second.as_of, second.resumed_at) == (START + STAND_STILL, START + STAND_STILL)


class Crowd(LonePresence):
    """One of many, who each look rarely."""

    gaps: ClassVar[list[int]] = []

    def stretch(self) -> float:
        return 4.0

    async def ticked(self, now: int, gap_ms: int) -> int:
        self.gaps.append(gap_ms)
        return await super().ticked(now, gap_ms)


def test_whoever_looks_rarely_does_not_take_that_for_an_absence_nor_a_long_one_for_none() -> None:
    clock = Clock()
    sweeper = Sweeper(
        ledger=cast(Ledger, StoppedMachine(clock)),
        jobs=cast(Jobs, StoppedMachine(clock)),
        presence=Crowd(clock.now()),
        clock=clock,
        interval=2.0,
        repair_interval=30,
        on_action=lambda _: None,
        wake=asyncio.Event(),
    )
    asyncio.run(sweeper.sweep())
    assert {gap for gap in Crowd.gaps if not 8_000 < gap < 30_000} == set()
