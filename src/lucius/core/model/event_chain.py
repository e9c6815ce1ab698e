"""Hash chain of a job's events: each hash covers all events before it, so edits, losses and moves are detected."""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Event

_encode = msgspec.json.Encoder(order="deterministic").encode
MAX_BREAKS = 100


class Break(Struct, frozen=True):
    """A position at which a chain is broken, and why."""

    seq: int
    what: str


class Chain(Struct, frozen=True):
    """Result of verifying a job's events. `unsealed` ones were written before hash chains existed."""

    events: int
    unsealed: int
    breaks: list[Break]


def hash_fields(before: str, *fields: Any) -> str:
    """Return the hash of an event with these fields after the event with hash `before`."""
    return hashlib.sha256(before.encode() + _encode(fields)).hexdigest()


def hash_of(before: str, event: Event) -> str:
    fields = (event.job_id, event.seq, event.type, event.at, event.step_id, event.attempt_no, event.data)
    return hash_fields(before, *fields, event.attempts) if event.attempts else hash_fields(before, *fields)


def seal_attempt(ended: EndedAttempt) -> tuple[str, str]:
    """Return name and digest of an ended attempt, as its last event records them."""
    return attempt_name(ended.step_id, ended.attempt.attempt_no), hashlib.sha256(_encode(ended)).hexdigest()


def attempt_name(step_id: str, attempt_no: int) -> str:
    return f"{step_id}#{attempt_no}"


class ChainVerifier:
    """Verifies the hash chain of a job's events, one by one, in constant memory."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.events = self.last = 0
        self._before: str | None = ""
        """Hash of the previous row; None if it can't be used to check the next one."""
        self._hashless = self._last_hashless = 0
        self._found: list[Break] = []
        self._omitted = 0

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
            self._omitted += 1

    def has_all(self, last_seq: int) -> bool:
        """Return whether no break was found so far, and no event up to `last_seq` is missing."""
        return not self._found and self.last >= last_seq

    def end(self, last_seq: int, last_hash: str, unsealed: int = 0) -> Chain:
        """Return the result, given number and hash of the last event from the job's head.

        `unsealed` is the number of the last event written before hash chains existed.
        """
        if self._last_hashless > unsealed:
            self.report(self._last_hashless, "has no hash, and nothing before it has")
        if self.last < last_seq:
            self.report(*_missing(self.last + 1, last_seq))
        elif self.last > last_seq:
            self.report(last_seq + 1, "is beyond the last event of the job's head")
        elif self._before is not None and self._before != last_hash:
            self.report(last_seq, "differs from the last event of the job's head")
        found = sorted(self._found, key=lambda item: item.seq)
        if self._omitted:
            found.append(Break(self.last, f"is the last that was looked at; {self._omitted} more breaks are left out"))
        return Chain(self.events, min(self._hashless, unsealed), found)


def verify_events(events: Iterable[Event], last_seq: int, last_hash: str, unsealed: int = 0) -> Chain:
    """Verify a job's events, given number and hash of the last one from the job's head."""
    kept = list(events)
    verifier = ChainVerifier(kept[0].job_id if kept else "")
    for event in kept:
        verifier.add(event.seq, event)
    return verifier.end(last_seq, last_hash, unsealed)


def _missing(first: int, last: int) -> tuple[int, str]:
    return first, "is missing" if first == last else f"is missing, and so are those up to {last}"
