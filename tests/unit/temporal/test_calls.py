"""A call with two executions of its activity is made by only one; Temporal may consider the first one lost."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.testing import ActivityEnvironment

from lucius.adapters.ledger.memory.inbox import MemoryInbox
from lucius.core.model.inputs import Succeeded
from lucius.core.model.records import NEVER
from lucius.core.model.statuses import StepStatus
from lucius.engine.temporal import activities
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.messages import HandoverRequest, JobMessage, decode_input
from lucius.engine.temporal.shortcuts import NoShortcuts
from lucius.ports.inbox import InboxMessage

WHAT = HandoverRequest("j1", "post", 1, "lease", "http", "")
DONE = Succeeded(step_id="post", attempt_no=1, lease_id="lease", result={})


class Execution:
    """Executions of one activity on one step, whose workflow continues when a test says so."""

    def __init__(self) -> None:
        self.inbox = MemoryInbox()
        attempt = SimpleNamespace(lease_id="lease", held=False)
        request = SimpleNamespace(url="https://bank.example/post")
        self.step = SimpleNamespace(attempt=attempt, status=StepStatus.DISPATCHING, request=request)
        self.calls = AsyncMock(return_value=DONE)
        view = SimpleNamespace(job=None, protocol=None, steps={"post": self.step})
        self.signals = AsyncMock()
        self._client = Mock(get_workflow_handle=Mock(return_value=Mock(signal=self.signals)))
        self.ledger = Mock(load=AsyncMock(return_value=view))
        self._activities = Activities(
            ledger=self.ledger,
            jobs=Mock(),
            inbox=self.inbox,
            engine=Mock(),
            shortcuts=NoShortcuts(),
            directive_loader=Mock(),
            unacked_caps=Mock(),
            publisher=None,
            caller=Mock(admit=Mock(return_value=Mock(spec=["release"]))),
            http_attempt=Mock(outcome=self.calls),
            clock=Mock(now=Mock(return_value=1)),
            downtime_grace=Mock(),
        )

    async def run(self) -> list[JobMessage]:
        environment = ActivityEnvironment(client=self._client)
        return await environment.run(self._activities.external_call, WHAT)

    async def pending_message_ids(self) -> list[str]:
        return [message.message_id for message in await self.inbox.list_pending(NEVER, 10)]


async def test_call_is_made_once_by_two_activities() -> None:
    execution = Execution()
    running = [asyncio.create_task(execution.run()) for _ in range(2)]
    while not execution.signals.await_count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    execution.step.status = StepStatus.PROCESSING
    said = [[decode_input(happened) for happened in outcome] for outcome in await asyncio.gather(*running)]
    assert execution.calls.await_count == 1
    assert [DONE] in said
    assert [
        call.args[1][0].message_id for call in execution.signals.await_args_list
    ] == await execution.pending_message_ids()


async def test_call_is_made_once_after_its_claim_is_deleted() -> None:
    execution = Execution()
    slow = asyncio.create_task(execution.run())
    while not execution.signals.await_count:  # noqa: ASYNC110
        await asyncio.sleep(0)

    async def projected(messages: Sequence[InboxMessage]) -> list[bool]:
        """Project the result of the first just before the second stores its claim."""
        execution.step.status = StepStatus.PROCESSING
        await execution.inbox.delete(await execution.pending_message_ids())
        return await MemoryInbox.put(execution.inbox, messages)

    execution.inbox.put = projected  # type: ignore[method-assign]
    await execution.run()
    assert [decode_input(happened) for happened in await slow] == [DONE]
    assert execution.calls.await_count == 1
    assert await execution.pending_message_ids() == []


async def test_call_that_was_not_made_can_be_made_by_the_next_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities, "PICKUP_TIMEOUT_SECONDS", 0.05)
    execution = Execution()
    with pytest.raises(TimeoutError):
        await execution.run()
    assert await execution.pending_message_ids() == []
    execution.signals.side_effect = lambda *_: setattr(execution.step, "status", StepStatus.PROCESSING)
    assert [decode_input(happened) for happened in await execution.run()] == [DONE]


async def test_fenced_call_leaves_no_claim() -> None:
    execution = Execution()
    execution.signals.side_effect = lambda *_: setattr(execution.step, "status", StepStatus.CANCELLED)
    await execution.run()
    assert (execution.calls.await_count, await execution.pending_message_ids()) == (0, [])
