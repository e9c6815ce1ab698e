"""Typos in expressions are found when a protocol is validated."""

from typing import Any

import msgspec
import pytest

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.document import check_document
from lucius.core.protocol.validation.protocol import check_protocol

INPUT = {"properties": {"limit": {"type": "number"}, "buyer": {"properties": {"name": {}}}, "free": {}}}
TASK = {"step_id": "ocr", "step_type": "OCR", "service": "ocr", "payload_schema": {"properties": {"dpi": {}}}}
BRANCHES = {name: [{"step_id": f"of-{name}", "step_type": "X", "service": "x"}] for name in ("sanctions", "vat")}
CHECKS = {"step_id": "checks", "kind": "parallel", "parallel": {"branches": BRANCHES}}


def document(expression: str, schema: dict[str, Any]) -> dict[str, Any]:
    choices = [{"when": expression, "then": "call"}]
    call = {"url": "https://x/y", "method": "GET", "body": {"a": f"${{{expression}}}"}}
    return {
        "protocol_id": "p",
        "version": 1,
        "request_type": "P",
        "input_schema": schema,
        "steps": [
            TASK,
            CHECKS,
            {"step_id": "d", "kind": "decision", "decision": {"choices": choices, "otherwise": "call"}},
            {"step_id": "call", "kind": "external_call", "external_call": call},
        ],
    }


def faults(expression: str, schema: dict[str, Any]) -> list[str]:
    found = check_protocol(msgspec.convert(document(expression, schema), ProtocolDefinition), CelTools())
    return [finding.reason for finding in found if finding.fatal]


@pytest.mark.parametrize("closed", [{}, {"additionalProperties": False}])
@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("input.limitt > 5", "there is no limitt in input; did you mean limit?"),
        ("has(input.limit) && input.limitt > 5", "there is no limitt in input; did you mean limit?"),
        ("has(input.buyer) && input.buyer.nmae == 'x'", "there is no nmae in input.buyer; did you mean name?"),
        ("has(steps.ocr.reslt)", "there is no reslt in steps.ocr; did you mean result?; it has "),
        ("input.zzz == 1", "there is no zzz in input; declare it in input_schema, or say additionalProperties: true"),
        ("input.buyer.nmae == 'x'", "there is no nmae in input.buyer; did you mean name?"),
        ("input.ocr.dip == 1", "there is no dip in input.ocr; did you mean dpi?"),
        ("steps.ocr.reslt == 1", "there is no reslt in steps.ocr; did you mean result?; it has "),
        ("steps.ocr.error.kode == 1", "there is no kode in steps.ocr.error; did you mean code?; it has code, message"),
        (
            "steps.checks.result.branches.sanctoins.status == 'x'",
            "there is no sanctoins in steps.checks.result.branches; did you mean sanctions?; it has sanctions, vat",
        ),
        ("steps.checks.result.sanctions == 'x'", "there is no sanctions in steps.checks.result; it has total"),
        ("job.tenant == 'x'", "there is no tenant in job; did you mean tenant_id?"),
    ],
)
def test_unknown_member_is_refused_in_expression_and_template(
    closed: dict[str, Any], expression: str, reason: str
) -> None:
    found = faults(expression, {**INPUT, **closed})
    assert len(found) == 2
    assert all(said.startswith(reason) for said in found), found


@pytest.mark.parametrize(
    ("expression", "schema"),
    [
        ("input.limit > 5 && input.free.anything == 1 && input.ocr.dpi == 1", INPUT),
        ("has(input.vat)", INPUT),
        ("has(input.vat) && input.vat.id == 'x'", INPUT),
        ("has(input.buyer.vat) ? input.buyer.vat == 'x' : false", INPUT),
        ("[1].exists(x, has(input.vat) && input.vat == x)", INPUT),
        ("input.limitt > 5", {}),
        ("input.limitt > 5", {**INPUT, "additionalProperties": True}),
        ("input.limitt > 5", {**INPUT, "patternProperties": {"^l": {}}}),
        ("input.other > 5", {**INPUT, "anyOf": [{"properties": {"other": {}}}]}),
        ("input.other > 5", {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"other": {}}}}}),
        ("input.buyer.name == steps.checks.result.branches.vat.result.name", INPUT),
        ("job.target.id == job.tenant_id && steps.checks.result.failed == 0", INPUT),
        ("[1].exists(x, x == input.limit)", INPUT),
    ],
)
def test_declared_or_open_member_is_accepted(expression: str, schema: dict[str, Any]) -> None:
    assert faults(expression, schema) == []


@pytest.mark.parametrize("expression", ["has(input.limitt)", "has(input.limitt) && input.limitt > 5"])
def test_member_excluded_by_a_closed_schema_is_refused_even_inside_has(expression: str) -> None:
    found = faults(expression, {**INPUT, "additionalProperties": False})
    assert found == ["there is no limitt in input; did you mean limit?"] * 2


LINE = {"properties": {"id": {}, "tags": {"type": "array", "items": {"properties": {"name": {}}}}}}
LINES = {"properties": {"limit": {}, "lines": {"type": "array", "items": LINE}, "free": {"type": "array"}}}


@pytest.mark.parametrize("closed", [{}, {"additionalProperties": False}])
@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("input.lines[0].idd == 1", "there is no idd in input.lines[*]; did you mean id?"),
        ("input.lines[input.limit].idd == 1", "there is no idd in input.lines[*]; did you mean id?"),
        ("input.lines[input.limitt].id == 1", "there is no limitt in input; did you mean limit?"),
        ("input.lines[?0].idd.hasValue()", "there is no idd in input.lines[*]; did you mean id?"),
        ("input.lines.exists(x, x.idd == 1)", "there is no idd in input.lines[*]; did you mean id?"),
        ("input.lines.filter(x, x.id == 1).map(x, x.id) == input.linse", "there is no linse in input; did you mean"),
        ("input.lines.map(x, x.idd) == []", "there is no idd in input.lines[*]; did you mean id?"),
        ("input.linse.exists(x, x.id == 1)", "there is no linse in input; did you mean lines?"),
        (
            "input.lines.all(x, x.tags.exists(t, t.nmae == x.id))",
            "there is no nmae in input.lines[*].tags[*]; did you mean name?",
        ),
        ("input.lines[0].tags[0].nmae == ''", "there is no nmae in input.lines[*].tags[*]; did you mean name?"),
    ],
)
def test_unknown_member_of_an_item_is_refused(closed: dict[str, Any], expression: str, reason: str) -> None:
    schema = {**LINES, "properties": {**LINES["properties"], "lines": {"type": "array", "items": {**LINE, **closed}}}}
    found = faults(expression, schema)
    assert len(found) == 2
    assert all(said.startswith(reason) for said in found), found


def lines(**schema: Any) -> dict[str, Any]:
    return {"properties": {"lines": schema, "limit": {}}}


@pytest.mark.parametrize(
    ("expression", "schema"),
    [
        ("input.lines.exists(x, x.id == 1 && x.tags[0].name == '')", LINES),
        ("input.lines.exists(x, has(x.vat) && x.vat == 1)", LINES),
        ("has(input.lines[0].vat)", LINES),
        ("input.lines.filter(x, x.id == 1)[0].idd == 1", LINES),
        ("input.lines.map(x, {'idd': x.id}).exists(x, x.idd == 1)", LINES),
        ("[{'idd': 1}].exists(x, x.idd == 1) && input.lines.exists(x, x.id == 1)", LINES),
        ("input.lines.exists(x, [{'idd': 1}].exists(x, x.idd == 1))", LINES),
        ("input.lines.exists(input, input.id == 1)", LINES),
        ("input.free.exists(x, x.idd == 1) && input.free[0].idd == 1", LINES),
        ("input.lines[0].idd == 1", lines(items=True)),
        ("input.lines[0].idd == 1", lines(items={**LINE, "additionalProperties": True})),
        ("input.lines[0].idd == 1", lines(items=[LINE])),
        ("input.lines[0].idd == 1", lines(prefixItems=[{"properties": {"idd": {}}}], items=LINE)),
        ("input.lines[0].idd == 1", lines(items=LINE, contains={"properties": {"idd": {}}})),
        ("input.lines[0].idd == 1", lines(items=LINE, anyOf=[{"items": {"properties": {"idd": {}}}}])),
        ("input.lines[job.doc_id].idd == 1", lines(type=["array", "object"], items=LINE)),
        ("input.lines[job.doc_id].idd == 1", lines(items=LINE, properties={"a": {}})),
        ("input[job.doc_id].idd == 1 && job[input.limit] == ''", LINES),
        ("steps.checks.result.branches[job.doc_id].status == 'x'", LINES),
    ],
)
def test_possible_member_of_an_item_is_accepted(expression: str, schema: dict[str, Any]) -> None:
    assert faults(expression, schema) == []


def map_faults(items: str, url: str) -> list[str]:
    call = {"step_id": "c", "kind": "external_call", "external_call": {"url": url, "method": "GET"}}
    inner = {"step_id": "tags", "kind": "map", "map": {"items": "item.tags", "steps": [{**call, "step_id": "i"}]}}
    steps = [inner] if "name" in url or "nmae" in url else [call]
    outer = {"step_id": "m", "kind": "map", "map": {"items": items, "steps": steps}}
    given = {"protocol_id": "p", "version": 1, "request_type": "P", "input_schema": LINES, "steps": [outer]}
    found = check_protocol(msgspec.convert(given, ProtocolDefinition), CelTools())
    return [finding.reason for finding in found if finding.fatal]


@pytest.mark.parametrize(
    ("items", "url", "found"),
    [
        ("input.lines", "https://h/${item.idd}", ["there is no idd in input.lines[*]; did you mean id?"]),
        (
            "input.lines",
            "https://h/${item.nmae}",
            ["there is no nmae in input.lines[*].tags[*]; did you mean name?"],
        ),
        ("input.lines", "https://h/${item.id}/${item_index}", []),
        ("input.lines", "https://h/${item.name}", []),
        ("input.lines", "https://h/${has(item.vat) ? item.vat : ''}", []),
        ("input.lines", "https://h/${[{'idd': 1}].map(item, item.idd)[0]}", []),
        ("input.lines.map(x, {'idd': x.id})", "https://h/${item.idd}", []),
        ("input.free", "https://h/${item.idd}", []),
    ],
)
def test_member_of_a_map_item_is_checked_by_the_schema_of_its_list(items: str, url: str, found: list[str]) -> None:
    assert map_faults(items, url) == found


def step(**fields: Any) -> dict[str, Any]:
    return {"steps": [{"step_id": "c", "kind": "external_call", **fields}]}


def test_call_without_an_explicit_retry_safety_is_a_warning() -> None:
    (post,) = check_document(step(external_call={"url": "https://x"}))
    assert (post.path, post.fatal) == (("steps", 0, "external_call"), False)
    assert post.reason.startswith("a POST is sent again when its outcome is unknown")
    handler = {"step_id": "u", "kind": "external_call", "external_call": {"url": "https://x", "method": "DELETE"}}
    (delete,) = check_document({"steps": [{"step_id": "t", "compensation": handler}]})
    assert delete.path == ("steps", 0, "compensation", "external_call")
    assert list(check_document(step(external_call={"url": "https://x", "method": "GET"}))) == []
    assert list(check_document(step(external_call={"url": "https://x"}, retry_safety="SAFE_TO_RETRY"))) == []
