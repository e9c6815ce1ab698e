"""Records as JSON payloads, which Temporal's console and CLI can show; large ones compressed: Temporal takes 2 MB."""

import zlib
from typing import Any

import msgspec
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    BinaryNullPayloadConverter,
    BinaryPlainPayloadConverter,
    BinaryProtoPayloadConverter,
    CompositePayloadConverter,
    EncodingPayloadConverter,
    JSONProtoPayloadConverter,
)

LARGE_BYTES = 32 * 1024
MOST_BYTES = 64 * 1024 * 1024
"""What a payload may unfold to."""


class CompressedConverter(EncodingPayloadConverter):
    """Whatever msgspec can encode, if that is large."""

    @property
    def encoding(self) -> str:
        return "json/zlib"

    def to_payload(self, value: Any) -> Payload | None:
        data = msgspec.json.encode(value)
        if len(data) <= LARGE_BYTES:
            return _plain(data)
        return Payload(metadata={"encoding": self.encoding.encode()}, data=zlib.compress(data, 1))

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        unfolding = zlib.decompressobj()
        try:
            data = unfolding.decompress(payload.data, MOST_BYTES)
        except zlib.error as error:
            raise ValueError(f"a compressed payload does not unfold: {error}") from None
        if not unfolding.eof:
            raise ValueError(f"a compressed payload is cut off, or has more than {MOST_BYTES} bytes")
        return _decoded(data, type_hint)


class RecordPayloadConverter(EncodingPayloadConverter):
    """And back by the type that is expected."""

    @property
    def encoding(self) -> str:
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        return _plain(msgspec.json.encode(value))

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return _decoded(payload.data, type_hint)


class RecordConverter(CompositePayloadConverter):
    """The first that can writes; each reads its own encoding."""

    def __init__(self) -> None:
        super().__init__(
            BinaryNullPayloadConverter(),
            BinaryPlainPayloadConverter(),
            JSONProtoPayloadConverter(),
            BinaryProtoPayloadConverter(),
            CompressedConverter(),
            RecordPayloadConverter(),
        )


def _plain(data: bytes) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=data)


def _decoded(data: bytes, type_hint: type | None) -> Any:
    return msgspec.json.decode(data, type=Any if type_hint is None else type_hint)
