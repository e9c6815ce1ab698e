"""What a protocol may ask of whoever validates it, and what its schemas may ask of whoever uses them."""

import time
from typing import Any

import msgspec
import pytest

from lucius.adapters.expressions import CelTools
from lucius.adapters.protocol_check import findings
from lucius.core.check import check_protocol
from lucius.core.protocol import Protocol
from lucius.service.errors import Rejected
from lucius.service.payloads import Payloads
from tests.unit.test_schema_work import DRAFT_4, bomb

Step = dict[str, Any]
OLD = ["draft-04", "draft-06", "draft-07"]


def task(step_id: str = "t", **more: Any) -> Step:
    return {"step_id": step_id, "step_type": "T", "service": "s", **more}


def decide(number: int, *when: str) -> Step:
    there = f"s{number + 1}"
    choices = [{"when": text, "then": there} for text in when]
    return {"step_id": f"s{number}", "kind": "decision", "decision": {"choices": choices, "otherwise": there}}


def protocol(*steps: Step, **more: Any) -> Protocol:
    value = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": list(steps), **more}
    return msgspec.convert(value, Protocol)


def fatal(*steps: Step, **more: Any) -> list[str]:
    return [said.reason for said in findings(protocol(*steps, **more), CelTools()) if said.fatal]


class TestExpressions:
    def test_too_many_are_refused_before_the_first_is_read(self) -> None:
        steps = [decide(i, *(f"input.many{i}_{j} > 1" for j in range(50))) for i in range(21)]
        assert fatal(*steps, task("s21")) == [
            "a protocol can have 1,000 expressions with 131,072 characters in all, and this is beyond it"
        ]
        assert fatal(*steps[:20], task("s20")) == []

    def test_too_long_ones_are_refused(self) -> None:
        steps = [decide(i, f"input.a == '{'x' * 4000}{i}'") for i in range(33)]
        assert "131,072 characters" in fatal(*steps, task("s33"))[0]

    def test_those_of_templates_count(self) -> None:
        body = {f"k{i}": f"${{input.a{i}}} and ${{input.b{i}}}" for i in range(501)}
        call = {"step_id": "c", "kind": "external_call", "external_call": {"url": "https://x", "body": body}}
        assert "1,000 expressions" in fatal(call)[0]
        plain = {"url": "https://x", "body": ["plain text"] * 2000}
        assert fatal({**call, "external_call": plain}) == []

    def test_after_a_hundred_mistakes_nobody_goes_on_to_look(self) -> None:
        steps = [decide(i, *(f"steps.nowhere{i}_{j}.result" for j in range(50))) for i in range(10)]
        assert len(check_protocol(protocol(*steps, task("s10")), CelTools())) == 100


class TestSchemas:
    @pytest.mark.parametrize("where", ["input_schema", "output_schema"])
    def test_one_that_could_explode_is_refused_at_once(self, where: str) -> None:
        before = time.process_time()
        assert "more than 200 subschemas" in fatal(task(), **{where: bomb(15)})[0]
        assert "more than 200 subschemas" in fatal(task(payload_schema=bomb(15)))[0]
        assert time.process_time() - before < 1

    def test_all_of_them_together_are_limited(self) -> None:
        large = {"description": "x" * 90_000}
        assert fatal(task(payload_schema=large), input_schema=large) == []
        found = fatal(task(payload_schema=large), input_schema=large, output_schema=large)
        assert found == ["the schemas of a protocol can have 256 KiB of JSON in all"]

    def test_patterns_are_limited_in_number_and_size(self) -> None:
        many = {"properties": {str(i): {"pattern": f"^{i}$"} for i in range(75)}}
        assert fatal(task(payload_schema=many)) == []
        found = fatal(task(payload_schema=many), input_schema=many)
        assert found == ["the schemas of a protocol can have 100 patterns in all"]
        assert "too large for one" in fatal(task(payload_schema={"pattern": r"^\p{L}{1,100}$"}))[0]
        assert fatal(task(payload_schema={"pattern": r"^\p{Lu}[\p{L} .'-]*$"})) == []

    def test_defaults_that_are_too_large_to_check_are_refused(self) -> None:
        schema = {"properties": {"a": {"items": {"type": "string"}, "default": [1] * 21_000}}}
        assert fatal(task(), input_schema=schema) == ["the defaults are too large to be checked"]

    @pytest.mark.parametrize("draft", OLD)
    def test_an_old_draft_that_is_valid_can_be_used(self, draft: str) -> None:
        url = DRAFT_4.replace("draft-04", draft)
        schema = {"$schema": url, "properties": {"a": {"type": "string"}}, "additionalProperties": False}
        made = protocol(task(), input_schema=schema)
        assert [said for said in findings(made, CelTools()) if said.fatal] == []
        assert Payloads().fill(made, {"a": "x", "t": {"b": 1}}) == {"a": "x", "t": {"b": 1}}
        with pytest.raises(Rejected):
            Payloads().fill(made, {"b": 1})


WIDE = {"items": {"anyOf": [{"minLength": 5 + i, "type": "string"} for i in range(150)]}}
"""Within the limit; and to say everything that is wrong with a long list would take minutes."""


class TestRefusals:
    def test_a_large_payload_is_refused_without_saying_where(self) -> None:
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

    def test_a_large_result_is_refused_without_saying_where(self) -> None:
        before = time.process_time()
        assert CelTools().faults(WIDE, [0] * 2_000) == ["/: doesn't fit its schema; it is too large to say where"]
        assert time.process_time() - before < 1
        assert CelTools().faults(WIDE, [0] * 20)[0].startswith("/0: ")

    def test_a_schema_from_before_the_limit_gives_a_verdict_and_no_more(self) -> None:
        made = protocol(task(), input_schema=bomb(15))
        with pytest.raises(Rejected, match="too large to say where"):
            Payloads().fill(made, {})
        assert "too large to say where" in CelTools().faults(bomb(15), {})[0]
