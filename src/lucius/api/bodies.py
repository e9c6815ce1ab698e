"""From the bytes of a request to a value, or to a refusal: the same for every route."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.types import Receive

from lucius.service.errors import RejectCode, Rejected
from lucius.service.json_values import fault_of

# The second is what curl -d and urllib say by themselves, whatever they are given to send.
JSON_TYPE = re.compile(rb"application/(?:(?:[a-z0-9.-]+\+)?json|x-www-form-urlencoded)\s*(?:;|$)", re.IGNORECASE)


def require_json(media_type: bytes | None) -> None:
    """A client that says nothing is believed to send JSON."""
    if media_type is not None and not JSON_TYPE.match(media_type):
        raise Rejected(RejectCode.UNSUPPORTED_MEDIA_TYPE, "send the body as application/json")


def read_headers(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, int, bytes | None]:
    """The bearer token, the length that the client declared, and the media type."""
    key, declared, media_type = "", 0, None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else ""
        elif name == b"content-length" and value.isdigit():
            declared = int(value)
        elif name == b"content-type":
            media_type = value
    return key, declared, media_type


async def read_body(receive: Receive, limit: int, declared: int) -> bytes:
    if declared > limit:
        raise _too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        chunks, size = [body], len(body)
        while message.get("more_body") and size <= limit:
            message = await receive()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
        body = b"".join(chunks)
    if len(body) > limit:
        raise _too_large(limit)
    if message["type"] == "http.disconnect":  # what came of the body is not what was meant
        raise Rejected(RejectCode.MALFORMED_JSON, "the client hung up within the body")
    return body


def _too_large(limit: int) -> Rejected:
    return Rejected(RejectCode.BODY_TOO_LARGE, f"the body may have {limit} bytes")


def decode(body: bytes, decoder: Callable[[bytes], Any]) -> Any:
    try:
        return decoder(body)
    except msgspec.ValidationError as error:
        fault = fault_of(str(error))
        detail = f"{fault.pointer}: {fault.message}" if fault.pointer else fault.message
        raise Rejected(RejectCode.INVALID_ENVELOPE, detail, [fault]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(RejectCode.MALFORMED_JSON, str(error)) from None
    except RecursionError:
        raise Rejected(RejectCode.MALFORMED_JSON, "the JSON is nested too deeply") from None
