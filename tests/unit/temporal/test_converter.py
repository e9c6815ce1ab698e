"""Records as payloads: readable JSON, compressed if large."""

import json
import zlib

import pytest
from temporalio.api.common.v1 import Payload

from lucius.engine.temporal import converter
from lucius.engine.temporal.converter import LARGE_BYTES, RecordConverter
from lucius.engine.temporal.messages import HandoverRequest, WorkflowArgs

WHAT = HandoverRequest("job-1", "ocr", 1, "lease-1", "ocr", "topic")
TEMPORALS_LIMIT = 2 * 1024 * 1024


def test_record_is_encoded_as_json_and_decoded_as_the_expected_type() -> None:
    (payload,) = RecordConverter().to_payloads([WHAT])
    assert payload.metadata["encoding"] == b"json/plain"
    assert json.loads(payload.data)["lease_id"] == "lease-1"
    assert RecordConverter().from_payloads([payload], [HandoverRequest]) == [WHAT]
    assert RecordConverter().from_payloads([payload])[0]["lease_id"] == "lease-1"


def test_large_record_is_compressed_below_the_limit_of_temporal() -> None:
    large = [HandoverRequest(f"job-{n}", "ocr", 1, f"lease-{n}", "ocr", "a/topic/of/a/lane") for n in range(30_000)]
    (payload,) = RecordConverter().to_payloads([large])
    assert payload.metadata["encoding"] == b"json/zlib"
    assert len(payload.data) < TEMPORALS_LIMIT / 4
    assert RecordConverter().from_payloads([payload], [list[HandoverRequest]]) == [large]


def test_payload_is_compressed_only_from_the_threshold_on() -> None:
    (payload,) = RecordConverter().to_payloads(["x" * (LARGE_BYTES - 2)])
    assert payload.metadata["encoding"] == b"json/plain"
    (payload,) = RecordConverter().to_payloads(["x" * (LARGE_BYTES - 1)])
    assert payload.metadata["encoding"] == b"json/zlib"


@pytest.mark.parametrize("data", [b"", b"rubbish", zlib.compress(b'"x"')[:-1]])
def test_malformed_compressed_payload_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="compressed payload"):
        RecordConverter().from_payloads([Payload(metadata={"encoding": b"json/zlib"}, data=data)])


def test_size_of_a_decompressed_payload_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "MAX_DECOMPRESSED_BYTES", 1_000)
    data = zlib.compress(b'"' + b"x" * 1_000 + b'"')
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        RecordConverter().from_payloads([Payload(metadata={"encoding": b"json/zlib"}, data=data)])


def test_none_and_bytes_use_the_standard_encodings_of_temporal() -> None:
    nothing, raw = RecordConverter().to_payloads([None, b"raw"])
    assert nothing.metadata["encoding"] == b"binary/null"
    assert raw.metadata["encoding"] == b"binary/plain"
    assert RecordConverter().from_payloads([nothing, raw]) == [None, b"raw"]


def test_payload_of_an_older_version_is_decoded() -> None:
    old = Payload(metadata={"encoding": b"json/plain"}, data=b'{"job_id":"job-1","of_later":1}')
    assert RecordConverter().from_payloads([old], [WorkflowArgs]) == [WorkflowArgs(job_id="job-1")]
