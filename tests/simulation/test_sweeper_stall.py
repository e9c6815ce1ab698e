"""A sweeper that stops between reading the clock and acting: too rare in a seed to be left to chance."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, cast

from lucius.core.model.decision import Ignored
from lucius.core.model.inputs import DeadlinePassed, Input
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.embedded.sweeper import Sweeper
from lucius.engine.liveness import SingleProcessLiveness
from lucius.ports.ledger import Ledger

START = 1_000_000
STAND_STILL = 60_000


class Clock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> int:
        return self.time


class StoppedMachine:
    """Ledger and jobs with one due job; the machine stops during the first query, before the answer arrives."""

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
        return type(
            "Answer", (), {"reply": Ignored("nothing is due"), "job": type("Job", (), {"is_ledger_driven": True})}
        )


def test_deadline_that_passed_during_a_stall_is_left_to_the_next_sweep() -> None:
    clock = Clock()
    machine = StoppedMachine(clock)
    sweeper = Sweeper(
        ledger=cast(Ledger, machine),
        engine=cast(EmbeddedEngine, machine),
        liveness=SingleProcessLiveness(clock.now()),
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


class LivenessWithSlowPolling(SingleProcessLiveness):
    """Liveness of one of many replicas, which each poll rarely."""

    gaps: ClassVar[list[int]] = []

    def poll_backoff(self) -> float:
        return 4.0

    async def record_tick(self, now: int, gap_ms: int) -> int:
        self.gaps.append(gap_ms)
        return await super().record_tick(now, gap_ms)


def test_absence_threshold_of_a_rarely_polling_sweeper_grows_with_its_interval() -> None:
    clock = Clock()
    sweeper = Sweeper(
        ledger=cast(Ledger, StoppedMachine(clock)),
        engine=cast(EmbeddedEngine, StoppedMachine(clock)),
        liveness=LivenessWithSlowPolling(clock.now()),
        clock=clock,
        interval=2.0,
        repair_interval=30,
        on_action=lambda _: None,
        wake=asyncio.Event(),
    )
    asyncio.run(sweeper.sweep())
    assert {gap for gap in LivenessWithSlowPolling.gaps if not 8_000 < gap < 30_000} == set()
