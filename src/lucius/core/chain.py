"""Events as a hash chain: each carries the hash of all before it, so that none can be edited, lost or moved unseen."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from lucius.core.model import Event

_encode = msgspec.json.Encoder(order="deterministic").encode


class Break(Struct, frozen=True):
    """Where a chain does not hold, and why."""

    seq: int
    what: str


class Chain(Struct, frozen=True):
    """What became of a walk along a job's events. `unsealed` ones were written before there were chains."""

    events: int
    unsealed: int
    breaks: list[Break]


def link(before: str, *said: Any) -> str:
    """The hash of an event that says this and comes after the one whose hash is `before`."""
    return hashlib.sha256(before.encode() + _encode(said)).hexdigest()


def hash_of(before: str, event: Event) -> str:
    return link(before, event.job_id, event.seq, event.type, event.at, event.step_id, event.attempt_no, event.data)


def walk(events: Iterable[Event], last_seq: int, last_hash: str) -> Chain:
    """Everything wrong with a job's events, in the order they are kept, given what its head says of the last one."""
    kept = list(events)
    ordered = sorted(kept, key=lambda event: event.seq)
    found = [
        Break(event.seq, f"stands where event {belongs.seq} belongs")
        for event, belongs in zip(kept, ordered, strict=True)
        if event.seq != belongs.seq
    ]
    expected, before, unsealed = 1, "", 0
    for event in ordered:
        if event.seq < expected:
            found.append(Break(event.seq, "is there twice"))
            continue
        if event.seq > expected:
            found.append(_missing(expected, event.seq - 1))
        elif not event.hash and not before:
            unsealed += 1
        elif hash_of(before, event) != event.hash:
            found.append(Break(event.seq, "was edited, or what came before it was"))
        expected, before = event.seq + 1, event.hash
    found += _end(expected - 1, before, last_seq, last_hash)
    return Chain(len(kept), unsealed, sorted(found, key=lambda item: item.seq))


def _end(seq: int, hash_: str, last_seq: int, last_hash: str) -> list[Break]:
    if seq < last_seq:
        return [_missing(seq + 1, last_seq)]
    if seq > last_seq:
        return [Break(last_seq + 1, "is more than the job's head knows of")]
    return [Break(seq, "is not the event that the job's head knows")] if hash_ != last_hash else []


def _missing(first: int, last: int) -> Break:
    return Break(first, "is missing" if first == last else f"is missing, and so are those up to {last}")
