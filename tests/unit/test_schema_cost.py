"""A schema that could keep the process busy is rejected before it is used."""

import time
from typing import Any

import pytest

from lucius.core.protocol.validation.schema_cost import (
    MAX_VISITS,
    SchemaTooExpensive,
    SchemaWalk,
    cost_of,
    has_costly_keyword,
    patterns,
    visits,
)
from lucius.core.protocol.validation.schema_error_cost import Explanation, error_work, explain

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def bomb(doublings: int, by: str = "anyOf") -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{i}": {by: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(doublings)
    }
    return {"$defs": {**defs, f"d{doublings}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def nested(levels: int, **around: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"anyOf": [schema], **around}
    return schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, 1),
        ({"properties": {"a": {"type": "string"}, "b": {"items": {"type": "string"}}}}, 1),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}}, 2),
        ({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}, 2),
        ({"anyOf": [{"items": {"$ref": "#"}}, {"additionalProperties": {"$ref": "#"}}]}, 4),
        ({"properties": {"a": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", "not": {}}}}, 3),
        ({"definitions": {"a/b": {}}, "items": [{"$ref": "#/definitions/a~1b"}], "$schema": DRAFT_4}, 2),
        ({"properties": [1], "anyOf": 5, "$ref": 7, "items": None}, 1),
    ],
)
def test_visits_counts_the_subschemas_that_apply_to_one_value(schema: dict[str, Any], expected: int) -> None:
    assert visits(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        bomb(8),
        bomb(60, "oneOf"),
        bomb(60, "allOf"),
        {"anyOf": [{"minLength": i} for i in range(MAX_VISITS + 1)]},
        {"anyOf": [True] * (MAX_VISITS + 1)},
        nested(12, unevaluatedProperties=False),
        # each level of the value doubles the work
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]},
        {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}},
        {"$dynamicAnchor": "n", "allOf": [{"items": {"$dynamicRef": "#n"}}, {"items": {"$dynamicRef": "#n"}}]},
        {"$recursiveAnchor": True, "allOf": [{"items": {"$recursiveRef": "#"}}, {"items": {"$recursiveRef": "#"}}]},
    ],
)
def test_schema_with_exponential_cost_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooExpensive, match="more than 200 subschemas"):
        visits(schema)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"if": {"$ref": "#/not"}}}])
def test_self_reference_without_going_deeper_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooExpensive, match="without going deeper"):
        visits(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$id": "other", "$ref": "#"}}},
        {"$schema": DRAFT_4, "properties": {"a": {"id": "other"}}},
        {"$id": "https://x/y", "$ref": "z"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    ],
)
def test_references_to_another_document_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaTooExpensive, match=r"\$id|same schema"):
        visits(schema)


def test_member_named_id_does_not_change_the_base_uri() -> None:
    assert visits({"properties": {"$id": {"type": "string"}, "id": {"default": {"id": "x"}}}}) == 1


def test_a_schema_with_too_many_parts_is_refused() -> None:
    with pytest.raises(SchemaTooExpensive, match="too many parts"):
        visits({"properties": {str(i): {} for i in range(20_001)}})


NAMES_20 = [f"a{i}" for i in range(20)]
WIDE = {"anyOf": [{"type": "string"}] * 150}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"items": {"type": "string"}}, [0] * 2_000, Explanation.ALL),
        ({"items": {"type": "string"}}, [0] * 10_000, Explanation.FIRST),
        ({"items": {"type": "string"}}, [0] * 100_001, Explanation.NONE),
        ({"items": {"required": NAMES_20}}, [{}] * 100, Explanation.ALL),
        ({"items": {"required": NAMES_20}}, [{}] * 1_000, Explanation.FIRST),
        ({"required": NAMES_20}, {"free": [0] * 1_000}, Explanation.ALL),
        ({"required": NAMES_20}, {"free": [0] * 20_000}, Explanation.FIRST),
        ({"items": {"dependentRequired": {"a": NAMES_20}}}, [{}] * 1_000, Explanation.FIRST),
        ({"items": {"const": "a" * 200_000}}, [0] * 100, Explanation.FIRST),
        ({"items": {"enum": list(range(1_000))}}, [0.5] * 50, Explanation.ALL),
        ({"items": {"enum": list(range(1_000))}}, [0.5] * 1_000, Explanation.FIRST),
        ({"propertyNames": {"maxLength": 1}}, {f"a{i}": 0 for i in range(100)}, Explanation.ALL),
        ({"propertyNames": {"maxLength": 1}}, {f"a{i}": 0 for i in range(1_000)}, Explanation.FIRST),
        ({"additionalProperties": {"items": False}}, {"a": [0] * 1_000}, Explanation.ALL),
        ({"additionalProperties": {"items": False}}, {"a" * 50_000: [0] * 1_000}, Explanation.FIRST),
        ({"items": WIDE}, [0] * 10, Explanation.ALL),
        ({"items": WIDE}, [0] * 200, Explanation.NONE),
        ({"patternProperties": {"a" * i: False for i in range(50)}}, {f"a{i}": 0 for i in range(10)}, Explanation.ALL),
        (
            {"patternProperties": {"a" * i: False for i in range(50)}},
            {f"a{i}": 0 for i in range(99)},
            Explanation.FIRST,
        ),
        ({"items": {"allOf": [False] * 100}}, [0] * 100, Explanation.FIRST),
        ({"items": {"$ref": "#"}, "minItems": 2}, [[[[[]]]]] * 500, Explanation.ALL),
        ({"items": {"$ref": "#"}, "minItems": 2}, [[[[[]]]]] * 2_000, Explanation.FIRST),
    ],
)
def test_errors_are_listed_only_if_their_estimated_cost_is_low(schema: Any, value: Any, expected: Explanation) -> None:
    assert explain(error_work(SchemaWalk(schema)), value) is expected


def test_schema_without_a_cost_estimate_lists_no_errors() -> None:
    assert explain(None, {}) is Explanation.NONE


def test_integers_beyond_64_bits_are_compared_one_by_one() -> None:
    assert cost_of({"enum": [2**63 - 1, 1 - 2**63]}, 1, len) is None
    for schema in ({"enum": [2**63, 5]}, {"enum": [-(10**30), 5]}, {"const": 2**64}):
        cost = cost_of(schema, 1, len)
        assert cost is not None
        assert cost.per_part >= 20
        assert has_costly_keyword(schema)


def test_cost_of_nested_enum_values_is_estimated_in_linear_time() -> None:
    value: Any = [1] * 50_000
    for _ in range(90):
        value = {"enum": [value, 2]}
    began = time.process_time()
    cost = cost_of(value, 1, len)
    assert time.process_time() - began < 1
    assert cost is not None
    assert cost.per_part > 50_000


def test_patterns_are_found_at_every_depth() -> None:
    schema = {"pattern": "a", "properties": {"b": {"patternProperties": {"c": {}, "d": {"pattern": "e"}}}}}
    assert patterns(schema) == ["a", "c", "d", "e"]
