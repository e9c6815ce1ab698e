"""W3C Trace Context (`traceparent`, `tracestate`): validation and conversion to headers."""

import re
import secrets
from collections.abc import Mapping

MAX_TRACEPARENT_CHARACTERS = 256
MAX_TRACESTATE_CHARACTERS = 512
MAX_TRACESTATE_MEMBERS = 32
MAX_CORRELATION_CHARACTERS = 256
SAMPLED = 0x01

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?")
_KEY = r"[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
_MEMBER = re.compile(rf"(?:{_KEY})=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]")


def is_traceparent(text: str) -> bool:
    """Return True for a valid traceparent; a later version may have further fields, up to 256 characters in all."""
    if len(text) > MAX_TRACEPARENT_CHARACTERS:
        return False
    found = _TRACEPARENT.fullmatch(text)
    return found is not None and not (text.startswith("00") and found[1])


def to_known_version(traceparent: str) -> str:
    """Rewrite a valid traceparent of a later version as version 00, as W3C requires when it is passed on.

    Keeps the ids and the one known flag (sampled).
    """
    version, trace_id, parent_id, flags = traceparent.split("-")[:4]
    if version == "00":
        return traceparent
    return f"00-{trace_id}-{parent_id}-{int(flags, 16) & SAMPLED:02x}"


def is_tracestate(text: str) -> bool:
    if len(text) > MAX_TRACESTATE_CHARACTERS:
        return False
    members = [part.strip(" \t") for part in text.split(",")]
    given = [member for member in members if member]
    keys = {member.partition("=")[0] for member in given}
    return (
        0 < len(given) == len(keys)
        and len(given) <= MAX_TRACESTATE_MEMBERS
        and all(_MEMBER.fullmatch(member) for member in given)
    )


def new_traceparent() -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def is_header_text(text: str) -> bool:
    """Return True if a text can be a header value unchanged."""
    return text.isascii() and text.isprintable() and text == text.strip() and len(text) > 0


def trace_headers(traceparent: str | None, tracestate: str | None, correlation_id: str) -> Mapping[str, str]:
    """Return a job's trace context as headers; values that are not valid for their header are left out."""
    headers: dict[str, str] = {}
    if traceparent and is_traceparent(traceparent):
        headers["traceparent"] = to_known_version(traceparent)
        if tracestate and is_tracestate(tracestate):
            headers["tracestate"] = tracestate
    if len(correlation_id) <= MAX_CORRELATION_CHARACTERS and is_header_text(correlation_id):
        headers["x-correlation-id"] = correlation_id
    return headers
