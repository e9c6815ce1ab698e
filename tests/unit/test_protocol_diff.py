"""A diff says what an author changed, wherever it stands."""

from typing import Any

import msgspec
import pytest

from lucius.core.protocol import Protocol
from lucius.service.protocol_diff import protocol_changes

Told = tuple[str, str, str | None]


def protocol(*steps: Any, **fields: Any) -> Protocol:
    named = [step if isinstance(step, dict) else {"step_id": step} for step in steps]
    document = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": named, **fields}
    return msgspec.convert(document, Protocol)


def told(before: Protocol, after: Protocol) -> list[Told]:
    return [(change.change, change.pointer, change.stepId) for change in protocol_changes(before, after)]


def test_the_version_itself_is_no_change() -> None:
    assert told(protocol("a"), protocol("a", version=2)) == []


def test_a_step_put_in_between_changes_no_other() -> None:
    assert told(protocol("a", "c"), protocol("a", "b", "c")) == [("ADDED", "/steps/1", "b")]


def test_what_was_removed_is_found_in_the_older_document() -> None:
    (change,) = protocol_changes(protocol("a", {"step_id": "b", "name": "B"}, "c"), protocol("a", "c"))
    assert (change.change, change.pointer, change.stepId) == ("REMOVED", "/steps/1", "b")
    assert change.before == {"step_id": "b", "name": "B"}
    assert change.after is msgspec.UNSET


def test_another_order_is_told_once() -> None:
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
    def outer(name: str) -> Protocol:
        made = container({"step_id": "inner", "name": name})
        if "parallel" in made:
            made["parallel"]["branches"]["left"][0] = {"step_id": "x"}
        return protocol({"step_id": "outer", **made})

    (change,) = protocol_changes(outer("one"), outer("two"))
    assert (change.change, change.pointer, change.stepId) == ("CHANGED", pointer, "inner")
    assert (change.before, change.after) == ("one", "two")


def test_choices_are_compared_one_by_one_while_there_are_as_many() -> None:
    def deciding(*whens: str) -> Protocol:
        return protocol({"step_id": "d", "decision": {"choices": [{"when": when, "then": "FAIL"} for when in whens]}})

    assert told(deciding("a", "b"), deciding("a", "c")) == [("CHANGED", "/steps/0/decision/choices/1/when", "d")]
    assert told(deciding("a"), deciding("a", "c")) == [("CHANGED", "/steps/0/decision/choices", "d")]


def test_members_come_and_go_and_lists_of_words_are_one_value() -> None:
    before = protocol("a", title="A", aliases=["x"], input_schema={"required": ["n"], "maxProperties": 1})
    after = protocol("a", description="B", aliases=["x", "y"], input_schema={"required": ["n"], "maxProperties": True})
    assert told(before, after) == [
        ("ADDED", "/description", None),
        ("CHANGED", "/aliases", None),
        ("CHANGED", "/input_schema/maxProperties", None),
        ("REMOVED", "/title", None),
    ]


def test_a_draft_that_repeats_an_id_is_compared_place_by_place() -> None:
    assert told(protocol("a", "a"), protocol("a", "b")) == [("CHANGED", "/steps/1/step_id", None)]
