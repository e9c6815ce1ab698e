"""Decodes the raw bytes of a command to an envelope, or reports everything that is wrong with it.

A valid command costs one decode. Only an invalid one is examined a second time, to name all of its faults instead of
the first.
"""

import difflib
import json
import math
import re
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec

from lucius.contract import CommandEnvelope, Fault
from lucius.core.model.routing import normalise_tenant
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import MAX_DEPTH, drop_nulls, fault_of, pointer, short_pointer, too_deep, walk
from lucius.usecases.submit.duplicate_members import count_members, refuse_duplicates

SCHEMA_VERSIONS = ("v1",)
MAX_FAULTS = 50

_decode = msgspec.json.Decoder(CommandEnvelope).decode
_FIELDS = {field.name: field for field in msgspec.structs.fields(CommandEnvelope)}
_field_values = attrgetter(*_FIELDS)
_BYTE = re.compile(r"\(byte (\d+)\)$")
_TENANT_MEMBER = re.compile(rb'"tenant_id"\s{0,8}:\s{0,8}"([A-Za-z0-9._-]{1,128})"')


def decode_command(raw: bytes) -> CommandEnvelope:
    """Return the envelope, with its null members dropped and its tenant id normalised.

    Raises Rejected: MALFORMED_JSON, INVALID_ENVELOPE, UNKNOWN_FIELD, UNSUPPORTED_SCHEMA_VERSION, INVALID_TENANT or
    NUMBER_NOT_REPRESENTABLE.
    """
    try:
        envelope = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope = _explain(raw)
    refuse_duplicates(raw, _count_given(envelope))
    # The number of brackets is a cheap bound of the depth; only a body with many is measured.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and too_deep(envelope.payload):
        raise _nested_too_deep()
    changes: dict[str, Any] = {}
    if b"null" in raw:
        changes["payload"] = drop_nulls(envelope.payload)
    tenant = _tenant(envelope.tenant_id)
    if tenant != envelope.tenant_id:
        changes["tenant_id"] = tenant
    return msgspec.structs.replace(envelope, **changes) if changes else envelope


def find_tenant(raw: bytes) -> str | None:
    """Find the tenant of an undecoded command cheaply. It is a guess, as another member may have that name."""
    found = _TENANT_MEMBER.search(raw)
    return normalise_tenant(found[1].decode()) if found else None


def _count_given(envelope: CommandEnvelope) -> int:
    """Count the members that the client gave, without nulls."""
    urls, target = envelope.callback_urls, envelope.target
    given = len(_FIELDS) - _field_values(envelope).count(None) + count_members(envelope.payload)
    return given + (3 - (urls.ack, urls.result, urls.job).count(None) if urls else 0) + (2 if target else 0)


def _tenant(tenant_id: str) -> str:
    tenant = normalise_tenant(tenant_id)
    if tenant is None:
        message = "must be 1 to 128 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit"
        raise Rejected(RejectCode.INVALID_TENANT, f"tenant_id {message}", [Fault("/tenant_id", message)])
    return tenant


def _explain(raw: bytes) -> CommandEnvelope:
    """Raise Rejected with all faults; return the envelope if null members were the only problem."""
    body = drop_nulls(_parse(raw))
    if not isinstance(body, dict):
        raise Rejected(RejectCode.INVALID_ENVELOPE, "the body must be a JSON object", [Fault("", "must be an object")])
    version = body.get("schema_version")
    if isinstance(version, str) and version not in SCHEMA_VERSIONS:
        # A command of another version can't be judged by the rules of this one.
        message = f"supported: {', '.join(SCHEMA_VERSIONS)}"
        raise Rejected(RejectCode.UNSUPPORTED_SCHEMA_VERSION, message, [Fault("/schema_version", message)])
    unknown = [Fault(pointer([name]), _unknown(name)) for name in body if name not in _FIELDS]
    wrong = _missing(body) + _mistyped(body)
    if wrong:
        raise _refusal(RejectCode.INVALID_ENVELOPE, wrong + unknown)
    if unknown:
        raise _refusal(RejectCode.UNKNOWN_FIELD, unknown)
    return msgspec.convert(body, CommandEnvelope)


def _refusal(code: RejectCode, faults: list[Fault]) -> Rejected:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Rejected(code, f"{first.pointer}: {first.message}{more}", faults[:MAX_FAULTS])


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name[:64], _FIELDS, n=1)
    return f"unknown field; did you mean {close[0]}?" if close else "unknown field"


def _missing(body: dict[str, Any]) -> list[Fault]:
    return [
        Fault(pointer([name]), "required field is missing")
        for name, field in _FIELDS.items()
        if field.required and name not in body
    ]


def _mistyped(body: dict[str, Any]) -> list[Fault]:
    faults = []
    for name, field in _FIELDS.items():
        if name not in body:
            continue
        try:
            msgspec.convert(body[name], field.type)
        except msgspec.ValidationError as error:
            faults.append(fault_of(str(error), [name], field.type))
    return faults


def _parse(raw: bytes) -> Any:
    """Return the body as plain values. Raises Rejected for invalid JSON, deep nesting or numbers out of range."""
    try:
        body = msgspec.json.decode(raw)
    except RecursionError:
        raise _nested_too_deep() from None
    except UnicodeDecodeError:
        raise _malformed(raw, _first_bad_byte(raw), "the text is not UTF-8") from None
    except msgspec.ValidationError as error:  # the syntax is valid, but a number is out of range
        raise _number_out_of_range(raw, str(error)) from None
    except msgspec.DecodeError as error:
        raise _malformed(raw, *_where(raw, str(error))) from None
    if too_deep(body):
        raise _nested_too_deep()
    return body


def _where(raw: bytes, text: str) -> tuple[int, str]:
    """Return offset and reason from the standard library, which is exact, or from msgspec, which is stricter."""
    try:
        json.loads(raw.decode())
    except json.JSONDecodeError as error:
        return len(error.doc[: error.pos].encode()), error.msg
    except (ValueError, RecursionError):
        pass
    found = _BYTE.search(text)
    return int(found[1]) if found else len(raw), _BYTE.sub("", text.removeprefix("JSON is malformed: ")).strip()


def _malformed(raw: bytes, offset: int, reason: str) -> Rejected:
    offset = min(offset, len(raw))
    line = raw.count(b"\n", 0, offset) + 1
    column = len(raw[raw.rfind(b"\n", 0, offset) + 1 : offset].decode(errors="replace")) + 1
    where = f"line {line}, column {column} (byte {offset})"
    if not raw.strip():
        reason = "the body is empty"
    return Rejected(RejectCode.MALFORMED_JSON, f"{reason} at {where}", [Fault("", f"{reason} at {where}")])


def _first_bad_byte(raw: bytes) -> int:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _nested_too_deep() -> Rejected:
    message = f"objects and arrays are nested deeper than {MAX_DEPTH} levels"
    return Rejected(RejectCode.INVALID_ENVELOPE, message, [Fault("", message)])


class _TooBig:
    """Placeholder for a number that is too large for any type."""


def _number_out_of_range(raw: bytes, reason: str) -> Rejected:
    """Return a refusal with all numbers out of range; only the standard library's decoder can continue past one."""

    def parse_int(text: str) -> int | _TooBig:
        return int(text) if len(text) < 300 else _TooBig()

    def parse_float(text: str) -> float | _TooBig:
        value = float(text)
        return value if math.isfinite(value) else _TooBig()

    try:
        body = json.loads(raw, parse_int=parse_int, parse_float=parse_float)
    except (ValueError, RecursionError):
        body = None
    message = "the number is too large"
    found = (Fault(short_pointer(path), message) for path, item in walk(body) if isinstance(item, _TooBig))
    faults = list(islice(found, MAX_FAULTS))
    if not faults:
        faults = [Fault("", reason.partition(" - at")[0])]
    return _refusal(RejectCode.NUMBER_NOT_REPRESENTABLE, faults)
