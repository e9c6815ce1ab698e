"""Limits on the cost of validating a protocol, and of using its schemas."""

import time
from typing import Any

import msgspec
import pytest

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols.check import findings
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.protocol import check_protocol
from lucius.usecases.errors import Rejected
from lucius.usecases.submit.payloads import Payloads
from tests.unit.test_schema_cost import DRAFT_4, bomb

Step = dict[str, Any]
OLD = ["draft-04", "draft-06", "draft-07"]


def task(step_id: str = "t", **more: Any) -> Step:
    return {"step_id": step_id, "step_type": "T", "service": "s", **more}


def decide(number: int, *when: str) -> Step:
    there = f"s{number + 1}"
    choices = [{"when": text, "then": there} for text in when]
    return {"step_id": f"s{number}", "kind": "decision", "decision": {"choices": choices, "otherwise": there}}


def protocol(*steps: Step, **more: Any) -> ProtocolDefinition:
    value = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": list(steps), **more}
    return msgspec.convert(value, ProtocolDefinition)


def fatal(*steps: Step, **more: Any) -> list[str]:
    return [said.reason for said in findings(protocol(*steps, **more), CelTools()) if said.fatal]


class TestExpressions:
    def test_too_many_expressions_are_refused(self) -> None:
        steps = [decide(i, *(f"input.many{i}_{j} > 1" for j in range(50))) for i in range(21)]
        assert fatal(*steps, task("s21")) == [
            "a protocol can have 1,000 expressions with 131,072 characters in all, and this is beyond it"
        ]
        assert fatal(*steps[:20], task("s20")) == []

    def test_too_long_expressions_are_refused(self) -> None:
        steps = [decide(i, f"input.a == '{'x' * 4000}{i}'") for i in range(33)]
        assert "131,072 characters" in fatal(*steps, task("s33"))[0]

    def test_expressions_in_templates_count(self) -> None:
        body = {f"k{i}": f"${{input.a{i}}} and ${{input.b{i}}}" for i in range(501)}
        call = {"step_id": "c", "kind": "external_call", "external_call": {"url": "https://x", "body": body}}
        assert "1,000 expressions" in fatal(call)[0]
        plain = {"url": "https://x", "body": ["plain text"] * 2000}
        assert fatal({**call, "external_call": plain}) == []

    def test_findings_stop_at_one_hundred(self) -> None:
        steps = [decide(i, *(f"steps.nowhere{i}_{j}.result" for j in range(50))) for i in range(10)]
        assert len(check_protocol(protocol(*steps, task("s10")), CelTools())) == 100


class TestSchemas:
    @pytest.mark.parametrize("where", ["input_schema", "output_schema"])
    def test_exploding_schema_is_refused_quickly(self, where: str) -> None:
        before = time.process_time()
        assert "more than 200 subschemas" in fatal(task(), **{where: bomb(15)})[0]
        assert "more than 200 subschemas" in fatal(task(payload_schema=bomb(15)))[0]
        assert time.process_time() - before < 1

    def test_total_size_of_schemas_is_limited(self) -> None:
        large = {"description": "x" * 90_000}
        assert fatal(task(payload_schema=large), input_schema=large) == []
        found = fatal(task(payload_schema=large), input_schema=large, output_schema=large)
        assert found == ["the schemas of a protocol can have 256 KiB of JSON in all"]

    def test_patterns_are_limited_in_number_and_size(self) -> None:
        many = {"properties": {str(i): {"pattern": f"^{i}$"} for i in range(75)}}
        assert fatal(task(payload_schema=many)) == []
        found = fatal(task(payload_schema=many), input_schema=many)
        assert found == ["the schemas of a protocol can have 100 patterns in all"]
        found = fatal(task(payload_schema={"pattern": r"^\p{L}{1,300}$"}))
        assert "the pattern ^\\p{L}{1,300}$ has more than 8 MiB when compiled; maxLength costs less" in found[0]
        large = {"properties": {str(i): {"pattern": f"^{i}\\p{{L}}{{1,100}}$"} for i in range(3)}}
        assert "the patterns of a protocol can have 16 MiB in all" in fatal(task(payload_schema=large))[0]

    @pytest.mark.parametrize("pattern", [r"^.{1,256}$", r"^\S{1,64}$", r"^\p{L}{1,100}$", r"^\p{Lu}[\p{L} .'-]*$"])
    def test_common_pattern_is_accepted_and_applied_to_long_payloads(self, pattern: str) -> None:
        made = protocol(task(), input_schema={"properties": {"x": {"pattern": pattern}}})
        assert [said for said in findings(made, CelTools()) if said.fatal] == []
        payload = {"x": "Ab", "t": {"text": "é" * 5000}}
        assert Payloads().fill(made, payload) == payload
        with pytest.raises(Rejected):
            Payloads().fill(made, {"x": "\n" * 300})

    @pytest.mark.parametrize("pattern", [r"(?<=(a))(a+)+b", "^(?!a)b", "(?=a)", r"(a)\1"])
    @pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
    def test_pattern_that_needs_backtracking_is_refused_with_its_path(self, pattern: str, keyword: str) -> None:
        schema = {"properties": {"x": {keyword: pattern if keyword == "pattern" else {pattern: {}}}}}
        found = [said for said in findings(protocol(task(), input_schema=schema), CelTools()) if said.fatal]
        last = () if keyword == "pattern" else (pattern,)
        assert [said.path for said in found] == [("input_schema", "properties", "x", keyword, *last)]
        assert "can't be matched in linear time; write it without look-around" in found[0].reason

    def test_defaults_too_large_for_a_pattern_are_refused(self) -> None:
        schema = {"properties": {"x": {"pattern": "([ab]{0,50}a){20}c", "default": "ab" * 100_000}}}
        assert "defaults are too large" in fatal(task(), input_schema=schema)[0]

    def test_defaults_that_are_too_large_to_check_are_refused(self) -> None:
        schema = {"properties": {"a": {"items": {"type": "string"}, "default": [1] * 21_000}}}
        assert fatal(task(), input_schema=schema) == ["the defaults are too large to be checked"]

    @pytest.mark.parametrize("draft", OLD)
    def test_old_schema_draft_is_accepted(self, draft: str) -> None:
        url = DRAFT_4.replace("draft-04", draft)
        schema = {"$schema": url, "properties": {"a": {"type": "string"}}, "additionalProperties": False}
        made = protocol(task(), input_schema=schema)
        assert [said for said in findings(made, CelTools()) if said.fatal] == []
        assert Payloads().fill(made, {"a": "x", "t": {"b": 1}}) == {"a": "x", "t": {"b": 1}}
        with pytest.raises(Rejected):
            Payloads().fill(made, {"b": 1})


WIDE = {"items": {"anyOf": [{"minLength": 5 + i, "type": "string"} for i in range(150)]}}
"""Within the limit, although listing every fault of a long list would take minutes."""


class TestCost:
    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({"pattern": "([ab]{0,50}a){20}c"}, "ab" * 200_000),
            ({"items": {"enum": [i + 0.5 for i in range(100)]}}, [99.5] * 10_000),
            ({"items": {"enum": [{"a": i} for i in range(1000)]}}, [{"a": 999}] * 10_000),
            ({"items": {"dependentRequired": {str(i): ["a"] for i in range(1000)}}}, [{"b": 1}] * 10_000),
        ],
    )
    def test_value_too_large_for_a_costly_schema_is_refused_unread(self, schema: Step, value: Any) -> None:
        made = protocol(task(), input_schema={"properties": {"x": schema}}, output_schema=schema)
        before = time.process_time()
        with pytest.raises(Rejected) as caught:
            Payloads().fill(made, {"x": value})
        assert caught.value.faults[0].message == "is too large for the patterns and values that its schema compares"
        assert CelTools().faults(made.output_schema, value) == [
            "/: is too large for the patterns and values that its schema compares"
        ]
        assert time.process_time() - before < 1

    @pytest.mark.parametrize(
        ("schema", "value"),
        [
            ({"pattern": "^[a-z0-9 -]*$"}, "ab " * 300_000),
            ({"items": {"enum": ["a", "b", None]}}, ["a"] * 200_000),
            ({"items": {"enum": [0.5, 1, 2.5]}}, [2.5] * 10_000),
        ],
    )
    def test_large_value_passes_an_ordinary_schema(self, schema: Step, value: Any) -> None:
        made = protocol(task(), input_schema={"properties": {"x": schema}})
        assert Payloads().fill(made, {"x": value})["x"] == value

    def test_published_protocol_with_a_backtracking_pattern_refuses_commands_with_the_reason(self) -> None:
        made = protocol(task(payload_schema={"properties": {"x": {"pattern": "(?!a)b"}}}))
        with pytest.raises(Rejected, match=r"P version 1 has a schema that is not taken any more: .* the pattern"):
            Payloads().fill(made, {})


class TestLargeValues:
    def test_oversized_payload_is_refused_without_a_location(self) -> None:
        made = protocol(task(), input_schema={"properties": {"a": WIDE}})
        before = time.process_time()
        with pytest.raises(Rejected) as caught:
            Payloads().fill(made, {"a": [0] * 2_000})
        assert time.process_time() - before < 1
        assert [(fault.pointer, fault.message) for fault in caught.value.faults] == [
            ("/payload", "doesn't fit its schema; it is too large to say where")
        ]
        with pytest.raises(Rejected) as caught:
            Payloads().fill(made, {"a": [0] * 20})
        assert caught.value.faults[0].pointer == "/payload/a/0"

    def test_oversized_result_is_refused_without_a_location(self) -> None:
        before = time.process_time()
        assert CelTools().faults(WIDE, [0] * 2_000) == ["/: doesn't fit its schema; it is too large to say where"]
        assert time.process_time() - before < 1
        assert CelTools().faults(WIDE, [0] * 20)[0].startswith("/0: ")

    def test_schema_older_than_the_limit_gives_a_verdict_without_a_location(self) -> None:
        made = protocol(task(), input_schema=bomb(15))
        with pytest.raises(Rejected, match="too large to say where"):
            Payloads().fill(made, {})
        assert "too large to say where" in CelTools().faults(bomb(15), {})[0]
