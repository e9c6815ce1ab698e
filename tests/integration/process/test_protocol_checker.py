"""Documents with costly schemas are checked in a process with a deadline."""

import asyncio
import time

import msgspec
import pytest

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols.check import is_costly
from lucius.adapters.protocols.checker import ProtocolChecker
from lucius.bootstrap import check_protocol
from lucius.core.protocol.definition import ProtocolDefinition


def protocol(**schema: object) -> ProtocolDefinition:
    steps = [{"step_id": "t", "step_type": "T", "service": "s"}]
    document = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": steps, "input_schema": schema}
    return msgspec.convert(document, ProtocolDefinition)


async def test_process_finds_the_same_as_a_thread() -> None:
    checker = ProtocolChecker(CelTools(), check_protocol.__name__)
    in_process = await checker.check(protocol(properties={"a": {"pattern": "^a$", "default": 1, "type": "string"}}))
    in_thread = await checker.check(protocol(properties={"a": {"default": 1, "type": "string"}}))
    assert in_process == in_thread
    assert [finding.path for finding in in_thread] == [("input_schema", "properties", "a")]
    assert await checker.check(protocol(properties={"a": {"pattern": "^a$"}})) == ()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, False),
        ({"properties": {"a": {"type": "array", "items": {"required": ["b"]}, "default": [{}]}}}, False),
        ({"properties": {"a": {"default": [{}] * 9_000}}}, True),
        ({"description": "x" * 20_000}, True),
        ({"properties": {"default": {"pattern": "a"}}}, True),
        ({"items": {"enum": [2**63, 1]}}, True),
    ],
)
def test_large_or_costly_schema_needs_a_process(schema: dict[str, object], expected: bool) -> None:
    assert is_costly(protocol(**schema)) is expected


async def test_choice_of_a_process_is_fast_for_deeply_nested_values() -> None:
    value: object = [1] * 170_000
    for _ in range(45):
        value = {"enum": [value, 2]}
    made = protocol(properties={"a": value})
    began = time.process_time()
    assert is_costly(made)
    assert time.process_time() - began < 0.2
    assert "256 KiB" in (await ProtocolChecker(CelTools(), check_protocol.__name__).check(made))[0].reason


async def test_defaults_with_too_many_faults_are_refused() -> None:
    items = {"required": [f"a{i}" for i in range(50)]}
    found = await ProtocolChecker(CelTools(), check_protocol.__name__).check(
        protocol(properties={"a": {"items": items, "default": [{}] * 9_000}})
    )
    assert [finding.reason for finding in found] == ["the defaults are too large to be checked"]


async def test_check_that_misses_its_deadline_is_a_fault_and_leaves_no_process() -> None:
    finding, *more = await ProtocolChecker(CelTools(), check_protocol.__name__, deadline_seconds=0.001).check(
        protocol(pattern="^a$")
    )
    assert finding.fatal
    assert finding.reason == "its schemas can't be checked within 0.001 s: make them simpler"
    assert not more


async def test_cancelled_check_ends_its_process() -> None:
    checking = asyncio.create_task(ProtocolChecker(CelTools(), check_protocol.__name__).check(protocol(pattern="^a$")))
    await asyncio.sleep(0)
    checking.cancel()
    assert isinstance((await asyncio.gather(checking, return_exceptions=True))[0], asyncio.CancelledError)
