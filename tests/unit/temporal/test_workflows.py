"""What Temporal answers, in words that the rest understands."""

from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.service import RPCError, RPCStatusCode

from lucius.engine.temporal.wire import Begin
from lucius.engine.temporal.workflows import NoAnswer, NoWorkflow, Workflows
from lucius.ports.errors import EngineDown
from tests.support.clock import ManualClock


def answering(status: RPCStatusCode, message: str = "no") -> Workflows:
    handle = Mock(signal=AsyncMock(side_effect=RPCError(message, status, b"")))
    client = Mock(get_workflow_handle=Mock(return_value=handle))
    return Workflows(AsyncMock(return_value=client), "queue", Begin(), ManualClock(), searchable=False)


@pytest.mark.parametrize("status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED])
async def test_one_that_does_not_answer_is_down(status: RPCStatusCode) -> None:
    workflows = answering(status)
    with pytest.raises(NoAnswer):
        await workflows.tell("j1", "look", [])
    assert workflows.down == "no"


async def test_so_is_one_that_lets_us_do_nothing() -> None:
    workflows = answering(RPCStatusCode.PERMISSION_DENIED)
    with pytest.raises(EngineDown):
        await workflows.tell("j1", "look", [])
    assert workflows.down == "no"


async def test_one_that_refuses_what_it_was_asked_is_there() -> None:
    """Others need not be refused for it, nor is anybody excused by its return."""
    workflows = answering(RPCStatusCode.INVALID_ARGUMENT)
    with pytest.raises(EngineDown):
        await workflows.tell("j1", "look", [])
    assert (workflows.down, workflows.back_at) == ("", 0)


async def test_a_workflow_that_is_not_there_is_something_else_than_its_namespace() -> None:
    with pytest.raises(NoWorkflow):
        await answering(RPCStatusCode.NOT_FOUND, "workflow not found").tell("j1", "look", [])
    with pytest.raises(EngineDown):
        await answering(RPCStatusCode.NOT_FOUND, "Namespace default is not found").tell("j1", "look", [])
