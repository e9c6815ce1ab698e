"""Converts records to JSON payloads, which Temporal's console and CLI can show.

Large ones are compressed, as Temporal refuses payloads over 2 MB.
"""

import threading
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
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""Limit of a payload after decompression."""


class CompressedConverter(EncodingPayloadConverter):
    """Encodes values as JSON, compressed if large."""

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
            data = unfolding.decompress(payload.data, MAX_DECOMPRESSED_BYTES)
        except zlib.error as error:
            raise ValueError(f"a compressed payload does not unfold: {error}") from None
        if not unfolding.eof:
            raise ValueError(f"a compressed payload is cut off, or has more than {MAX_DECOMPRESSED_BYTES} bytes")
        return _decoded(data, type_hint)


class RecordPayloadConverter(EncodingPayloadConverter):
    """Encodes values as JSON, and decodes them to the expected type."""

    @property
    def encoding(self) -> str:
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        return _plain(msgspec.json.encode(value))

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return _decoded(payload.data, type_hint)


class RecordConverter(CompositePayloadConverter):
    """Encodes with the first converter that accepts the value; each converter decodes its own encoding."""

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
    return _decoder(Any if type_hint is None else type_hint).decode(data)


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_building = threading.Lock()  # msgspec crashes if several workflow threads build decoders of the same types at once


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        with _building:
            found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found
