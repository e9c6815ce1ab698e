"""Records as payloads: JSON that a person can read; compressed where it is large."""

import json
import zlib

import pytest
from temporalio.api.common.v1 import Payload

from lucius.engine.temporal import converter
from lucius.engine.temporal.converter import LARGE_BYTES, RecordConverter
from lucius.engine.temporal.wire import Begin, HandOver

WHAT = HandOver("job-1", "ocr", 1, "lease-1", "ocr", "topic")
TEMPORALS_LIMIT = 2 * 1024 * 1024


def test_a_record_is_json_and_comes_back_as_the_type_that_is_expected() -> None:
    (payload,) = RecordConverter().to_payloads([WHAT])
    assert payload.metadata["encoding"] == b"json/plain"
    assert json.loads(payload.data)["lease_id"] == "lease-1"
    assert RecordConverter().from_payloads([payload], [HandOver]) == [WHAT]
    assert RecordConverter().from_payloads([payload])[0]["lease_id"] == "lease-1"


def test_a_large_record_is_compressed_so_that_temporal_takes_it() -> None:
    large = [HandOver(f"job-{n}", "ocr", 1, f"lease-{n}", "ocr", "a/topic/of/a/lane") for n in range(30_000)]
    (payload,) = RecordConverter().to_payloads([large])
    assert payload.metadata["encoding"] == b"json/zlib"
    assert len(payload.data) < TEMPORALS_LIMIT / 4
    assert RecordConverter().from_payloads([payload], [list[HandOver]]) == [large]


def test_what_is_just_small_enough_stays_readable() -> None:
    (payload,) = RecordConverter().to_payloads(["x" * (LARGE_BYTES - 2)])
    assert payload.metadata["encoding"] == b"json/plain"
    (payload,) = RecordConverter().to_payloads(["x" * (LARGE_BYTES - 1)])
    assert payload.metadata["encoding"] == b"json/zlib"


@pytest.mark.parametrize("data", [b"", b"rubbish", zlib.compress(b'"x"')[:-1]])
def test_what_does_not_unfold_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="compressed payload"):
        RecordConverter().from_payloads([Payload(metadata={"encoding": b"json/zlib"}, data=data)])


def test_a_payload_can_not_unfold_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "MOST_BYTES", 1_000)
    data = zlib.compress(b'"' + b"x" * 1_000 + b'"')
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        RecordConverter().from_payloads([Payload(metadata={"encoding": b"json/zlib"}, data=data)])


def test_nothing_and_bytes_are_what_they_are_everywhere_in_temporal() -> None:
    nothing, raw = RecordConverter().to_payloads([None, b"raw"])
    assert nothing.metadata["encoding"] == b"binary/null"
    assert raw.metadata["encoding"] == b"binary/plain"
    assert RecordConverter().from_payloads([nothing, raw]) == [None, b"raw"]


def test_a_workflow_that_was_begun_by_an_older_version_is_understood() -> None:
    old = Payload(metadata={"encoding": b"json/plain"}, data=b'{"job_id":"job-1","of_later":1}')
    assert RecordConverter().from_payloads([old], [Begin]) == [Begin(job_id="job-1")]
