"""What a client asks for."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict

from lucius.contract import Target

Mode = Literal["DEFAULT", "SAFE", "BURST"]
Ref = str | PathLike[str]
"""A URI such as blob://in/a.pdf as text, or a path of this machine."""


class CommandOptions(TypedDict, total=False):
    """What a command may say beside what it must.

    `payload` has a member for each step that takes one. With an `idempotency_key` the same key is the same job; without
    one, the same content is. `callback_url` is told when the job has ended. `trace` is a W3C traceparent.
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
    """One of many, for `submit_many`; the same names as `submit` has."""

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
        """As it is sent; `trace` is for one that has none of its own."""
        said = {
            "idempotency_key": self.idempotency_key,
            "mode": self.mode,
            "doc_id": self.doc_id,
            "callback_urls": {"job": self.callback_url} if self.callback_url else None,
            "correlation_id": self.correlation_id,
            "target": self.target,
            "protocol_version": self.protocol_version,
            "traceparent": self.trace or trace,
        }
        return {
            "tenant_id": self.tenant,
            "request_type": self.request_type,
            "input_ref": _uri(self.input),
            "output_ref": _uri(self.output),
            "payload": dict(self.payload or {}),
            "schema_version": "v1",
            **{name: value for name, value in said.items() if value is not None},
        }


def _uri(ref: Ref) -> str:
    return ref if isinstance(ref, str) else Path(ref).expanduser().absolute().as_uri()
