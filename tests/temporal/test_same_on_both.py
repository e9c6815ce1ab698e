"""Both engines do the same: random protocols of every kind, with faults and people who meddle, end alike on both."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.temporal import TemporalServer
from tests.temporal.twin_plane import planes
from tests.temporal.twin_run import Twins

CASES, CASES_AT_ONCE, CASES_APART = 300, 100, 100
OUTCOMES = {"SUCCEEDED", "FAILED", "ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT", "JOB_TIMEOUT", "FENCED", "REJECTED"}
DISPOSITIONS = {"APPLIED", "DUPLICATE", "LATE", "STALE"}


@pytest.mark.parametrize("first", range(0, CASES, CASES_AT_ONCE))
async def test_random_protocols_end_alike_on_both_engines(
    tmp_path: Path, temporal_server: TemporalServer, first: int
) -> None:
    async with planes(tmp_path, temporal_server) as both:
        twins = Twins(both)
        found = await twins.run(range(first, first + CASES_AT_ONCE))
    assert not found, "\n".join(map(str, found))
    outcomes = Counter(attempt[0] for story in twins.stories for attempt in story.attempts.values())
    said = Counter(word for story in twins.stories for event in story.events for word in event.split()[2:])
    ends = Counter(story.job["status"] for story in twins.stories)
    assert set(outcomes) >= OUTCOMES, outcomes
    assert set(said) >= DISPOSITIONS, said
    assert set(ends) == {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}, ends


async def test_they_end_alike_where_api_and_worker_are_apart(
    tmp_path: Path, temporal_server: TemporalServer, emptied_postgres_url: str
) -> None:
    async with planes(tmp_path, temporal_server, shared=emptied_postgres_url) as both:
        found = await Twins(both).run(range(CASES, CASES + CASES_APART))
    assert not found, "\n".join(map(str, found))
