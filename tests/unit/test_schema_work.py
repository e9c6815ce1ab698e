"""A schema that could keep the process busy is found before anybody uses it."""

from typing import Any

import pytest

from lucius.core.schema_work import MAX_VISITS, TooMuchWork, can_explain, patterns, visits

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
def test_counted_is_what_can_look_at_one_part(schema: dict[str, Any], expected: int) -> None:
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
        # each level of the value doubles it
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]},
        {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}},
        {"$dynamicAnchor": "n", "allOf": [{"items": {"$dynamicRef": "#n"}}, {"items": {"$dynamicRef": "#n"}}]},
        {"$recursiveAnchor": True, "allOf": [{"items": {"$recursiveRef": "#"}}, {"items": {"$recursiveRef": "#"}}]},
    ],
)
def test_what_could_explode_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(TooMuchWork, match="more than 200 subschemas"):
        visits(schema)


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"if": {"$ref": "#/not"}}}])
def test_what_goes_round_on_the_spot_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(TooMuchWork, match="without going deeper"):
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
def test_references_that_mean_another_document_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(TooMuchWork, match=r"\$id|same schema"):
        visits(schema)


def test_a_member_called_id_is_no_base() -> None:
    assert visits({"properties": {"$id": {"type": "string"}, "id": {"default": {"id": "x"}}}}) == 1


def test_a_schema_with_too_many_parts_is_refused() -> None:
    with pytest.raises(TooMuchWork, match="too many parts"):
        visits({"properties": {str(i): {} for i in range(20_001)}})


def test_errors_are_only_listed_where_that_is_little_work() -> None:
    assert can_explain(1, [0] * 10_000)
    assert not can_explain(200, [0] * 200)
    assert can_explain(200, {"a": [0] * 50})
    assert not can_explain(None, {})


def test_patterns_are_counted_at_every_depth() -> None:
    assert patterns({"pattern": "a", "properties": {"b": {"patternProperties": {"c": {}, "d": {"pattern": "e"}}}}}) == 4
