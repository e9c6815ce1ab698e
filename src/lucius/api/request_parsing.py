"""Parses the bytes of a request to a value or a refusal, the same way for every route."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.types import Receive

from lucius.ports.sightings import Sender
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import fault_of

# The second is the default of curl -d and urllib, for any body.
JSON_TYPE = re.compile(rb"application/(?:(?:[a-z0-9.-]+\+)?json|x-www-form-urlencoded)\s*(?:;|$)", re.IGNORECASE)


def require_json(media_type: bytes | None) -> None:
    """Raise Rejected for a body that is not JSON; without a media type, it is taken for JSON."""
    if media_type is not None and not JSON_TYPE.match(media_type):
        raise Rejected(RejectCode.UNSUPPORTED_MEDIA_TYPE, "send the body as application/json")


def refuse_encoded(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise Rejected for a body that is compressed or encoded otherwise: it would be read as JSON."""
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            raise Rejected(RejectCode.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")


def read_headers(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, int, bytes | None]:
    """Return the bearer token, the length that the client declared, and the media type.

    Raises Rejected for two Authorization headers: a proxy may have checked the other one.
    """
    key, declared, media_type = "", 0, None
    authorized = False
    for name, value in headers:
        if name == b"authorization":
            if authorized:
                raise Rejected(RejectCode.UNAUTHENTICATED, "send one Authorization header, not several")
            authorized = True
            scheme, _, token = value.decode("latin-1").partition(" ")
            key = token.strip() if scheme.lower() == "bearer" else ""
        elif name == b"content-length" and value.isdigit():
            declared = int(value)
        elif name == b"content-type":
            media_type = value
    return key, declared, media_type


def read_sender(headers: Sequence[tuple[bytes, bytes]]) -> Sender:
    """Return the instance and the program that a service names itself by."""
    instance = agent = ""
    for name, value in headers:
        if name == b"x-lucius-instance":
            instance = value.decode("latin-1")
        elif name == b"user-agent":
            agent = value.decode("latin-1")
    return Sender(instance, agent)


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
    if message["type"] == "http.disconnect":  # the body is incomplete
        raise Rejected(RejectCode.MALFORMED_JSON, "the client hung up within the body")
    return body


def _too_large(limit: int) -> Rejected:
    return Rejected(RejectCode.BODY_TOO_LARGE, f"the body may have {limit} bytes")


def decode(body: bytes, decoder: Callable[[bytes], Any], kind: Any = None) -> Any:
    """Return the decoded body. Raises Rejected, with the allowed values for a wrong enum value of `kind`."""
    try:
        return decoder(body)
    except msgspec.ValidationError as error:
        fault = fault_of(str(error), kind=kind)
        detail = f"{fault.pointer}: {fault.message}" if fault.pointer else fault.message
        raise Rejected(RejectCode.INVALID_ENVELOPE, detail, [fault]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(RejectCode.MALFORMED_JSON, str(error)) from None
    except RecursionError:
        raise Rejected(RejectCode.MALFORMED_JSON, "the JSON is nested too deeply") from None
