"""Compares two versions of a protocol field by field. Steps are matched by id, not by position."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from lucius.contract.protocols import ProtocolChange
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.usecases.json_values import pointer

Path = tuple[str | int, ...]
Kind = Literal["ADDED", "REMOVED", "CHANGED", "MOVED"]


def protocol_changes(before: ProtocolDefinition, after: ProtocolDefinition) -> list[ProtocolChange]:
    """Return the changes in the order of the newer document; pointers of removals refer to the older one."""
    old, new = (msgspec.json.decode(msgspec.json.encode(protocol)) for protocol in (before, after))
    return [change for change in _changes(old, new, (), None) if change.pointer != "/version"]


def _changes(old: Any, new: Any, path: Path, step: str | None) -> Iterator[ProtocolChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _members(old, new, path, step)
    elif _is_steps(old) and _is_steps(new):
        yield from _steps(old, new, path, step)
    elif _is_same_shape(old, new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _changes(one, other, (*path, i), step)
    elif old != new or type(old) is not type(new):
        yield _change("CHANGED", path, step, old, new)


def _members(old: Mapping[str, Any], new: Mapping[str, Any], path: Path, step: str | None) -> Iterator[ProtocolChange]:
    step_id = new.get("step_id")
    step = step_id if isinstance(step_id, str) and step_id == old.get("step_id") else step
    for name, value in new.items():
        if name in old:
            yield from _changes(old[name], value, (*path, name), step)
        else:
            yield _change("ADDED", (*path, name), step, UNSET, value)
    for name, value in old.items():
        if name not in new:
            yield _change("REMOVED", (*path, name), step, value, UNSET)


def _steps(
    old: list[dict[str, Any]], new: list[dict[str, Any]], path: Path, step: str | None
) -> Iterator[ProtocolChange]:
    places = {spec["step_id"]: i for i, spec in enumerate(old)}
    kept = [spec["step_id"] for spec in new if spec["step_id"] in places]
    order = [step_id for step_id in places if step_id in kept]
    if kept != order:
        yield _change("MOVED", path, step, order, kept)
    for i, spec in enumerate(new):
        step_id = spec["step_id"]
        if step_id in places:
            yield from _changes(old[places[step_id]], spec, (*path, i), step)
        else:
            yield _change("ADDED", (*path, i), step_id, UNSET, spec)
    for step_id, i in places.items():
        if step_id not in kept:
            yield _change("REMOVED", (*path, i), step_id, old[i], UNSET)


def _is_steps(value: Any) -> bool:
    """Return True for a list of steps; a draft that repeats an id is compared by position."""
    if not isinstance(value, list) or not value:
        return False
    ids = [item.get("step_id") if isinstance(item, dict) else None for item in value]
    return all(isinstance(step_id, str) for step_id in ids) and len(set(ids)) == len(ids)


def _is_same_shape(old: Any, new: Any) -> bool:
    """Return True for lists of objects that can be compared one by one; other lists are compared as one value."""
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    return all(isinstance(item, dict) for item in (*old, *new))


def _change(kind: Kind, path: Path, step: str | None, before: Any, after: Any) -> ProtocolChange:
    return ProtocolChange(change=kind, pointer=pointer(path), stepId=step, before=before, after=after)
