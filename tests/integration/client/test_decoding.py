"""Answers of a server that is newer than the client."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct, inspect

from lucius import contract as c
from lucius.client.reading import convert, read
from lucius.contract import control as cc
from lucius.contract import protocols as cp
from tests.integration.cli.support import job

ANSWERS: list[type[Struct]] = [
    c.Accepted,
    c.AttemptList,
    c.CommandBatchAnswer,
    c.EventList,
    c.EventView,
    c.JobList,
    c.JobView,
    c.Problem,
    c.StepList,
    cc.AuditView,
    cc.ReviewDetail,
    cc.ReviewGroupList,
    cc.ReviewList,
    cc.ReviewOutcome,
    cp.ProtocolDiff,
    cp.ProtocolList,
    cp.ProtocolValidation,
    cp.ProtocolVersionList,
    cp.ProtocolView,
]
NEW = "SOMETHING_NEW"


def from_the_future(kind: inspect.Type) -> Any:
    """Return a value with an extra field in every record, a new member in every enumeration, and long texts."""
    match kind:
        case inspect.StructType():
            return {**{field.encode_name: from_the_future(field.type) for field in kind.fields}, "brand_new": [1]}
        case inspect.ListType():
            return [from_the_future(kind.item_type)]
        case inspect.DictType():
            return {"a": from_the_future(kind.value_type)}
        case inspect.UnionType():
            return from_the_future(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType():
            return NEW
        case inspect.StrType():
            return "x" * 10_000
        case inspect.IntType():
            return 7
        case inspect.FloatType():
            return 0.5
        case inspect.BoolType():
            return True
        case _:
            return {"anything": None}


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_unknown_fields_and_enum_members_are_accepted(kind: type[Struct]) -> None:
    told = from_the_future(inspect.type_info(kind))
    found = read(msgspec.json.encode(told), kind)
    assert isinstance(found, kind)
    back = msgspec.to_builtins(found)
    assert {name: value for name, value in told.items() if name != "brand_new"}.keys() == back.keys()
    assert convert(told, kind) == found


def test_unknown_enum_member_keeps_its_text() -> None:
    outcome = read(b'{"review_id": "r", "act": "retry", "outcome": "POSTPONED"}', cc.ReviewOutcome)
    assert (outcome.outcome, outcome.code, outcome.keeps) == ("POSTPONED", None, [])


def test_nested_records_may_have_unknown_fields() -> None:
    told = job(target={"type": "Document", "id": "d", "version": 3}, error={"code": "", "message": "m"})
    found = read(msgspec.json.encode(told), c.JobView)
    assert (found.target, found.error) == (c.Target("Document", "d"), c.Error("", "m"))
    assert found.steps[0].stepId == "ocr"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"jobId": 7, "status": "X", "duplicate": false}',
        b'{"jobId": "j", "status": "X", "duplicate": 1}',
        b'{"jobId": "j", "status": null, "duplicate": true}',
        b'{"jobId": true, "status": "X", "duplicate": true}',
        b'{"jobId": "\xff", "status": "X", "duplicate": true}',
    ],
)
def test_unfitting_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        read(answer, c.Accepted)


def test_boolean_is_not_accepted_as_a_number() -> None:
    with pytest.raises(ValueError, match="int expected, not True"):
        convert({"outcome": "x", "retried": True, "pending": 0}, c.OutboxRetried)
