"""Request headers that fill in members missing from a command's envelope."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from lucius.contract import CommandEnvelope, Fault
from lucius.contract.trace_context import (
    MAX_CORRELATION_CHARACTERS,
    is_header_text,
    is_traceparent,
    is_tracestate,
    new_traceparent,
    to_known_version,
)
from lucius.usecases.errors import RejectCode, Rejected

MAX_KEY_CHARACTERS = 256
READ = frozenset({b"traceparent", b"tracestate", b"x-correlation-id", b"idempotency-key"})


class RequestContext(Struct, frozen=True):
    """Values of the headers as received."""

    traceparent: str | None = None
    tracestate: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None


NOTHING = RequestContext()


def read_context(headers: Iterable[tuple[bytes, bytes]]) -> RequestContext:
    """Read the headers. The values of a repeated header are joined, which makes most of them invalid."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in READ:
            text = value.decode("latin-1").strip()
            found[name] = f"{found[name]},{text}" if name in found else text
    if not found:
        return NOTHING
    return RequestContext(
        found.get(b"traceparent"),
        found.get(b"tracestate"),
        found.get(b"x-correlation-id"),
        found.get(b"idempotency-key"),
    )


def apply_context(envelope: CommandEnvelope, context: RequestContext) -> tuple[CommandEnvelope, str | None]:
    """Fill in what the envelope lacks, and return it with the tracestate.

    A traceparent of a later version is rewritten, an invalid one replaced. Raises Rejected for an invalid
    Idempotency-Key: without it a repeat might become a second job.
    """
    changes: dict[str, str | None] = {}
    traceparent = envelope.traceparent if envelope.traceparent is not None else context.traceparent
    is_valid = traceparent is not None and is_traceparent(traceparent)
    if traceparent is not None:
        sent_on = to_known_version(traceparent) if is_valid else new_traceparent()
        if sent_on != envelope.traceparent:
            changes["traceparent"] = sent_on
    if envelope.correlation_id is None and _is_correlation_id(context.correlation_id):
        changes["correlation_id"] = context.correlation_id
    if envelope.idempotency_key is None and context.idempotency_key is not None:
        changes["idempotency_key"] = _checked_key(context.idempotency_key)
    tracestate = context.tracestate if is_valid and context.traceparent in (None, traceparent) else None
    if tracestate is not None and not is_tracestate(tracestate):
        tracestate = None
    return (replace(envelope, **changes) if changes else envelope), tracestate


def _is_correlation_id(text: str | None) -> bool:
    return text is not None and is_header_text(text) and len(text) <= MAX_CORRELATION_CHARACTERS


def _checked_key(text: str) -> str:
    """Return a key without the quotes of the IETF draft; most clients send it bare. Raises Rejected if invalid."""
    key = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if not is_header_text(key) or len(key) > MAX_KEY_CHARACTERS:
        message = f"the header Idempotency-Key must have 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
        raise Rejected(RejectCode.INVALID_ENVELOPE, message, [Fault("/idempotency_key", message)])
    return key
