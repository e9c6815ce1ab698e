import hashlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import drop_nulls
from lucius.usecases.submit import canonical as module
from lucius.usecases.submit.canonical import canonical, command_value, fingerprint
from lucius.usecases.submit.envelope import decode_command

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "idempotency.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_an_idempotency_vector_gives_its_canonical_form_and_hash(vector: dict[str, str]) -> None:
    envelope = decode_command(vector["body"].encode())
    value = command_value(envelope, envelope.request_type)
    assert canonical(value).decode() == vector["canonical"]
    assert fingerprint(value) == vector["sha256"]


def test_the_alias_of_a_request_type_and_the_type_itself_are_the_same_command() -> None:
    body = VECTORS[0]["body"]
    arrow = decode_command(body.replace('"OCR"', '"OCR→EMBEDDING"').encode())
    plain = decode_command(body.replace('"OCR"', '"OCR_EMBEDDING"').encode())
    assert fingerprint(command_value(arrow, "OCR_EMBEDDING")) == fingerprint(command_value(plain, "OCR_EMBEDDING"))


def test_case_of_the_tenant_id_does_not_change_the_command() -> None:
    body = VECTORS[0]["body"]
    shouted = decode_command(body.replace("acme", " ACME ").encode())
    assert fingerprint(command_value(shouted, "OCR")) == VECTORS[0]["sha256"]


# Keys and texts that the fast path must either write as RFC 8785 does or leave to the slow path.
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["null", ",1.5", ":12345678901234567", "\x7f", "\x00", "\u2028", "\ue000", "\U00010000", '"\\/', "\b\f\n\r\t\x1f"]
)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=25,
)


@given(values)
@example({"\ue000": 1, "\U00010000": 2})  # UTF-16 code units sort differently from code points
@example(1e21)  # msgspec writes 1e21
@example([1.0, -0.0, 1e21, 1e-7, 123456789012345680000.0, 5e-324])
@example({"a": 2**53 - 1, "b": -(2**53) + 1, "c": [None, {"d": None}]})
@settings(max_examples=1500, deadline=None)
def test_canonical_form_equals_that_of_rfc_8785(value: Any) -> None:
    assert canonical({"v": value, "w": [value]}) == rfc8785.dumps(drop_nulls({"v": value, "w": [value]}))


def test_ordinary_command_is_encoded_by_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(value: Any) -> bytes:
        raise AssertionError("the slow way was taken")

    monkeypatch.setattr(module, "_canonical_slow", slow)
    assert canonical({"b": ["Who?", 300, True], "a": {}}) == b'{"a":{},"b":["Who?",300,true]}'


@pytest.mark.parametrize(
    ("payload", "pointer"),
    [
        ({"ocr": {"n": 2**53}}, "/payload/ocr/n"),
        ({"ocr": {"n": [0, -(2**53)]}}, "/payload/ocr/n/1"),
        ({"ocr": {"a/b~c": 2**70}}, "/payload/ocr/a~1b~0c"),
        ({"ocr": {"n": math.nan}}, "/payload/ocr/n"),
        ({"ocr": {"n": -math.inf}}, "/payload/ocr/n"),
        ({"ocr": {"text": "\ud800"}}, "/payload/ocr/text"),
        ({"ocr": {"\udc00": 1}}, "/payload/ocr/?"),
    ],
)
def test_value_without_a_json_form_is_refused_with_its_pointer(payload: Any, pointer: str) -> None:
    with pytest.raises(Rejected) as refused:
        canonical({"payload": payload})
    assert refused.value.code is RejectCode.NUMBER_NOT_REPRESENTABLE
    assert [fault.pointer for fault in refused.value.faults] == [pointer]


def test_all_unrepresentable_numbers_are_named() -> None:
    with pytest.raises(Rejected) as refused:
        canonical({"a": 2**60, "b": [1, 2**60], "c": {"d": -(2**60)}})
    assert [fault.pointer for fault in refused.value.faults] == ["/a", "/b/1", "/c/d"]


def test_refusal_of_many_bad_numbers_below_a_long_name_is_short() -> None:
    with pytest.raises(Rejected) as refused:
        canonical({"a" * 100_000: [2**60] * 1_000})
    assert len(refused.value.faults) == 50
    assert {fault.pointer for fault in refused.value.faults} == {"/" + "a" * 1_022 + "…"}
    assert len(refused.value.detail) < 2_000


def test_numbers_are_compared_by_value_not_by_spelling() -> None:
    def of(text: str) -> str:
        return fingerprint(msgspec.json.decode(text))

    assert of('{"n":300}') == of('{"n":300.0}') == of('{"n":3e2}') == hashlib.sha256(b'{"n":300}').hexdigest()
    assert of('{"n":300}') != of('{"n":"300"}')
    assert of('{"n":9007199254740991}') != of('{"n":9007199254740990}')
