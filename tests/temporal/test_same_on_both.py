"""Both engines do the same: random protocols of every kind, with faults and people who meddle, end alike on both."""

from collections import Counter
from pathlib import Path

from tests.support.temporal import TemporalServer
from tests.temporal.twin_plane import planes
from tests.temporal.twin_run import Twins

CASES = 100
OUTCOMES = {"SUCCEEDED", "FAILED", "ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT", "JOB_TIMEOUT", "FENCED", "REJECTED"}
DISPOSITIONS = {"APPLIED", "DUPLICATE", "LATE", "STALE"}


async def test_random_protocols_end_alike_on_both_engines(tmp_path: Path, temporal_server: TemporalServer) -> None:
    async with planes(tmp_path, temporal_server) as both:
        twins = Twins(both)
        found = await twins.run(range(CASES))
    assert not found, "\n".join(map(str, found))
    outcomes = Counter(attempt[0] for story in twins.stories for attempt in story.attempts.values())
    said = Counter(word for story in twins.stories for event in story.events for word in event.split()[2:])
    ends = Counter(story.job["status"] for story in twins.stories)
    assert set(outcomes) >= OUTCOMES, outcomes
    assert set(said) >= DISPOSITIONS, said
    assert set(ends) == {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}, ends
