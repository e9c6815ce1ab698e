"""Translation of Temporal's errors."""

from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.service import RPCError, RPCStatusCode

from lucius.engine.temporal.messages import WorkflowArgs
from lucius.engine.temporal.workflow_client import NoAnswer, NoWorkflow, WorkflowClient
from lucius.ports.errors import EngineDown
from tests.support.clock import ManualClock


def answering(status: RPCStatusCode, message: str = "no") -> WorkflowClient:
    handle = Mock(signal=AsyncMock(side_effect=RPCError(message, status, b"")))
    client = Mock(get_workflow_handle=Mock(return_value=handle))
    return WorkflowClient(AsyncMock(return_value=client), "queue", WorkflowArgs(), ManualClock(), searchable=False)


@pytest.mark.parametrize("status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED])
async def test_temporal_is_down_if_it_does_not_answer(status: RPCStatusCode) -> None:
    workflows = answering(status)
    with pytest.raises(NoAnswer):
        await workflows.signal("j1", "resync", [])
    assert workflows.down == "no"


async def test_temporal_is_down_if_it_denies_permission() -> None:
    workflows = answering(RPCStatusCode.PERMISSION_DENIED)
    with pytest.raises(EngineDown):
        await workflows.signal("j1", "resync", [])
    assert workflows.down == "no"


async def test_temporal_that_refuses_one_request_is_not_down() -> None:
    """Other requests are still sent, and no attempt gets a grace period because of it."""
    workflows = answering(RPCStatusCode.INVALID_ARGUMENT)
    with pytest.raises(EngineDown):
        await workflows.signal("j1", "resync", [])
    assert (workflows.down, workflows.back_at) == ("", 0)


async def test_missing_workflow_and_missing_namespace_raise_different_errors() -> None:
    with pytest.raises(NoWorkflow):
        await answering(RPCStatusCode.NOT_FOUND, "workflow not found").signal("j1", "resync", [])
    with pytest.raises(EngineDown):
        await answering(RPCStatusCode.NOT_FOUND, "Namespace default is not found").signal("j1", "resync", [])
