"""Commands that a client submits, and their envelopes."""

import hashlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec

from lucius.contract import Target

Mode = Literal["DEFAULT", "SAFE", "BURST"]
Ref = str | PathLike[str]
"""A URI such as blob://in/a.pdf as text, or a path on this machine."""


# The members by which the server recognizes a repeated command.
_IDENTITY = frozenset({"tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version"})

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class CommandOptions(TypedDict, total=False):
    """Optional members of a command.

    `payload` has a member for each step that takes one. With an `idempotency_key` the same key is the same job; without
    one, the same command is, and for an input that is a local `Path` its content counts too. `callback_url` is called
    when the job has ended. `trace` is a W3C traceparent.
    """

    payload: Mapping[str, Any] | None
    idempotency_key: str | None
    mode: Mode | None
    doc_id: str | None
    callback_url: str | None
    correlation_id: str | None
    target: Target | None
    protocol_version: int | None
    trace: str | None


@dataclass(frozen=True)
class Command:
    """Command for `submit_many`, with the same names as the arguments of `submit`."""

    request_type: str
    _: KW_ONLY
    tenant: str
    input: Ref
    output: Ref
    payload: Mapping[str, Any] | None = field(default=None, hash=False)
    idempotency_key: str | None = None
    mode: Mode | None = None
    doc_id: str | None = None
    callback_url: str | None = None
    correlation_id: str | None = None
    target: Target | None = None
    protocol_version: int | None = None
    trace: str | None = None

    def envelope(self, trace: str | None = None) -> dict[str, Any]:
        """Return the command as it is sent; `trace` applies if it has none of its own."""
        envelope = self._required()
        optional = {
            "idempotency_key": self.idempotency_key or self._content_key(envelope),
            "mode": self.mode,
            "doc_id": self.doc_id,
            "callback_urls": {"job": self.callback_url} if self.callback_url else None,
            "correlation_id": self.correlation_id,
            "target": self.target,
            "protocol_version": self.protocol_version,
            "traceparent": self.trace or trace,
        }
        return envelope | {name: value for name, value in optional.items() if value is not None}

    @property
    def reads_file(self) -> bool:
        """True if `envelope` reads the input's content."""
        return not isinstance(self.input, str) and self.idempotency_key is None

    def _required(self) -> dict[str, Any]:
        return {
            "tenant_id": self.tenant,
            "request_type": self.request_type,
            "input_ref": _uri(self.input),
            "output_ref": _uri(self.output),
            "payload": dict(self.payload or {}),
            "schema_version": "v1",
        }

    def _content_key(self, envelope: Mapping[str, Any]) -> str | None:
        return content_key(Path(self.input).expanduser(), envelope) if self.reads_file else None


def content_key(path: Path, envelope: Mapping[str, Any]) -> str | None:
    """Derive an idempotency key from a file's content and the command about it, so that a changed file is a new job.

    None if the path is not a file that can be read here: only the services may have it.
    """
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
    command = {name: value for name, value in envelope.items() if name in _IDENTITY}
    command["tenant_id"] = str(command.get("tenant_id")).strip().lower()
    return "content-" + hashlib.sha256(content.encode() + _encode_sorted(command)).hexdigest()


def _uri(ref: Ref) -> str:
    return ref if isinstance(ref, str) else Path(ref).expanduser().absolute().as_uri()
