"""A call that two executions of its activity have in hand is made by one: Temporal may take the other for dead."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from temporalio.testing import ActivityEnvironment

from lucius.adapters.inbox_memory import MemoryInbox
from lucius.core.decision import NoTools
from lucius.core.inputs import Succeeded
from lucius.core.model import NEVER, StepStatus
from lucius.engine.temporal import activities
from lucius.engine.temporal.activities import Activities
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.wire import HandOver, Happened, unpack
from lucius.ports.inbox import Letter

WHAT = HandOver("j1", "post", 1, "lease", "http", "")
DONE = Succeeded(step_id="post", attempt_no=1, lease_id="lease", result={})


class Execution:
    """Executions of one activity on one step, whose workflow goes on when it is told to."""

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
            reader=Mock(),
            inbox=self.inbox,
            jobs=Mock(),
            ahead=Ahead(),
            dispatcher=Mock(),
            publisher=None,
            caller=Mock(admit=Mock(return_value=Mock(spec=["release"]))),
            exchange=Mock(outcome=self.calls),
            clock=Mock(now=Mock(return_value=1)),
            tools=NoTools(),
            absence=Mock(),
        )

    async def run(self) -> list[Happened]:
        environment = ActivityEnvironment(client=self._client)
        return await environment.run(self._activities.external_call, WHAT)

    async def letters(self) -> list[str]:
        return [letter.letter_id for letter in await self.inbox.unread(NEVER, 10)]


async def test_it_is_made_once_though_two_wait_for_the_workflow() -> None:
    execution = Execution()
    running = [asyncio.create_task(execution.run()) for _ in range(2)]
    while not execution.signals.await_count:  # noqa: ASYNC110
        await asyncio.sleep(0)
    execution.step.status = StepStatus.PROCESSING
    said = [[unpack(happened) for happened in outcome] for outcome in await asyncio.gather(*running)]
    assert execution.calls.await_count == 1
    assert [DONE] in said
    assert [call.args[1][0].letter for call in execution.signals.await_args_list] == await execution.letters()


async def test_it_is_made_once_though_the_claim_on_it_is_gone_with_its_letter() -> None:
    execution = Execution()
    slow = asyncio.create_task(execution.run())
    while not execution.signals.await_count:  # noqa: ASYNC110
        await asyncio.sleep(0)

    async def projected(letters: Sequence[Letter]) -> list[bool]:
        """Just before the second puts its claim in."""
        execution.step.status = StepStatus.PROCESSING
        await execution.inbox.throw_away(await execution.letters())
        return await MemoryInbox.put(execution.inbox, letters)

    execution.inbox.put = projected  # type: ignore[method-assign]
    await execution.run()
    assert [unpack(happened) for happened in await slow] == [DONE]
    assert execution.calls.await_count == 1
    assert await execution.letters() == []


async def test_one_that_was_not_made_can_be_made_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities, "PICKED_UP_WITHIN", 0.05)
    execution = Execution()
    with pytest.raises(TimeoutError):
        await execution.run()
    assert await execution.letters() == []
    execution.signals.side_effect = lambda *_: setattr(execution.step, "status", StepStatus.PROCESSING)
    assert [unpack(happened) for happened in await execution.run()] == [DONE]


async def test_if_the_workflow_has_other_plans_nothing_is_left_behind() -> None:
    execution = Execution()
    execution.signals.side_effect = lambda *_: setattr(execution.step, "status", StepStatus.CANCELLED)
    await execution.run()
    assert (execution.calls.await_count, await execution.letters()) == (0, [])
