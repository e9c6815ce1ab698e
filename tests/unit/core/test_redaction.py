"""Redaction of payload values, and validation of the pointers that name them."""

from typing import Any

import msgspec
import pytest

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.redaction import MASK, parse_pointer, redact_payload
from lucius.core.protocol.validation.protocol import check_protocol

CLOSED = {"type": "object", "properties": {"password": {"type": "string"}}, "additionalProperties": False}
OPEN = {"type": "object", "properties": {"password": {"type": "string"}}}


def protocol(*redact: str, payload_schema: dict[str, Any] | None = None, **more: Any) -> ProtocolDefinition:
    step = {"step_id": "scan", "step_type": "T", "service": "scan", "payload_schema": payload_schema or {}}
    document = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": [step], "redact": redact, **more}
    return msgspec.convert(document, ProtocolDefinition)


def findings(made: ProtocolDefinition) -> list[tuple[str, bool]]:
    return [(finding.reason, finding.fatal) for finding in check_protocol(made, CelTools())]


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [
        ("", ()),
        ("/a", ("a",)),
        ("/a/0", ("a", "0")),
        ("/a~1b/~0", ("a/b", "~")),
        ("/~01", ("~1",)),
        ("/", ("",)),
        ("a", None),
        ("/a~2", None),
        ("/a~", None),
    ],
)
def test_pointers_are_parsed_according_to_rfc_6901(pointer: str, tokens: tuple[str, ...] | None) -> None:
    assert parse_pointer(pointer) == tokens


def test_named_values_are_masked_and_the_payload_is_unchanged() -> None:
    payload = {"scan": {"password": "p", "pages": [{"pin": 1}, {"pin": 2}]}, "a/b": {"c": 1}}
    before = msgspec.json.encode(payload)
    shown = redact_payload(payload, ["/scan/password", "/scan/pages/1/pin", "/a~1b", "/scan/absent", "/scan/pages/9"])
    assert shown == {"scan": {"password": MASK, "pages": [{"pin": 1}, {"pin": MASK}]}, "a/b": MASK}
    assert msgspec.json.encode(payload) == before


@pytest.mark.parametrize("customer", [[{"iban": "DE02"}], ["DE02"], "DE02", 2, None])
def test_pointer_into_a_value_that_is_no_object_masks_the_whole_value(customer: Any) -> None:
    shown = redact_payload({"scan": {"customer": customer, "page": 3}}, ["/scan/customer/iban", "/scan/customer/0/x"])
    assert shown == {"scan": {"customer": MASK, "page": 3}}


@pytest.mark.parametrize("pointer", ["", "not-a-pointer"])
def test_empty_and_malformed_pointers_mask_every_member(pointer: str) -> None:
    assert redact_payload({"a": 1, "b": {"c": 2}}, [pointer]) == {"a": MASK, "b": MASK}


def test_malformed_pointer_is_refused_at_publish() -> None:
    ((reason, fatal),) = findings(protocol("scan/password"))
    assert fatal
    assert "RFC 6901" in reason


@pytest.mark.parametrize("pointer", ["/scan/pages/*/pin", "/*", "/scan/*"])
def test_pointer_with_a_wildcard_is_refused_at_publish(pointer: str) -> None:
    ((reason, fatal),) = findings(protocol(pointer))
    assert fatal
    assert "* stands for no member" in reason
    assert findings(protocol("/scan/a*b")) == []


def test_pointer_to_an_unknown_step_is_refused_at_publish() -> None:
    assert findings(protocol("/scam/password")) == [("the payload has no member scam: its members are scan", True)]


def test_pointer_that_a_closed_schema_does_not_know_is_refused_and_an_open_one_warns() -> None:
    reason = "the schema of the payload of scan knows no pasword; it has password"
    assert findings(protocol("/scan/pasword", payload_schema=CLOSED)) == [(reason, True)]
    assert findings(protocol("/scan/pasword", payload_schema=OPEN)) == [(reason, False)]
    assert findings(protocol("/scan/password", "/scan", "", payload_schema=CLOSED)) == []


def test_pointer_is_checked_against_the_input_schema() -> None:
    closed = {"properties": {"customer": {"properties": {"iban": {}}, "additionalProperties": False}}}
    made = protocol("/customer/iban", "/scan/password", input_schema={**closed, "additionalProperties": False})
    assert findings(made) == []
    made = protocol("/customer/ibam", input_schema=closed)
    assert findings(made) == [("the schema of the payload knows no ibam; it has iban", True)]
