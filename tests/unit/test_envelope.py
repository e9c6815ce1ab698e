import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.contract import CommandEnvelope
from lucius.usecases.errors import TITLES, RejectCode, Rejected
from lucius.usecases.json_values import fault_of
from lucius.usecases.submit.envelope import decode_command

GOOD: dict[str, Any] = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": "blob://in/a.pdf",
    "output_ref": "blob://out/a",
    "payload": {"ocr": {"language": "en"}},
    "schema_version": "v1",
}
REQUIRED = list(GOOD)


def decode(**changes: Any) -> CommandEnvelope:
    return decode_command(json.dumps({**GOOD, **changes}).encode())


def refusal(body: bytes | dict[str, Any]) -> Rejected:
    with pytest.raises(Rejected) as refused:
        decode_command(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert refused.value.detail
    assert refused.value.faults
    return refused.value


def pointers(refused: Rejected) -> list[str]:
    return [fault.pointer for fault in refused.faults]


def test_a_good_command_is_decoded() -> None:
    envelope = decode(mode="BURST", doc_id="d", protocol_version=2, target={"type": "t", "id": "i"})
    assert (envelope.tenant_id, envelope.mode, envelope.protocol_version) == ("acme", "BURST", 2)
    assert envelope.payload == {"ocr": {"language": "en"}}


def test_tenant_id_is_normalised() -> None:
    assert decode(tenant_id="  ACME ").tenant_id == "acme"


def test_invalid_tenant_id_is_refused() -> None:
    refused = refusal({**GOOD, "tenant_id": "no/slash"})
    assert refused.code is RejectCode.INVALID_TENANT
    assert pointers(refused) == ["/tenant_id"]


def test_null_members_count_as_absent_everywhere() -> None:
    envelope = decode(
        mode=None,
        target=None,
        unknown=None,
        callback_urls={"ack": None, "job": "https://x/y", "other": None},
        payload={"ocr": {"dpi": None, "list": [None, {"a": None, "b": 1}]}, "sis": None},
    )
    assert envelope.payload == {"ocr": {"list": [None, {"b": 1}]}}
    assert envelope.callback_urls is not None
    assert envelope.callback_urls.job == "https://x/y"


def test_null_members_of_a_payload_are_dropped() -> None:
    assert decode(payload={"ocr": {"language": "en", "dpi": None}}).payload == {"ocr": {"language": "en"}}


@pytest.mark.parametrize("field", REQUIRED)
def test_a_required_field_that_is_null_is_missing(field: str) -> None:
    refused = refusal({**GOOD, field: None})
    assert refused.code is RejectCode.INVALID_ENVELOPE
    assert pointers(refused) == [f"/{field}"]
    assert "missing" in refused.faults[0].message


def test_every_missing_field_is_named() -> None:
    refused = refusal({})
    assert refused.code is RejectCode.INVALID_ENVELOPE
    assert pointers(refused) == [f"/{field}" for field in REQUIRED]


def test_unknown_fields_are_named_with_the_nearest_known_name() -> None:
    refused = refusal({**GOOD, "tenantid": "x", "zzz": 1})
    assert refused.code is RejectCode.UNKNOWN_FIELD
    assert pointers(refused) == ["/tenantid", "/zzz"]
    assert "did you mean tenant_id?" in refused.faults[0].message


def test_all_kinds_of_faults_are_reported_together() -> None:
    body = {**GOOD, "mode": "FAST", "payload": [], "target": {"type": 1}, "x/y": 1, "protocol_version": 0}
    del body["input_ref"]
    refused = refusal(body)
    assert refused.code is RejectCode.INVALID_ENVELOPE
    assert pointers(refused) == ["/input_ref", "/payload", "/mode", "/target/type", "/protocol_version", "/x~1y"]


@pytest.mark.parametrize(
    ("changes", "pointer", "says"),
    [
        ({"tenant_id": 7}, "/tenant_id", "Expected str, got int"),
        ({"tenant_id": ""}, "/tenant_id", "length >= 1"),
        ({"input_ref": "x" * 4097}, "/input_ref", "length <= 4096"),
        ({"payload": "x"}, "/payload", "Expected object, got str"),
        ({"mode": "burst"}, "/mode", "Invalid enum value 'burst'; it can be DEFAULT, SAFE, BURST"),
        ({"protocol_version": "1"}, "/protocol_version", "Expected int"),
        ({"protocol_version": 1.5}, "/protocol_version", "Expected int"),
        ({"schema_version": 1}, "/schema_version", "str"),
        ({"target": {"type": "t"}}, "/target/id", "missing"),
        ({"target": {"type": "t", "id": "i", "x": 1}}, "/target/x", "unknown field"),
        ({"callback_urls": {"other": "x"}}, "/callback_urls/other", "unknown field"),
    ],
)
def test_a_wrong_value_is_named_by_its_pointer(changes: dict[str, Any], pointer: str, says: str) -> None:
    refused = refusal({**GOOD, **changes})
    assert refused.code is RejectCode.INVALID_ENVELOPE
    assert pointers(refused) == [pointer]
    assert says in refused.faults[0].message


def test_command_of_another_schema_version_is_refused_with_that_fault_only() -> None:
    refused = refusal({"schema_version": "v2", "something_new": 1})
    assert refused.code is RejectCode.UNSUPPORTED_SCHEMA_VERSION
    assert pointers(refused) == ["/schema_version"]
    assert "v1" in refused.detail


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "the body is empty at line 1, column 1 (byte 0)"),
        (b" \n ", "the body is empty"),
        (b'{"tenant_id": "acme",\n  "mode": nope}', "line 2, column 11 (byte 32)"),
        (b'{"tenant_id": "acme"', "line 1, column 21 (byte 20)"),
        (b'{"a": 1,}', "line 1, column 9"),
        (b'{"a": NaN}', "byte 6"),
        (b'{"a": "\xc3\xbc", x}', "column 12 (byte 12)"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xff"}', "not UTF-8 at line 1, column 8 (byte 7)"),
        (b'{"a": "\\udc00"}', "surrogate"),
        (b'{"a": 1} x', "Extra data at line 1, column 10"),
    ],
)
def test_malformed_json_is_refused_with_line_and_column(body: bytes, where: str) -> None:
    refused = refusal(body)
    assert refused.code is RejectCode.MALFORMED_JSON
    assert where in refused.detail


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1", b"true"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    assert refusal(body).code is RejectCode.INVALID_ENVELOPE


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" * 5000, "1" * 400 + ".5"])
def test_out_of_range_number_is_refused_with_its_pointer(number: str) -> None:
    body = json.dumps({**GOOD, "payload": {"ocr": {"a": [0, "HERE"]}}}).replace('"HERE"', number)
    refused = refusal(body.encode())
    assert refused.code is RejectCode.NUMBER_NOT_REPRESENTABLE
    assert pointers(refused) == ["/payload/ocr/a/1"]


def test_refusal_of_many_out_of_range_numbers_is_short() -> None:
    body = json.dumps({**GOOD, "payload": {"a" * 100_000: ["HERE"] * 1_000}}).replace('"HERE"', "1e400")
    refused = refusal(body.encode())
    assert len(refused.faults) == 50
    assert max(map(len, pointers(refused))) == 1_024


@pytest.mark.parametrize("depth", [101, 500, 900, 5_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(depth: int, opening: str, closing: str) -> None:
    nested = opening * depth + "1" + closing * depth
    body = json.dumps({**GOOD, "payload": {"ocr": "HERE"}}).replace('"HERE"', nested).encode()
    refused = refusal(body)
    assert refused.code is RejectCode.INVALID_ENVELOPE
    assert "nested deeper" in refused.detail


def test_deep_nesting_is_refused_in_an_otherwise_invalid_command() -> None:
    for depth in range(100, 1000, 50):
        body = json.dumps({**GOOD, "unknown": "HERE"}).replace('"HERE"', '{"a":' * depth + "1" + "}" * depth)
        assert "nested deeper" in refusal(body.encode()).detail


def test_a_wide_payload_is_not_mistaken_for_a_deep_one() -> None:
    wide = {"ocr": {"pages": [{"n": n} for n in range(500)]}}
    assert decode(payload=wide).payload == wide


def test_refusal_of_hundreds_of_unknown_fields_is_short() -> None:
    refused = refusal({**GOOD, **{f"field_{n}": n for n in range(500)}})
    assert len(refused.faults) == 50
    assert "499 more" in refused.detail


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary())
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(Rejected):
        decode_command(body)


@given(st.dictionaries(st.sampled_from([*REQUIRED, "mode", "target", "callback_urls", "doc_id", "x"]), json_values))
def test_random_field_values_are_decoded_or_refused(changes: dict[str, Any]) -> None:
    with contextlib.suppress(Rejected):
        assert decode_command(json.dumps({**GOOD, **changes}).encode()).tenant_id


def test_every_code_has_a_title() -> None:
    assert set(TITLES) == set(RejectCode)
    assert all(code.name == code.value for code in RejectCode)


def test_long_unknown_field_name_is_read_in_linear_time() -> None:
    name = "unknown field `" * 20_000 + "\n"
    before = time.process_time()
    fault = fault_of(f"Object contains unknown field `{name}`", ["commands", 0])
    assert fault.message == "unknown field"
    assert fault.pointer == f"/commands/0/{name}"
    assert time.process_time() - before < 1
