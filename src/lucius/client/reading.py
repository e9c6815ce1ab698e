"""Decoding of answers from a server that may be newer than this client.

Unknown fields are ignored, and unknown enum values are kept as text. A strict, fast decoder is tried first; only an
answer that does not fit it is decoded again by more lenient rules.
"""

import threading
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


def read(answer: bytes, kind: type[T]) -> T:
    """Decode an answer as `kind`. Raises ValueError if it does not fit."""
    try:
        return _decoder(kind).decode(answer)
    except msgspec.ValidationError:
        fitted: T = _fit(msgspec.json.decode(answer), inspect.type_info(kind))
        return fitted
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from None


def convert(value: Any, kind: type[T]) -> T:
    """Convert a value that is already decoded from JSON to `kind`. Raises ValueError if it does not fit."""
    fitted: T = _fit(value, inspect.type_info(kind))
    return fitted


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_building = threading.Lock()  # msgspec crashes if several threads build decoders of the same types at once


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _decoders.get(kind)
    if found is None:
        with _building:
            found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


def _fit(value: Any, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType():
            return _fit_record(value, kind)
        case inspect.ListType():
            return [_fit(item, kind.item_type) for item in _require(value, list, kind)]
        case inspect.DictType():
            return {name: _fit(item, kind.value_type) for name, item in _require(value, dict, kind).items()}
        case inspect.UnionType():
            return _fit_one_of(value, kind.types)
        case inspect.LiteralType():
            return _require(value, (str, int), kind)
        case inspect.StrType():
            return _require(value, str, kind)
        case inspect.BoolType():
            return _require(value, bool, kind)
        case inspect.IntType():
            return _require(value, int, kind)
        case inspect.FloatType():
            return _require(value, (int, float), kind)
        case inspect.NoneType():
            return _require(value, type(None), kind)
        case _:
            return value


def _require(value: Any, wanted: type | tuple[type, ...], kind: inspect.Type) -> Any:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise msgspec.ValidationError(f"{type(kind).__name__.removesuffix('Type').lower()} expected, not {value!r:.80}")
    return value


def _fit_record(value: Any, kind: inspect.StructType) -> Any:
    given = _require(value, dict, kind)
    values: dict[str, Any] = {}
    for field in kind.fields:
        if field.encode_name in given:
            values[field.name] = _fit(given[field.encode_name], field.type)
        elif field.required:
            raise msgspec.ValidationError(f"{field.encode_name} of {kind.cls.__name__} is missing")
    return kind.cls(**values)


def _fit_one_of(value: Any, kinds: tuple[inspect.Type, ...]) -> Any:
    for kind in kinds[:-1]:
        try:
            return _fit(value, kind)
        except msgspec.ValidationError:
            continue
    return _fit(value, kinds[-1])
