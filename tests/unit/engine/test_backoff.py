"""Waiting after failures, in numbers."""

import pytest

from lucius.service.backoff import Backoff, PutOff
from tests.support.clock import ManualClock


class TestBackoff:
    def test_it_doubles_up_to_a_maximum_until_something_goes_well(self) -> None:
        backoff = Backoff(5, 30, lambda: 1.0)
        assert [backoff.pause() for _ in range(5)] == [7.5, 15, 30, 30, 30]
        backoff.went_well()
        assert backoff.pause() == 7.5

    def test_who_saw_the_same_failure_draws_another_pause(self) -> None:
        assert (Backoff(8, 30, lambda: 0.0).pause(), Backoff(8, 30, lambda: 0.5).pause()) == (8, 10)

    def test_none_is_shorter_than_the_first_whatever_the_most(self) -> None:
        backoff = Backoff(8, 2, lambda: 0.0)
        assert [backoff.pause(), backoff.pause()] == [8, 8]

    def test_it_never_ends_up_beyond_what_a_number_can_be(self) -> None:
        backoff = Backoff(5, 30, lambda: 1.0)
        assert {backoff.pause() for _ in range(5_000)} == {7.5, 15, 30}


class TestPutOff:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    def put_off(self, clock: ManualClock, most_names: int = 10) -> PutOff:
        return PutOff(clock, lambda: 1.0, first=1, most=4, most_names=most_names)

    def test_each_waits_by_itself_and_longer_every_time(self, clock: ManualClock) -> None:
        late = self.put_off(clock)
        assert [late.failed("a") for _ in range(4)] == [1.5, 3, 4, 4]
        assert late.failed("b") == 1.5
        clock.advance(1.5)
        assert (late.waits("a"), late.waits("b"), late.waits("c")) == (True, False, False)
        clock.advance(3)
        assert not late.waits("a")

    def test_what_went_well_begins_anew(self, clock: ManualClock) -> None:
        late = self.put_off(clock)
        late.failed("a")
        late.forget("a")
        assert not late.waits("a")
        assert late.failed("a") == 1.5

    def test_names_that_are_gone_are_forgotten(self, clock: ManualClock) -> None:
        late = self.put_off(clock)
        for name in "abc":
            late.failed(name)
        late.keep({"b"})
        assert (len(late), late.waits("b"), late.waits("a")) == (1, True, False)

    def test_it_keeps_only_so_many(self, clock: ManualClock) -> None:
        late = self.put_off(clock, most_names=3)
        for name in "abcd":
            late.failed(name)
        assert (len(late), late.waits("a"), late.waits("d")) == (3, False, True)
