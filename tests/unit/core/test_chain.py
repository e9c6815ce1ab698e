"""The hash chain over a job's events: whatever is done to it shows, and where."""

import pytest
from msgspec.structs import replace

from lucius.core.chain import Break, hash_of, walk
from lucius.core.model import Event


def chained(*types: str) -> list[Event]:
    events, before = [], ""
    for seq, type_ in enumerate(types, 1):
        event = Event("j", seq, type_, 1_000 + seq, None, None, {"n": seq})
        before = hash_of(before, event)
        events.append(replace(event, hash=before))
    return events


EVENTS = chained("A", "B", "C", "D", "E")
LAST = EVENTS[-1].hash


def test_a_chain_that_nobody_touched_holds() -> None:
    chain = walk(EVENTS, 5, LAST)
    assert (chain.events, chain.unsealed, chain.breaks) == (5, 0, [])
    assert walk([], 0, "").breaks == []


def edited(seq: int, **changes: object) -> list[Event]:
    return [replace(event, **changes) if event.seq == seq else event for event in EVENTS]


@pytest.mark.parametrize(
    ("events", "seqs"),
    [
        (edited(3, data={"n": 4}), [3]),
        (edited(3, type="Z"), [3]),
        (edited(3, at=9), [3]),
        (edited(3, step_id="ocr"), [3]),
        (edited(3, job_id="other"), [3]),
        (edited(3, hash="0" * 64), [3, 4]),
        (edited(1, hash=""), [2]),
        ([*EVENTS[:2], *EVENTS[3:]], [3]),
        ([*EVENTS[:1], *EVENTS[4:]], [2]),
        (EVENTS[1:], [1]),
        (EVENTS[:-1], [5]),
        ([], [1]),
        ([*EVENTS[:2], EVENTS[3], EVENTS[2], EVENTS[4]], [3, 4]),
        ([*EVENTS[:2], EVENTS[2], EVENTS[2], *EVENTS[3:]], [3]),
        ([*EVENTS, replace(EVENTS[4], seq=6, hash=hash_of(LAST, replace(EVENTS[4], seq=6)))], [6]),
    ],
    ids=[
        "edited data",
        "edited type",
        "edited time",
        "edited step",
        "of another job",
        "edited hash",
        "hash taken away",
        "one missing",
        "three missing",
        "the first missing",
        "the last missing",
        "all missing",
        "two swapped",
        "one twice",
        "one too many",
    ],
)
def test_whatever_is_done_to_the_events_is_found_where_it_was_done(events: list[Event], seqs: list[int]) -> None:
    assert [found.seq for found in walk(events, 5, LAST).breaks] == seqs


def test_a_whole_chain_written_anew_is_not_what_the_head_knows() -> None:
    forged = chained("A", "B", "X", "D", "E")
    assert walk(forged, 5, LAST).breaks == [Break(5, "is not the event that the job's head knows")]


def test_events_from_before_there_were_chains_are_told_apart() -> None:
    old = [Event("j", seq, "OLD", seq) for seq in (1, 2)]
    new = Event("j", 3, "NEW", 3)
    new = replace(new, hash=hash_of("", new))
    chain = walk([*old, new], 3, new.hash)
    assert (chain.events, chain.unsealed, chain.breaks) == (3, 2, [])
