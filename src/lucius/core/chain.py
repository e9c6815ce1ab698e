"""Events as a hash chain: each carries the hash of all before it, so that none can be edited, lost or moved unseen."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from lucius.core.decision import EndedAttempt
from lucius.core.model import Event

_encode = msgspec.json.Encoder(order="deterministic").encode
MAX_BREAKS = 100


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
    said = (event.job_id, event.seq, event.type, event.at, event.step_id, event.attempt_no, event.data)
    return link(before, *said, event.attempts) if event.attempts else link(before, *said)


def seal(ended: EndedAttempt) -> tuple[str, str]:
    """What an event says of an attempt that ended with it: its name and a digest of all that is kept of it."""
    return attempt_name(ended.step_id, ended.attempt.attempt_no), hashlib.sha256(_encode(ended)).hexdigest()


def attempt_name(step_id: str, attempt_no: int) -> str:
    return f"{step_id}#{attempt_no}"


class Walk:
    """Along a job's rows, in the order of their places. Holds a few numbers and what it found, not the events."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.events = self.last = 0
        self._before: str | None = ""
        """The hash of the row before; None if that says nothing about the one that follows."""
        self._hashless = self._last_hashless = 0
        self._found: list[Break] = []
        self._left_out = 0

    def add(self, place: object, event: Event | None) -> None:
        self.events += event is not None
        if not isinstance(place, int) or place <= self.last:
            self.report(place if isinstance(place, int) else self.last, f"stands at {place!r}, where no event belongs")
            return
        if place > self.last + 1:
            self.report(*_missing(self.last + 1, place - 1))
            self._before = None
        self._check(place, event)
        self.last = place

    def _check(self, place: int, event: Event | None) -> None:
        before, self._before = self._before, None
        if event is None:
            self.report(place, "can't be read")
        elif event.seq != place:
            self.report(event.seq, f"stands where event {place} belongs")
        elif event.job_id != self.job_id:
            self.report(place, "was edited: it is of another job")
        elif not event.hash and not before:
            self._before = ""
            self._hashless += 1
            self._last_hashless = place
        else:
            self._before = event.hash
            if before is not None and hash_of(before, event) != event.hash:
                self.report(place, "was edited, or what came before it was")

    def report(self, seq: int, what: str) -> None:
        if len(self._found) < MAX_BREAKS:
            self._found.append(Break(seq, what))
        else:
            self._left_out += 1

    def has_all(self, last_seq: int) -> bool:
        """Whether nothing was odd so far, and no event is missing."""
        return not self._found and self.last >= last_seq

    def end(self, last_seq: int, last_hash: str, unsealed: int = 0) -> Chain:
        """Given what the job's head says of the last event, and of those from before there were chains."""
        if self._last_hashless > unsealed:
            self.report(self._last_hashless, "has no hash, and nothing before it has")
        if self.last < last_seq:
            self.report(*_missing(self.last + 1, last_seq))
        elif self.last > last_seq:
            self.report(last_seq + 1, "is more than the job's head knows of")
        elif self._before is not None and self._before != last_hash:
            self.report(last_seq, "is not the event that the job's head knows")
        found = sorted(self._found, key=lambda item: item.seq)
        if self._left_out:
            found.append(Break(self.last, f"is the last that was looked at; {self._left_out} more breaks are left out"))
        return Chain(self.events, min(self._hashless, unsealed), found)


def walk(events: Iterable[Event], last_seq: int, last_hash: str, unsealed: int = 0) -> Chain:
    """Everything wrong with a job's events, given what its head says of the last one."""
    kept = list(events)
    along = Walk(kept[0].job_id if kept else "")
    for event in kept:
        along.add(event.seq, event)
    return along.end(last_seq, last_hash, unsealed)


def _missing(first: int, last: int) -> tuple[int, str]:
    return first, "is missing" if first == last else f"is missing, and so are those up to {last}"
