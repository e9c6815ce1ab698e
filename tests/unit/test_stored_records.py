"""Stored records field by field: the previous version's code also reads and rewrites their JSON.

During an upgrade both versions work on the same ledger. When old code changes a job, it rewrites the records as it
knows them and drops fields that only new code knows. A change here is therefore a decision, and this test shows it.
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

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.postgres.schema import MIGRATIONS
from lucius.core.model.decision import EndedAttempt
from lucius.core.model.records import Attempt, Event, Job, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.protocols import ProtocolVersion
from tests.conformance.builders import step

STORED = (Job, Step, EndedAttempt, OutboxRow, Event, Quarantined, ReviewItem, ProtocolDefinition, ProtocolVersion)
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
    """Yield every field of every record that is part of another, and every value of enumerated types."""
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
            yield from (f"{kind.__qualname__}.{written_field(field)}" for field in fields(kind))
            waiting += [field.type for field in fields(kind)]
        else:
            waiting += [part for part in typing.get_args(kind) if typing.get_origin(kind) is not typing.Literal]


def written_field(field: FieldInfo) -> str:
    """Return the field with its default, which is not stored: another default would change the meaning of old rows."""
    shown = f"{field.encode_name}: {written(field.type)}"
    if field.default is not NODEFAULT:
        return f"{shown} = {msgspec.to_builtins(field.default)!r}"
    return shown if field.default_factory is NODEFAULT else f"{shown} = {field.default_factory()!r}"


def written(kind: Any) -> str:
    """Return a type's name, the same in every version of Python."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(written(part) for part in parts)
    if origin is typing.Literal:
        return f"Literal{list(parts)}"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(written(part) for part in parts)}]"
    names = {Ellipsis: "...", types.NoneType: "None"}
    return names.get(kind) or str(getattr(kind, "__qualname__", kind))


def test_stored_fields_equal_the_listing() -> None:
    _, known = listed()
    found = set(stored())
    added, gone = sorted(found - known), sorted(known - found)
    assert not added, WHAT_TO_DO.format(listing=LISTING.name, added=added, gone=gone)
    assert not gone, WHAT_TO_DO.format(listing=LISTING.name, added=added, gone=gone)


def test_listing_names_the_oldest_compatible_version() -> None:
    first, _ = listed()
    assert first == f"# compatible with version {max(migration.compatible_with for migration in MIGRATIONS)}"


def without(kind: type[Struct], name: str, **others: type) -> type[Struct]:
    """Return the record type without this field, as it was before."""

    def of(field: FieldInfo) -> tuple[Any, ...]:
        default = field.default if field.default is not NODEFAULT else UNSET
        if field.default_factory is not NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory)
        of_type = others.get(field.name, field.type)
        return (field.name, of_type) if default is UNSET else (field.name, of_type, default)

    kept = [of(field) for field in fields(kind) if field.name != name]
    return msgspec.defstruct(f"Old{kind.__name__}", kept, frozen=True, kw_only=True, omit_defaults=True)


class TestOldCode:
    """Old code that reads a step, changes it and writes it."""

    def test_old_code_drops_an_unknown_field(self) -> None:
        new = step("j1", visit=2)
        assert record_codec.decode_step(self.advanced_by_old_code(without(Step, "visit"), new)).visit == 1
        assert record_codec.decode_step(self.advanced_by_old_code(Step, new)).visit == 2

    def test_old_code_drops_an_unknown_nested_field(self) -> None:
        new = step("j1")
        new = msgspec.structs.replace(new, attempt=msgspec.structs.replace(new.attempt, claimed_at=7))
        old = without(Step, "", attempt=without(Attempt, "claimed_at"))
        assert record_codec.decode_step(self.advanced_by_old_code(old, new)).attempt.claimed_at is None

    def advanced_by_old_code(self, kind: type[Struct], record: Step) -> str:
        known = msgspec.json.decode(record_codec.body(record), type=kind)
        moved = record_codec.decode_step(
            record_codec.body(msgspec.structs.replace(known, status=StepStatus.PROCESSING))
        )
        assert moved.status is StepStatus.PROCESSING
        assert (moved.step_id, moved.attempt.lease_id) == (record.step_id, record.attempt.lease_id)
        return record_codec.body(moved)
