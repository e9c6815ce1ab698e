"""Limits of batches, by the credential of the request, and the splitting of a batch into its items."""

import asyncio
import re
from typing import Any

import msgspec

from lucius.api.request_parsing import decode
from lucius.ports.clock import Clock
from lucius.usecases.access.auth import Authenticator
from lucius.usecases.callbacks.apply import Callbacks
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.submit.duplicate_members import count_members, count_names, refuse_duplicates

MAX_BATCH_ITEMS = 500
MAX_BATCH_TOKENS = 2_000_000
MAX_ANONYMOUS_BATCH_ITEMS = 100
MAX_ANONYMOUS_BATCH_BYTES = 1_048_576
MAX_ANONYMOUS_ITEM_BYTES = 65_536
MAX_ANONYMOUS_BATCH_TOKENS = 50_000
MAX_UNSCANNED_MARKS = 200_000
MAX_LOOP_BYTES = 1_048_576
ITEM_DEPTH = 2

# so that no byte is scanned twice
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)
_decode_any = msgspec.json.Decoder().decode


class BatchLimits(msgspec.Struct, frozen=True):
    """Sizes that a batch may have."""

    max_bytes: int
    max_items: int = MAX_BATCH_ITEMS
    max_item_bytes: int = 1_048_576
    max_tokens: int = MAX_BATCH_TOKENS
    is_anonymous: bool = False


class ItemHead(msgspec.Struct, frozen=True):
    """Members of a callback that decide whether the rest of it is decoded."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    callback_token: msgspec.Raw = msgspec.Raw(b"null")


class _CommandBatch(msgspec.Struct, forbid_unknown_fields=True):
    commands: list[msgspec.Raw]


class _CallbackBatch(msgspec.Struct, forbid_unknown_fields=True):
    callbacks: list[msgspec.Raw]


DECODERS = {
    "commands": msgspec.json.Decoder(_CommandBatch).decode,
    "callbacks": msgspec.json.Decoder(_CallbackBatch).decode,
}
_decode_head = msgspec.json.Decoder(ItemHead).decode
_decode_text = msgspec.json.Decoder(str).decode


def known_limits(max_batch_bytes: int, max_body_bytes: int) -> BatchLimits:
    """Return the limits for a caller that brings a credential."""
    return BatchLimits(max_batch_bytes, max_item_bytes=max_body_bytes)


class CallbackBatchRule:
    """Decides how large a batch of callbacks may be, from its `Authorization` alone.

    Each item is authorised by its own token. The header only shows that a known service sends the batch, so a body that
    is costly to read and decode is accepted from no other caller.
    """

    def __init__(self, auth: Authenticator, callbacks: Callbacks, clock: Clock, known: BatchLimits) -> None:
        self._auth = auth
        self._callbacks = callbacks
        self._clock = clock
        self._known = known

    def admit(self, key: str) -> BatchLimits:
        """Return the limits for this bearer token. Raises Rejected if it is wrong."""
        if not key:
            return self._anonymous(min(self._known.max_item_bytes, MAX_ANONYMOUS_ITEM_BYTES))
        try:
            claims = self._callbacks.verify(key)
        except Rejected:
            self._auth.authenticate(key).require("serve")
        else:
            if claims.expires_at < self._clock.now():  # heartbeats may have kept its lease, and so the token, alive
                return self._anonymous(self._known.max_item_bytes)
        return self._known

    def _anonymous(self, max_item_bytes: int) -> BatchLimits:
        max_bytes = min(self._known.max_item_bytes, self._known.max_bytes, MAX_ANONYMOUS_BATCH_BYTES)
        return BatchLimits(
            max_bytes, MAX_ANONYMOUS_BATCH_ITEMS, max_item_bytes, MAX_ANONYMOUS_BATCH_TOKENS, is_anonymous=True
        )


async def cut_items(body: bytes, name: str, limits: BatchLimits) -> list[bytes]:
    """Cut a batch `{name: […]}` into its undecoded items; a large one in a thread. Raises Rejected if it is too large.

    An item may still be larger than `limits.max_item_bytes`, unless the caller is anonymous: it is refused by itself.
    """
    if len(body) > MAX_LOOP_BYTES:
        return await asyncio.to_thread(_cut_items, body, name, limits)
    return _cut_items(body, name, limits)


def _cut_items(body: bytes, name: str, limits: BatchLimits) -> list[bytes]:
    marks = body.count(b",") + body.count(b"[") + body.count(b"{")
    if limits.is_anonymous and marks > limits.max_tokens:  # some may be within strings; to find out costs too much
        raise _too_dense(limits)
    if not limits.is_anonymous and marks > MAX_UNSCANNED_MARKS:
        _scan_items(body, limits)
    items = [bytes(item) for item in getattr(decode(body, DECODERS[name]), name)]
    if len(items) > limits.max_items:
        raise _too_many(limits)
    if limits.is_anonymous and any(len(item) > limits.max_item_bytes for item in items):
        detail = (
            f"without Authorization an item may have {limits.max_item_bytes} bytes; send a larger one with a "
            "callback_token or a key of scope serve as bearer token, or by itself"
        )
        raise Rejected(RejectCode.BODY_TOO_LARGE, detail)
    if count_names(body) != 1 + sum([count_names(item) for item in items]):  # only one name is allowed outside items
        raise Rejected(RejectCode.MALFORMED_JSON, f'an object has the member "{name}" twice')
    return items


def read_head(item: bytes) -> tuple[str, str]:
    """Return the type and the callback_token of an undecoded callback, each empty if it is no text."""
    try:
        head = decode(item, _decode_head)
    except Rejected as refusal:
        if refusal.code is RejectCode.INVALID_ENVELOPE:
            raise Rejected(RejectCode.INVALID_CALLBACK, "a callback must be a JSON object") from None
        raise
    return _read_text(head.type), _read_text(head.callback_token)


def _read_text(raw: msgspec.Raw) -> str:
    try:
        text: str = _decode_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return text


def decode_item(item: bytes) -> Any:
    """Decode an item. Raises Rejected if an object in it has a member twice."""
    value = decode(item, _decode_any)
    refuse_duplicates(item, count_members(value))
    return value


def require_item_size(item: bytes, limits: BatchLimits) -> None:
    """Raise Rejected for an item that would be too large as a request of its own."""
    if len(item) > limits.max_item_bytes:
        raise Rejected(RejectCode.BODY_TOO_LARGE, f"an item of a batch may have {limits.max_item_bytes} bytes")


def _scan_items(body: bytes, limits: BatchLimits) -> None:
    """Stop at the first item or token too many: cutting millions of tiny items apart takes a second and 600 MB."""
    depth, items = 0, 1
    for count, token in enumerate(_TOKEN.finditer(body)):
        if count >= limits.max_tokens:
            raise _too_dense(limits)
        match body[token.start()]:
            case 0x7B | 0x5B:  # { [
                depth += 1
            case 0x7D | 0x5D:  # } ]
                depth -= 1
            case 0x2C if depth == ITEM_DEPTH:  # ,
                items += 1
                if items > limits.max_items:
                    raise _too_many(limits)
            case _:
                pass


def _too_many(limits: BatchLimits) -> Rejected:
    detail = f"a batch may have {limits.max_items} items, this one has more"
    if limits.is_anonymous:
        detail += f"; with a callback_token or a key of scope serve as bearer token {MAX_BATCH_ITEMS}"
    return Rejected(RejectCode.BATCH_TOO_LARGE, detail)


def _too_dense(limits: BatchLimits) -> Rejected:
    detail = "the batch has too many values and members; send fewer items at once"
    if limits.is_anonymous:
        detail += ", or a callback_token or a key of scope serve as bearer token"
    return Rejected(RejectCode.BATCH_TOO_LARGE, detail)
