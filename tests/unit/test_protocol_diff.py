"""A diff shows what an author changed, wherever it is."""

from typing import Any

import msgspec
import pytest

from lucius.core.protocol.definition import ProtocolDefinition
from lucius.usecases.catalog.diff import protocol_changes

ChangeSummary = tuple[str, str, str | None]


def protocol(*steps: Any, **fields: Any) -> ProtocolDefinition:
    named = [step if isinstance(step, dict) else {"step_id": step} for step in steps]
    document = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": named, **fields}
    return msgspec.convert(document, ProtocolDefinition)


def summaries(before: ProtocolDefinition, after: ProtocolDefinition) -> list[ChangeSummary]:
    return [(change.change, change.pointer, change.stepId) for change in protocol_changes(before, after)]


def test_changed_version_number_is_no_difference() -> None:
    assert summaries(protocol("a"), protocol("a", version=2)) == []


def test_inserted_step_is_the_only_difference() -> None:
    assert summaries(protocol("a", "c"), protocol("a", "b", "c")) == [("ADDED", "/steps/1", "b")]


def test_removed_step_is_named_by_its_place_in_the_older_document() -> None:
    (change,) = protocol_changes(protocol("a", {"step_id": "b", "name": "B"}, "c"), protocol("a", "c"))
    assert (change.change, change.pointer, change.stepId) == ("REMOVED", "/steps/1", "b")
    assert change.before == {"step_id": "b", "name": "B"}
    assert change.after is msgspec.UNSET


def test_reordered_steps_are_one_difference() -> None:
    (change,) = protocol_changes(protocol("a", "b", "c"), protocol("c", "a", "b"))
    assert (change.change, change.pointer) == ("MOVED", "/steps")
    assert (change.before, change.after) == (["a", "b", "c"], ["c", "a", "b"])


@pytest.mark.parametrize(
    ("container", "pointer"),
    [
        (lambda inner: {"map": {"items": "input.list", "steps": [inner]}}, "/steps/0/map/steps/0/name"),
        (
            lambda inner: {"parallel": {"branches": {"left": ["x", inner]}}},
            "/steps/0/parallel/branches/left/1/name",
        ),
        (lambda inner: {"compensation": inner}, "/steps/0/compensation/name"),
    ],
)
def test_a_step_inside_another_is_named_by_its_own_id(container: Any, pointer: str) -> None:
    def outer(name: str) -> ProtocolDefinition:
        made = container({"step_id": "inner", "name": name})
        if "parallel" in made:
            made["parallel"]["branches"]["left"][0] = {"step_id": "x"}
        return protocol({"step_id": "outer", **made})

    (change,) = protocol_changes(outer("one"), outer("two"))
    assert (change.change, change.pointer, change.stepId) == ("CHANGED", pointer, "inner")
    assert (change.before, change.after) == ("one", "two")


def test_choices_are_compared_one_by_one_if_their_number_is_equal() -> None:
    def deciding(*whens: str) -> ProtocolDefinition:
        return protocol({"step_id": "d", "decision": {"choices": [{"when": when, "then": "FAIL"} for when in whens]}})

    assert summaries(deciding("a", "b"), deciding("a", "c")) == [("CHANGED", "/steps/0/decision/choices/1/when", "d")]
    assert summaries(deciding("a"), deciding("a", "c")) == [("CHANGED", "/steps/0/decision/choices", "d")]


def test_added_and_removed_members_are_differences_and_a_list_of_texts_is_one_value() -> None:
    before = protocol("a", title="A", aliases=["x"], input_schema={"required": ["n"], "maxProperties": 1})
    after = protocol("a", description="B", aliases=["x", "y"], input_schema={"required": ["n"], "maxProperties": True})
    assert summaries(before, after) == [
        ("ADDED", "/description", None),
        ("CHANGED", "/aliases", None),
        ("CHANGED", "/input_schema/maxProperties", None),
        ("REMOVED", "/title", None),
    ]


def test_draft_with_a_duplicate_step_id_is_compared_by_position() -> None:
    assert summaries(protocol("a", "a"), protocol("a", "b")) == [("CHANGED", "/steps/1/step_id", None)]
