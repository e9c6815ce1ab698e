"""Runs cases on both engines, many at a time, and reports differences.

A timeout may expire before a busy machine has done what should come first. A case that differs is therefore run again
with timeouts several times longer, few at a time: real differences between the engines remain.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from tests.support.fastpath import fastpath_env
from tests.temporal.twin_cases import Case
from tests.temporal.twin_driver import Driver
from tests.temporal.twin_plane import Plane, Planes
from tests.temporal.twin_story import Story, differences, story

AT_ONCE, AT_ONCE_AGAIN = 24, 6
STRETCHES = (4, 8)
LONGEST_SECONDS = 150.0


class Found(Struct, frozen=True):
    """Case that differs between the engines, however long its timeouts."""

    seed: int
    differences: list[str]
    environment: str
    """Setting to replay it with."""

    def __str__(self) -> str:
        lines = "\n  ".join(line[:1500] for line in self.differences[:12])
        replay = f"{self.environment}python -m tests.temporal.twin_soak --seed {self.seed}"
        return f"seed {self.seed}, embedded | temporal; replay it with `{replay}`\n  {lines}"


class Twins:
    def __init__(self, planes: Planes) -> None:
        self._planes = planes
        self.stories: list[Story] = []
        self.once: dict[int, list[str]] = {}
        """Differences that disappeared with longer timeouts."""

    async def run(self, seeds: Sequence[int]) -> list[Found]:
        differ = await self._round([Case(seed) for seed in seeds], AT_ONCE)
        self.once |= differ
        for stretch in STRETCHES:
            if differ:
                differ = await self._round([Case(seed, stretch) for seed in differ], AT_ONCE_AGAIN)
        for seed in differ:
            del self.once[seed]
        environment = "".join(f"{name}={value} " for name, value in fastpath_env().items())
        return [Found(seed, lines, environment) for seed, lines in differ.items()]

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
