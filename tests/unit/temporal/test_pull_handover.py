"""Directives that were handed over count until their workflow has projected that, despite any failures."""

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from lucius.core.model.decision import Applied, Decision, JobSnapshot
from lucius.core.model.inputs import Cap, HandedOver
from lucius.engine.temporal import pull_handover
from lucius.engine.temporal.fastpath import coalesced_handovers
from lucius.engine.temporal.fastpath.coalesced_handovers import CoalescedHandovers
from lucius.engine.temporal.messages import JobMessage
from lucius.engine.temporal.pull_handover import PullHandover
from lucius.ports.errors import EngineDown, LedgerBusy, LimitReached
from lucius.ports.inbox import Inbox, InboxMessage
from lucius.ports.readers import JobReader
from tests.support.clock import ManualClock
from tests.support.until import until

CAP = Cap("unacked", 2)
JOB = cast(JobSnapshot, SimpleNamespace(job=SimpleNamespace(job_id="job")))


class World:
    """A store that takes every message and counts nothing yet, and a workflow that can be unreachable.

    With `coalesces`, hand-overs wait for a callback, as on the fastpath; otherwise each is signalled at once.
    """

    def __init__(self, *, coalesces: bool) -> None:
        self.signals: list[list[JobMessage]] = []
        self.stored: dict[str, InboxMessage] = {}
        self.tries = 0
        self.away: Exception | None = None
        self.has_ended = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.freed: list[str] = []
        self.clock = ManualClock()
        self.coalesced = CoalescedHandovers() if coalesces else None
        self.pull_handover = PullHandover(
            cast(JobReader, self),
            cast(Inbox, self),
            self.clock,
            evaluate=self.evaluate,
            send=self.send_handovers,
            freed=self.freed.append,
        )

    async def put(self, messages: Sequence[InboxMessage]) -> list[bool]:
        self.stored.update((message.message_id, message) for message in messages)
        return [True for _ in messages]

    async def delete(self, message_ids: Collection[str]) -> None:
        for message_id in message_ids:
            del self.stored[message_id]

    async def get_many(self, message_ids: Collection[str]) -> list[InboxMessage]:
        return [self.stored[message_id] for message_id in message_ids if message_id in self.stored]

    def project(self) -> None:
        """Let the workflows project what they were signalled, and the services answer."""
        self.stored.clear()

    async def counters(self, prefix: str) -> dict[str, int]:
        return {}

    async def evaluate(self, job_id: str, handed_over: Sequence[HandedOver], step_id: str | None) -> Decision:
        return cast(Decision, SimpleNamespace(reply=Applied()))

    async def send_handovers(self, job_id: str, messages: Sequence[JobMessage]) -> bool:
        if self.coalesced is None:
            return await self.signal(job_id, messages)
        return await self.coalesced.send_later(job_id, messages, self.signal)

    async def signal(self, job_id: str, messages: Sequence[JobMessage]) -> bool:
        self.tries += 1
        await self.answers.wait()
        if self.away is not None:
            raise self.away
        self.signals.append(list(messages))
        return not self.has_ended

    async def call_back(self) -> None:
        assert self.coalesced is not None
        await self.coalesced.send_together("job", [], self.signal)

    async def hand_over(self, number: int) -> None:
        await self.pull_handover.hand_over(JOB, [HandedOver(f"s{number}", 1, f"lease-{number}", (CAP,))], None)

    async def close(self) -> None:
        if self.coalesced is not None:
            self.coalesced.close()
        await self.pull_handover.close()

    @property
    def sizes(self) -> list[int]:
        return [len(messages) for messages in self.signals]


both_routes = pytest.mark.parametrize("coalesces", [False, True])


@both_routes
async def test_handovers_count_until_they_are_projected(monkeypatch: pytest.MonkeyPatch, coalesces: bool) -> None:
    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 0.05)
    world = World(coalesces=coalesces)
    world.answers.clear()
    await world.hand_over(1)
    await world.hand_over(2)
    with pytest.raises(LimitReached):
        await world.hand_over(3)
    assert not world.pull_handover.is_settled
    world.answers.set()
    await until(lambda: world.pull_handover.is_settled)
    assert world.sizes == ([2] if coalesces else [1, 1])
    with pytest.raises(LimitReached):
        await world.hand_over(3)
    assert world.freed == []
    world.project()
    await until(lambda: len(world.freed) == 2)  # without another attempt: a waiting pull has to be woken
    assert world.freed == ["unacked"] * 2
    await world.hand_over(3)


async def test_pull_that_met_the_cap_before_the_signal_is_woken_after_it() -> None:
    world = World(coalesces=True)
    await world.hand_over(1)
    await world.hand_over(2)
    with pytest.raises(LimitReached):
        await world.hand_over(3)
    await world.call_back()
    assert world.freed == []
    world.project()
    await until(lambda: len(world.freed) == 2)


async def test_handover_that_no_worker_projects_counts_for_a_while() -> None:
    world = World(coalesces=False)
    await world.hand_over(1)
    await world.hand_over(2)
    await until(lambda: world.pull_handover.is_settled)
    with pytest.raises(LimitReached):
        await world.hand_over(3)
    world.clock.advance(pull_handover.MAX_CONFIRM_MS / 1000)
    await world.hand_over(3)


async def test_handover_of_an_ended_job_counts_no_longer() -> None:
    world = World(coalesces=False)
    world.has_ended = True
    await world.hand_over(1)
    await world.hand_over(2)
    await until(lambda: world.pull_handover.is_settled)
    assert world.freed == ["unacked"] * 2


@both_routes
async def test_handovers_still_count_while_temporal_is_away_and_are_signalled_again(
    monkeypatch: pytest.MonkeyPatch, coalesces: bool
) -> None:
    monkeypatch.setattr(coalesced_handovers, "COALESCE_SECONDS", 0.01)
    monkeypatch.setattr(pull_handover, "RETRY_SECONDS", 0.01)
    world = World(coalesces=coalesces)
    world.away = EngineDown("away")
    await world.hand_over(1)
    await world.hand_over(2)
    await until(lambda: world.tries >= 3)
    with pytest.raises(LimitReached):
        await world.hand_over(3)
    world.away = None
    await until(lambda: world.pull_handover.is_settled)
    assert world.sizes == ([2] if coalesces else [1, 1])
    world.project()
    await world.hand_over(3)


async def test_handover_that_failed_with_a_callback_is_signalled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_handover, "RETRY_SECONDS", 0.01)
    world = World(coalesces=True)
    await world.hand_over(1)
    await asyncio.sleep(0)  # its signal waits for a callback now
    world.away = EngineDown("away")
    with pytest.raises(EngineDown):
        await world.call_back()
    world.away = None
    await until(lambda: bool(world.signals))
    assert world.sizes == [1]
    await world.call_back()
    assert world.sizes == [1, 0]


async def test_callback_takes_waiting_handovers_along() -> None:
    world = World(coalesces=True)
    await world.hand_over(1)
    await world.hand_over(2)
    await asyncio.sleep(0)
    await world.call_back()
    assert world.sizes == [2]
    await until(lambda: world.pull_handover.is_settled)
    assert world.tries == 1


@both_routes
@pytest.mark.parametrize("away", [None, EngineDown("away"), LedgerBusy("busy")])
async def test_close_tries_once_to_signal_pending_handovers(away: Exception | None, coalesces: bool) -> None:
    world = World(coalesces=coalesces)
    world.away = away
    await world.hand_over(1)
    await world.close()
    assert (world.tries, len(world.signals)) == (1, 0 if away else 1)


@both_routes
async def test_close_waits_for_a_silent_server_only_briefly(monkeypatch: pytest.MonkeyPatch, coalesces: bool) -> None:
    monkeypatch.setattr(pull_handover, "CLOSE_SECONDS", 0.01)
    world = World(coalesces=coalesces)
    world.answers.clear()
    await world.hand_over(1)
    async with asyncio.timeout(5):
        await world.close()
