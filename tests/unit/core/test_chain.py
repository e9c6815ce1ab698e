"""The hash chain over a job's events shows any change, and where it was made."""

import pytest
from msgspec.structs import replace

from lucius.core.model.event_chain import MAX_BREAKS, Break, ChainVerifier, hash_of, verify_events
from lucius.core.model.records import Event


def chained(*types: str) -> list[Event]:
    events, before = [], ""
    for seq, type_ in enumerate(types, 1):
        event = Event("j", seq, type_, 1_000 + seq, None, None, {"n": seq})
        before = hash_of(before, event)
        events.append(replace(event, hash=before))
    return events


EVENTS = chained("A", "B", "C", "D", "E")
LAST = EVENTS[-1].hash


def test_unmodified_chain_has_no_breaks() -> None:
    chain = verify_events(EVENTS, 5, LAST)
    assert (chain.events, chain.unsealed, chain.breaks) == (5, 0, [])
    assert verify_events([], 0, "").breaks == []


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
        (edited(1, hash=""), [1, 2]),
        ([*EVENTS[:2], *EVENTS[3:]], [3]),
        ([*EVENTS[:1], *EVENTS[4:]], [2]),
        (EVENTS[1:], [1]),
        (EVENTS[:-1], [5]),
        ([], [1]),
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
        "one twice",
        "one too many",
    ],
)
def test_any_modification_of_the_events_is_located(events: list[Event], seqs: list[int]) -> None:
    assert [found.seq for found in verify_events(events, 5, LAST).breaks] == seqs


def test_forged_chain_differs_from_the_head_of_the_job() -> None:
    forged = chained("A", "B", "X", "D", "E")
    assert verify_events(forged, 5, LAST).breaks == [Break(5, "differs from the last event of the job's head")]


def test_events_older_than_the_chain_count_as_unsealed() -> None:
    old = [Event("j", seq, "OLD", seq) for seq in (1, 2)]
    new = Event("j", 3, "NEW", 3)
    new = replace(new, hash=hash_of("", new))
    chain = verify_events([*old, new], 3, new.hash, unsealed=2)
    assert (chain.events, chain.unsealed, chain.breaks) == (3, 2, [])


def test_missing_hashes_are_breaks_unless_the_head_counts_them_as_unsealed() -> None:
    bare = [replace(event, hash="") for event in EVENTS]
    assert [found.seq for found in verify_events(bare, 5, "").breaks] == [5]
    assert [found.seq for found in verify_events(bare, 5, "", unsealed=4).breaks] == [5]
    assert verify_events(bare, 5, "", unsealed=5).breaks == []


def rows(*found: tuple[object, Event | None]) -> list[int]:
    along = ChainVerifier("j")
    for place, event in found:
        along.add(place, event)
    return [item.seq for item in along.end(5, LAST).breaks]


def test_misplaced_duplicate_and_unreadable_rows_are_breaks() -> None:
    own = [(event.seq, event) for event in EVENTS]
    a, b, c, d, e = EVENTS
    assert rows(*own) == []
    assert rows((1, a), (2, b), (3, d), (4, c), (5, e)) == [3, 4]
    assert rows((0, a), *own) == [0]
    assert rows((-(2**63), None), *own) == [-(2**63)]
    assert rows(*own, ("x", a)) == [5]
    assert rows((1, a), (2, None), (3, c), (4, d), (5, e)) == [2]
    assert rows(*own, (2**62, None)) == [6, 6, 2**62]


def test_number_of_recorded_breaks_is_bounded() -> None:
    along = ChainVerifier("j")
    for place in range(1, 1000):
        along.add(place, None)
    assert len(along.end(999, "").breaks) == MAX_BREAKS + 1


def test_event_hash_covers_the_attempts_that_ended_with_it() -> None:
    bare = Event("j", 1, "A", 1)
    assert hash_of("", replace(bare, attempts={"ocr#1": "aa"})) != hash_of("", replace(bare, attempts={"ocr#1": "ab"}))
    assert hash_of("", replace(bare, attempts={})) == hash_of("", bare), "older events keep their hashes"
