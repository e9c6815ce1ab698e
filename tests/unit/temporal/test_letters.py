"""Letters that are not told: one is told later, the others now, and it is an error only if Temporal refused."""

from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs

from lucius.adapters.inbox_memory import MemoryInbox
from lucius.core.inputs import Ack, Heartbeat
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.jobs import MOST_REMEMBERED, Repeats, TemporalJobs
from lucius.engine.temporal.wire import letter_of
from lucius.engine.temporal.workflows import NoAnswer
from lucius.ports.errors import EngineDown
from lucius.ports.inbox import Letter

NOW = 1_000_000


class Store(MemoryInbox):
    async def load(self, job_id: str, *_: object, **__: object) -> object:
        return SimpleNamespace(job=SimpleNamespace(job_id=job_id, live=True))


def jobs(store: Store, tell: AsyncMock, down: str = "") -> TemporalJobs:
    workflows = Mock(tell=tell, check=AsyncMock(), down=down)
    ignored = Mock()
    return TemporalJobs(
        store,  # type: ignore[arg-type]
        Mock(now=Mock(return_value=NOW)),
        ignored,
        workflows,
        Ahead(),
        on_repair=ignored,
    )


@pytest.mark.parametrize(
    ("refused", "level"), [(NoAnswer("no answer in time"), "info"), (EngineDown("too large"), "error")]
)
async def test_one_that_is_not_told_keeps_no_other_from_being_told(refused: EngineDown, level: str) -> None:
    store = Store()
    await store.put([Letter(f"j{n}/a", f"j{n}", "[]", n) for n in (1, 2)])
    tell = AsyncMock(side_effect=[refused, None])
    with capture_logs() as logs:
        assert await jobs(store, tell).read_inbox() == 2
    assert [call.args[0] for call in tell.await_args_list] == ["j1", "j2"]
    assert [(line["log_level"], line["job_id"]) for line in logs] == [(level, "j1")]


async def test_while_temporal_is_away_none_is_told() -> None:
    store = Store()
    await store.put([Letter(f"j{n}/a", f"j{n}", "[]", n) for n in (1, 2)])
    tell = AsyncMock(side_effect=NoAnswer("no answer in time"))
    with pytest.raises(EngineDown):
        await jobs(store, tell, down="no answer in time").read_inbox()
    assert tell.await_count == 1


def test_however_many_wait_each_is_told_ever_more_seldom() -> None:
    repeats, names = Repeats(), [f"letter {n}" for n in range(MOST_REMEMBERED)]
    assert [sum(repeats.is_due(name, now) for name in names) for now in (0, 1)] == [MOST_REMEMBERED, 0]


def test_each_heartbeat_is_a_letter_of_its_own() -> None:
    """It counts, though it says the same as the one before."""
    beat, ack = Heartbeat(step_id="ocr", attempt_no=1, lease_id="l"), Ack(step_id="ocr", attempt_no=1, lease_id="l")
    assert letter_of("j1", [beat], NOW).letter_id != letter_of("j1", [beat], NOW).letter_id
    assert letter_of("j1", [ack], NOW).letter_id == letter_of("j1", [ack], NOW).letter_id
