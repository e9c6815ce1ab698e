"""Undeliverable inbox messages are retried later and block no other message; only a refusal is an error."""

from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger.memory.inbox import MemoryInbox
from lucius.core.model.inputs import Ack, Heartbeat
from lucius.engine.temporal.inbox_redelivery import InboxRedelivery
from lucius.engine.temporal.messages import make_inbox_message
from lucius.engine.temporal.repeat_limiter import MAX_REMEMBERED_NAMES, RepeatLimiter
from lucius.engine.temporal.workflow_client import NoAnswer
from lucius.ports.errors import EngineDown
from lucius.ports.inbox import InboxMessage

NOW = 1_000_000


async def load(job_id: str, *_: object, **__: object) -> object:
    return SimpleNamespace(job=SimpleNamespace(job_id=job_id, live=True))


def redelivery(inbox: MemoryInbox, tell: AsyncMock, down: str = "") -> InboxRedelivery:
    workflows = Mock(signal=tell, check=AsyncMock(), down=down)
    return InboxRedelivery(Mock(load=load), inbox, Mock(now=Mock(return_value=NOW)), workflows)


@pytest.mark.parametrize(
    ("refused", "level"), [(NoAnswer("no answer in time"), "info"), (EngineDown("too large"), "error")]
)
async def test_undeliverable_message_does_not_block_others(refused: EngineDown, level: str) -> None:
    store = MemoryInbox()
    await store.put([InboxMessage(f"j{n}/a", f"j{n}", "[]", n) for n in (1, 2)])
    tell = AsyncMock(side_effect=[refused, None])
    with capture_logs() as logs:
        assert await redelivery(store, tell).read_inbox() == 2
    assert [call.args[0] for call in tell.await_args_list] == ["j1", "j2"]
    assert [(line["log_level"], line["job_id"]) for line in logs] == [(level, "j1")]


async def test_no_message_is_redelivered_while_temporal_is_down() -> None:
    store = MemoryInbox()
    await store.put([InboxMessage(f"j{n}/a", f"j{n}", "[]", n) for n in (1, 2)])
    tell = AsyncMock(side_effect=NoAnswer("no answer in time"))
    with pytest.raises(EngineDown):
        await redelivery(store, tell, down="no answer in time").read_inbox()
    assert tell.await_count == 1


def test_redelivery_pauses_are_kept_for_a_full_inbox() -> None:
    repeats, names = RepeatLimiter(), [f"message {n}" for n in range(MAX_REMEMBERED_NAMES)]
    assert [sum(repeats.is_due(name, now) for name in names) for now in (0, 1)] == [MAX_REMEMBERED_NAMES, 0]


def test_each_heartbeat_has_a_message_id_of_its_own() -> None:
    """Each heartbeat counts, though its content equals the one before."""
    beat, ack = Heartbeat(step_id="ocr", attempt_no=1, lease_id="l"), Ack(step_id="ocr", attempt_no=1, lease_id="l")
    assert make_inbox_message("j1", [beat], NOW).message_id != make_inbox_message("j1", [beat], NOW).message_id
    assert make_inbox_message("j1", [ack], NOW).message_id == make_inbox_message("j1", [ack], NOW).message_id
