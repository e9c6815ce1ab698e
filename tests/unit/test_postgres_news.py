"""What is told to other processes fits into notifications, and never becomes more than a memory can bear."""

import msgspec
import pytest
from msgspec.structs import replace

from lucius.adapters.postgres.news import MAX_TOLD, MOST_UNTOLD, News
from lucius.adapters.postgres.wakes import _Note
from lucius.core.counters import UNACKED
from lucius.core.model import OutboxRow
from lucius.ids import new_job_id
from lucius.ports.peers import NEAR_MS, Wake
from tests.conformance.builders import accept, dispatch

PAYLOAD_BYTES = 8_000  # must be less
NOW = 1_790_000_000_000


def letter_id(job_id: str = "", about: int = 0) -> str:
    return f"{job_id or new_job_id()}/{about:032x}"


def service(number: int) -> str:
    return f"s{number:063}"


def everything(news: News) -> None:
    """At its longest, and more than goes into one."""
    for number in range(150):
        asked = dispatch(new_job_id(), service=service(number), lane=15)
        job = replace(asked.job, due_at=NOW + number, updated_at=NOW + number - NEAR_MS)
        news.note(replace(asked, job=job, counters={f"{UNACKED}{service(number)}": -1}), nobody_holds)
        news.note_told([letter_id(), letter_id()])


def nobody_holds(row: OutboxRow) -> bool:
    return False


def bytes_of(wake: Wake) -> int:
    return len(msgspec.json.encode(_Note(2**62, wake, 2**62, sweeps=True)))


def all_of(news: News) -> list[Wake]:
    wakes = []
    while news:
        wakes.append(news.take())
        assert len(wakes) < 100
    return wakes


class TestWhatFits:
    def test_of_everything_at_its_longest_no_more_than_that_is_in_one_notification(self) -> None:
        news = News()
        everything(news)
        wakes = all_of(news)
        assert max(map(bytes_of, wakes)) < PAYLOAD_BYTES
        first = wakes[0]
        assert first.told
        assert first.changed
        assert first.due
        assert first.ready

    def test_what_does_not_fit_comes_with_the_next(self) -> None:
        news = News()
        everything(news)
        wakes = all_of(news)
        counts = {
            name: len({one for wake in wakes for one in getattr(wake, name)})
            for name in ("changed", "due", "ready", "picked_up", "told")
        }
        assert counts == {"changed": 150, "due": 150, "ready": 150, "picked_up": 150, "told": 300}

    def test_a_hundred_jobs_and_forty_lanes_of_common_names_are_one_notification(self) -> None:
        news = News()
        for number in range(100):
            asked = dispatch(new_job_id(), service=f"service-{number % 4}", lane=number // 4 % 10)
            news.note(asked, nobody_holds)
        (wake,) = all_of(news)
        assert (len(wake.changed), len(wake.ready)) == (100, 40)

    def test_one_that_is_larger_than_all_room_holds_nobody_up(self) -> None:
        news = News()
        news.note(accept("j" * PAYLOAD_BYTES), nobody_holds)
        news.note(accept("next"), nobody_holds)
        assert [wake.changed for wake in all_of(news)] == [("j" * PAYLOAD_BYTES,), ("next",)]


class TestLetters:
    def test_they_are_told_in_order_and_only_so_many_at_once(self) -> None:
        news = News()
        ids = [letter_id(about=n) for n in range(MAX_TOLD + 5)]
        for one in ids:
            news.note_told([one])
        assert [wake.told for wake in all_of(news)] == [tuple(ids[:MAX_TOLD]), tuple(ids[MAX_TOLD:])]

    def test_those_that_were_announced_together_stay_together(self) -> None:
        news = News()
        groups = [[letter_id(f"j{n}", about) for about in range(8)] for n in range(3)]
        for group in groups:
            news.note_told(group)
        assert [wake.told for wake in all_of(news)] == [(*groups[0], *groups[1]), tuple(groups[2])]

    @pytest.mark.parametrize("n", [0, MAX_TOLD + 1])
    def test_none_and_too_many_are_not_announced(self, n: int) -> None:
        news = News()
        news.note_told([letter_id() for _ in range(n)])
        assert not news

    def test_of_too_many_the_last_are_kept(self) -> None:
        news = News()
        ids = [letter_id(about=n) for n in range(MOST_UNTOLD + 30)]
        for one in ids:
            news.note_told([one])
        assert [one for wake in all_of(news) for one in wake.told] == ids[30:]

    def test_what_could_not_be_said_at_once_is_not_said_later(self) -> None:
        news = News()
        news.note(accept("j1"), nobody_holds)
        for _ in range(2 * MAX_TOLD):
            news.note_told([letter_id()])
        news.put_back(news.take())
        assert all_of(news) == [Wake(changed=("j1",))]
