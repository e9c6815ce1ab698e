"""Random protocols of every kind, with faults and operator acts, end alike on both engines."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.temporal import TemporalServer
from tests.temporal.twin_plane import planes
from tests.temporal.twin_run import Twins

CASES, CASES_AT_ONCE, CASES_APART = 300, 100, 100
PLAIN_CASES, PLAIN_CASES_APART = 150, 50
"""Cases by the plain route: half as many, as the rules are the same."""
OUTCOMES = {"SUCCEEDED", "FAILED", "ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT", "JOB_TIMEOUT", "FENCED", "REJECTED"}
DISPOSITIONS = {"APPLIED", "DUPLICATE", "LATE", "STALE"}


@pytest.mark.usefixtures("fastpath_on")
@pytest.mark.parametrize("first", range(0, CASES, CASES_AT_ONCE))
async def test_random_protocols_end_alike_on_both_engines(
    tmp_path: Path, temporal_server: TemporalServer, first: int
) -> None:
    await check_alike(tmp_path, temporal_server, range(first, first + CASES_AT_ONCE))


@pytest.mark.usefixtures("fastpath_off")
async def test_random_protocols_end_alike_by_the_plain_route(tmp_path: Path, temporal_server: TemporalServer) -> None:
    await check_alike(tmp_path, temporal_server, range(PLAIN_CASES))


async def check_alike(folder: Path, server: TemporalServer, seeds: Sequence[int]) -> None:
    """Check that the cases end alike, and that they have every kind of end, outcome and disposition."""
    async with planes(folder, server) as both:
        twins = Twins(both)
        found = await twins.run(seeds)
    assert not found, "\n".join(map(str, found))
    outcomes = Counter(attempt[0] for story in twins.stories for attempt in story.attempts.values())
    said = Counter(word for story in twins.stories for event in story.events for word in event.split()[2:])
    ends = Counter(story.job["status"] for story in twins.stories)
    assert set(outcomes) >= OUTCOMES, outcomes
    assert set(said) >= DISPOSITIONS, said
    assert set(ends) == {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}, ends


@pytest.mark.parametrize(
    ("each_fastpath", "cases"), [("on", CASES_APART), ("off", PLAIN_CASES_APART)], indirect=["each_fastpath"]
)
async def test_random_protocols_end_alike_where_api_and_worker_are_apart(
    tmp_path: Path, temporal_server: TemporalServer, emptied_postgres_url: str, each_fastpath: str, cases: int
) -> None:
    async with planes(tmp_path, temporal_server, shared=emptied_postgres_url) as both:
        found = await Twins(both).run(range(CASES, CASES + cases))
    assert not found, "\n".join(map(str, found))
