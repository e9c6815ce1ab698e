"""Records as JSON payloads: what Temporal's console and CLI can show."""

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


class RecordPayloadConverter(EncodingPayloadConverter):
    """Whatever msgspec can encode, and back by the type that is expected."""

    @property
    def encoding(self) -> str:
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        return Payload(metadata={"encoding": b"json/plain"}, data=msgspec.json.encode(value))

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return msgspec.json.decode(payload.data, type=Any if type_hint is None else type_hint)


class RecordConverter(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(
            BinaryNullPayloadConverter(),
            BinaryPlainPayloadConverter(),
            JSONProtoPayloadConverter(),
            BinaryProtoPayloadConverter(),
            RecordPayloadConverter(),
        )
