"""Runs cases on both engines, many at a time, and says where their stories differ.

A clock may ring before a busy machine has done what was to come first. So a case that differs is run again with clocks
that are several times slower, few at a time: what is different in how the engines decide is still different then.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from tests.temporal.twin_cases import Case
from tests.temporal.twin_driver import Driver
from tests.temporal.twin_plane import Plane, Planes
from tests.temporal.twin_story import Story, differences, story

AT_ONCE, AT_ONCE_AGAIN = 24, 6
STRETCHES = (4, 8)
LONGEST_SECONDS = 150.0


class Found(Struct, frozen=True):
    """A case whose stories differ, however slow its clocks."""

    seed: int
    differences: list[str]

    def __str__(self) -> str:
        lines = "\n  ".join(line[:1500] for line in self.differences[:12])
        replay = f"python -m tests.temporal.twin_soak --seed {self.seed}"
        return f"seed {self.seed}, embedded | temporal; replay it with `{replay}`\n  {lines}"


class Twins:
    def __init__(self, planes: Planes) -> None:
        self._planes = planes
        self.stories: list[Story] = []
        self.once: dict[int, list[str]] = {}
        """What differed at first, and did not when clocks were slower."""

    async def run(self, seeds: Sequence[int]) -> list[Found]:
        differ = await self._round([Case(seed) for seed in seeds], AT_ONCE)
        self.once |= differ
        for stretch in STRETCHES:
            if differ:
                differ = await self._round([Case(seed, stretch) for seed in differ], AT_ONCE_AGAIN)
        for seed in differ:
            del self.once[seed]
        return [Found(seed, lines) for seed, lines in differ.items()]

    async def _round(self, cases: Sequence[Case], at_once: int) -> dict[int, list[str]]:
        await self._planes.know(cases)
        places = asyncio.Semaphore(at_once)

        async def one(case: Case) -> tuple[int, list[str]]:
            async with places:
                return case.seed, await self._compare(case)

        return {seed: lines for seed, lines in await asyncio.gather(*map(one, cases)) if lines}

    async def _compare(self, case: Case) -> list[str]:
        both = (self._planes.embedded, self._planes.temporal)
        told = await asyncio.gather(*(self._tell(plane, case) for plane in both))
        stories = [one for one in told if isinstance(one, Story)]
        self.stories += stories
        return differences(*stories) if len(stories) == 2 else [one for one in told if isinstance(one, str)]

    async def _tell(self, plane: Plane, case: Case) -> Story | str:
        driver = Driver(plane, case)
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await driver.drive()
            return await story(plane, case, driver)
        except Exception as error:  # noqa: BLE001 - the other engine's story tells whether it is to be expected
            return f"{plane.name}: {type(error).__name__}: {error}, after {driver.log[-5:]}"
