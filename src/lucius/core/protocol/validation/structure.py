"""Lists all structural faults of a document, as the decoder stops at the first."""

import enum
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from lucius.core.protocol.validation.suggestions import did_you_mean

MAX_FAULTS = 100

Path = tuple[str | int, ...]


class StructureFault(Struct, frozen=True):
    """A fault's location, reason and correction. `missing` names an absent member."""

    path: Path
    reason: str
    hint: str = ""
    missing: str = ""


def structure_faults(value: Any, kind: Any) -> tuple[StructureFault, ...]:
    """Return up to MAX_FAULTS reasons why a value is not a record of this type; empty if it is one."""
    found: list[StructureFault] = []
    for fault in _faults(value, kind, ()):
        found.append(fault)
        if len(found) == MAX_FAULTS:
            break
    return tuple(found)


def allowed_hint(value: object, kind: Any, path: Iterable[str | int] = ()) -> str:
    """Return a hint with the allowed values of a part of a record, if they can be enumerated; else an empty text."""
    for key in path:
        bare = _bare(kind)
        if isinstance(bare, type) and issubclass(bare, Struct) and key in _hints(bare):
            kind = _hints(bare)[str(key)]
        elif get_origin(bare) in (list, tuple):
            kind = get_args(bare)[0]
        else:
            return ""
    return _allowed(value, kind)


def _faults(value: Any, kind: Any, path: Path) -> Iterator[StructureFault]:
    """Yield the faults of the parts; if these are valid, those of the whole value, such as its length."""
    sound = True
    for fault in _part_faults(value, _bare(kind), path):
        sound = False
        yield fault
    if not sound:
        return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, _ = str(error).partition(" - at `")
        yield StructureFault(path, message.replace("`", ""), _allowed(value, kind))


def _part_faults(value: Any, kind: Any, path: Path) -> Iterator[StructureFault]:
    match get_origin(kind), value:
        case None, dict() if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _record_faults(value, kind, path)
        case origin, list() if origin is tuple:
            for number, item in enumerate(value):
                yield from _faults(item, get_args(kind)[0], (*path, number))
        case origin, dict() if origin is dict:
            name_kind, item_kind = get_args(kind)
            for name, item in value.items():
                yield from _faults(name, name_kind, (*path, name))
                yield from _faults(item, item_kind, (*path, name))
        case _:
            return


def _record_faults(value: dict[str, Any], kind: type[Struct], path: Path) -> Iterator[StructureFault]:
    kinds = _hints(kind)
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for name, item in value.items():
        if name in fields:
            yield from _faults(item, kinds[fields[name].name], (*path, name))
        elif kind.__struct_config__.forbid_unknown_fields:
            yield StructureFault((*path, name), f"unknown field {name[:128]}", did_you_mean(name[:128], fields))
    for name, field in fields.items():
        if field.required and name not in value:
            yield StructureFault(path, f"missing required field {name}", missing=name)


@lru_cache(64)
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _bare(kind: Any) -> Any:
    """Return a type without its constraints and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        kinds = [inner for inner in get_args(kind) if inner is not type(None)]
        return _bare(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _allowed(value: object, kind: Any) -> str:
    """Return a hint with the allowed values, if they can be enumerated."""
    bare = _bare(kind)
    allowed: list[str] = []
    if get_origin(bare) is Literal:
        allowed = [str(word) for word in get_args(bare)]
    elif isinstance(bare, type) and issubclass(bare, enum.Enum):
        allowed = [str(word.value) for word in bare]
    if not allowed:
        return ""
    return f"; it can be {', '.join(allowed)}{did_you_mean(value[:128], allowed) if isinstance(value, str) else ''}"
