"""What is stored as a record's JSON, field by field: code of the version before reads it too, and writes it back.

During an upgrade both versions work on the same ledger. Old code that moves a job on writes its records as it knows
them: a field that only new code knows is gone after that. So a change here is a decision, and this is where it is seen.
"""

import enum
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import FieldInfo, fields

from lucius.adapters import rows
from lucius.adapters.postgres.schema import MIGRATIONS
from lucius.core.decision import EndedAttempt
from lucius.core.model import Attempt, Event, Job, OutboxRow, Quarantined, ReviewItem, Step, StepStatus
from lucius.core.protocol import Protocol
from lucius.ports.protocols import ProtocolVersion
from tests.conformance.builders import step

STORED = (Job, Step, EndedAttempt, OutboxRow, Event, Quarantined, ReviewItem, Protocol, ProtocolVersion)
LISTING = Path(__file__).with_name("stored_records.txt")
WHAT_TO_DO = """
The records that ledgers store have changed. Replicas of the version before erase what they don't know when they move a
job on, can't read a value that they don't know, and refuse a protocol that has a field more. Either

- add a migration (it may have no statements) whose `compatible_with` is its own number, write that number into the
  first line of {listing}, and say in the changelog that the old replicas must be stopped first: they are refused when
  they start, not while they run; or
- if old code may drop the field, note behind it in {listing} why: `Job.field: int  # may be lost: …`;

and bring {listing} in line: added {added}, gone {gone}.
"""


def listed() -> tuple[str, set[str]]:
    first, *lines = LISTING.read_text().splitlines()
    return first, {line.partition("  #")[0] for line in lines}


def stored() -> Iterator[str]:
    """Every field of every record that is part of another, and every value of what has only a few."""
    waiting: list[Any] = list(STORED)
    seen: set[Any] = set()
    while waiting:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            yield from (f"{kind.__name__} = {one.value}" for one in kind)
        elif isinstance(kind, type) and issubclass(kind, Struct):
            yield from (f"{kind.__name__}.{written_field(field)}" for field in fields(kind))
            waiting += [field.type for field in fields(kind)]
        else:
            waiting += [part for part in typing.get_args(kind) if typing.get_origin(kind) is not typing.Literal]


def written_field(field: FieldInfo) -> str:
    """With its default, which is not stored: another one would change what old rows say."""
    shown = f"{field.encode_name}: {written(field.type)}"
    if field.default is not NODEFAULT:
        return f"{shown} = {msgspec.to_builtins(field.default)!r}"
    return shown if field.default_factory is NODEFAULT else f"{shown} = {field.default_factory()!r}"


def written(kind: Any) -> str:
    """The same in every version of Python."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(written(part) for part in parts)
    if origin is typing.Literal:
        return f"Literal{list(parts)}"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(written(part) for part in parts)}]"
    names = {Ellipsis: "...", types.NoneType: "None"}
    return names.get(kind) or str(getattr(kind, "__name__", kind))


def test_a_change_of_what_is_stored_is_a_decision() -> None:
    _, known = listed()
    found = set(stored())
    added, gone = sorted(found - known), sorted(known - found)
    assert not added, WHAT_TO_DO.format(listing=LISTING.name, added=added, gone=gone)
    assert not gone, WHAT_TO_DO.format(listing=LISTING.name, added=added, gone=gone)


def test_the_listing_says_which_code_may_still_write_it() -> None:
    first, _ = listed()
    assert first == f"# compatible with version {max(migration.compatible_with for migration in MIGRATIONS)}"


def without(kind: type[Struct], name: str, **others: type) -> type[Struct]:
    """The record as it was before it had this field."""

    def of(field: FieldInfo) -> tuple[Any, ...]:
        default = field.default if field.default is not NODEFAULT else UNSET
        if field.default_factory is not NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        of_type = others.get(field.name, field.type)
        return (field.name, of_type) if default is UNSET else (field.name, of_type, default)

    kept = [of(field) for field in fields(kind) if field.name != name]
    return msgspec.defstruct(f"Old{kind.__name__}", kept, frozen=True, kw_only=True, omit_defaults=True)


class TestOldCode:
    """Which reads a step, moves it on, and writes it."""

    def test_it_drops_a_field_that_it_does_not_know(self) -> None:
        new = step("j1", visit=2)
        assert rows.step(self.moved_on(without(Step, "visit"), new)).visit == 1
        assert rows.step(self.moved_on(Step, new)).visit == 2

    def test_nested_ones_too(self) -> None:
        new = step("j1")
        new = msgspec.structs.replace(new, attempt=msgspec.structs.replace(new.attempt, claimed_at=7))
        old = without(Step, "", attempt=without(Attempt, "claimed_at"))
        assert rows.step(self.moved_on(old, new)).attempt.claimed_at is None

    def moved_on(self, kind: type[Struct], record: Step) -> str:
        known = msgspec.json.decode(rows.body(record), type=kind)
        moved = rows.step(rows.body(msgspec.structs.replace(known, status=StepStatus.PROCESSING)))
        assert moved.status is StepStatus.PROCESSING
        assert (moved.step_id, moved.attempt.lease_id) == (record.step_id, record.attempt.lease_id)
        return rows.body(moved)
