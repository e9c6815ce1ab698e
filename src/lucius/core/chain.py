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


def link(before: str, *said: Any) -> str:
    """The hash of an event that says this and comes after the one whose hash is `before`."""
    return hashlib.sha256(before.encode() + _encode(said)).hexdigest()


def _hash(before: str, event: Event) -> str:
    return link(before, event.job_id, event.seq, event.type, event.at, event.step_id, event.attempt_no, event.data)


def breaks(events: Iterable[Event], last_seq: int, last_hash: str) -> list[Break]:
    """Everything wrong with a job's events, given what its head says of the last one."""
    found: list[Break] = []
    expected, before = 1, ""
    for event in events:
        if event.seq != expected:
            found.append(Break(expected, f"events {expected} to {event.seq - 1} are missing"))
        elif _hash(before, event) != event.hash:
            found.append(Break(event.seq, "was edited, or what came before it was"))
        expected, before = event.seq + 1, event.hash
    if expected != last_seq + 1:
        found.append(Break(expected, f"events {expected} to {last_seq} are missing"))
    elif before != last_hash:
        found.append(Break(last_seq, "is not the event that the job's head knows"))
    return found
