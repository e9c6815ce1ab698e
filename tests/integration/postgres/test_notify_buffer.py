"""Messages to other processes fit into notifications, and their buffer is bounded."""

import msgspec
import pytest
from msgspec.structs import replace

from lucius.adapters.ledger.postgres.notify import Payload
from lucius.adapters.ledger.postgres.notify_buffer import MAX_BUFFERED_INBOX_GROUPS, MAX_INBOX_IDS, NotifyBuffer
from lucius.bootstrap.ids import new_job_id
from lucius.core.model.counters import UNACKED
from lucius.core.model.records import OutboxRow
from lucius.ports.peers import NEAR_DEADLINE_MS, Wake
from tests.conformance.builders import accept, dispatch

PAYLOAD_BYTES = 8_000  # PostgreSQL's limit is below this
NOW = 1_790_000_000_000


def inbox_id(job_id: str = "", about: int = 0) -> str:
    return f"{job_id or new_job_id()}/{about:032x}"


def service(number: int) -> str:
    return f"s{number:063}"


def fill_with_longest(news: NotifyBuffer) -> None:
    """Fill the buffer with entries of maximum length, more than one notification holds."""
    for number in range(150):
        asked = dispatch(new_job_id(), service=service(number), lane=15)
        job = replace(asked.job, due_at=NOW + number, updated_at=NOW + number - NEAR_DEADLINE_MS)
        news.add_decision(replace(asked, job=job, counters={f"{UNACKED}{service(number)}": -1}), never_held)
        news.add_inbox_ids([inbox_id(), inbox_id()])


def never_held(row: OutboxRow) -> bool:
    return False


def bytes_of(wake: Wake) -> int:
    return len(msgspec.json.encode(Payload(2**62, wake, 2**62, sweeps=True)))


def all_of(news: NotifyBuffer) -> list[Wake]:
    wakes = []
    while news:
        wakes.append(news.take())
        assert len(wakes) < 100
    return wakes


class TestNotificationSize:
    def test_notification_with_entries_of_maximum_length_fits_the_limit(self) -> None:
        news = NotifyBuffer()
        fill_with_longest(news)
        wakes = all_of(news)
        assert max(map(bytes_of, wakes)) < PAYLOAD_BYTES
        first = wakes[0]
        assert first.inbox_ids
        assert first.changed
        assert first.due
        assert first.ready

    def test_entries_that_do_not_fit_go_into_the_next_notification(self) -> None:
        news = NotifyBuffer()
        fill_with_longest(news)
        wakes = all_of(news)
        counts = {
            name: len({one for wake in wakes for one in getattr(wake, name)})
            for name in ("changed", "due", "ready", "picked_up", "inbox_ids")
        }
        assert counts == {"changed": 150, "due": 150, "ready": 150, "picked_up": 150, "inbox_ids": 300}

    def test_hundred_jobs_and_forty_lanes_with_common_names_fit_one_notification(self) -> None:
        news = NotifyBuffer()
        for number in range(100):
            asked = dispatch(new_job_id(), service=f"service-{number % 4}", lane=number // 4 % 10)
            news.add_decision(asked, never_held)
        (wake,) = all_of(news)
        assert (len(wake.changed), len(wake.ready)) == (100, 40)

    def test_oversized_entry_does_not_block_the_next(self) -> None:
        news = NotifyBuffer()
        news.add_decision(accept("j" * PAYLOAD_BYTES), never_held)
        news.add_decision(accept("next"), never_held)
        assert [wake.changed for wake in all_of(news)] == [("j" * PAYLOAD_BYTES,), ("next",)]


class TestInboxIds:
    def test_ids_are_sent_in_order_and_bounded_per_notification(self) -> None:
        news = NotifyBuffer()
        ids = [inbox_id(about=n) for n in range(MAX_INBOX_IDS + 5)]
        for one in ids:
            news.add_inbox_ids([one])
        assert [wake.inbox_ids for wake in all_of(news)] == [tuple(ids[:MAX_INBOX_IDS]), tuple(ids[MAX_INBOX_IDS:])]

    def test_ids_announced_together_stay_together(self) -> None:
        news = NotifyBuffer()
        groups = [[inbox_id(f"j{n}", about) for about in range(8)] for n in range(3)]
        for group in groups:
            news.add_inbox_ids(group)
        assert [wake.inbox_ids for wake in all_of(news)] == [(*groups[0], *groups[1]), tuple(groups[2])]

    @pytest.mark.parametrize("n", [0, MAX_INBOX_IDS + 1])
    def test_empty_and_oversized_groups_are_not_announced(self, n: int) -> None:
        news = NotifyBuffer()
        news.add_inbox_ids([inbox_id() for _ in range(n)])
        assert not news

    def test_oldest_ids_are_dropped_when_the_buffer_is_full(self) -> None:
        news = NotifyBuffer()
        ids = [inbox_id(about=n) for n in range(MAX_BUFFERED_INBOX_GROUPS + 30)]
        for one in ids:
            news.add_inbox_ids([one])
        assert [one for wake in all_of(news) for one in wake.inbox_ids] == ids[30:]

    def test_ids_of_a_failed_notification_are_not_sent_later(self) -> None:
        news = NotifyBuffer()
        news.add_decision(accept("j1"), never_held)
        for _ in range(2 * MAX_INBOX_IDS):
            news.add_inbox_ids([inbox_id()])
        news.restore(news.take())
        assert all_of(news) == [Wake(changed=("j1",))]
