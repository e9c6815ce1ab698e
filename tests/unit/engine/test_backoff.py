"""Delays after failures, in numbers."""

import pytest

from lucius.backoff import Backoff, KeyedBackoff
from tests.support.clock import ManualClock


class TestBackoff:
    def test_pause_doubles_up_to_a_maximum_and_resets_on_success(self) -> None:
        backoff = Backoff(5, 30, lambda: 1.0)
        assert [backoff.pause() for _ in range(5)] == [7.5, 15, 30, 30, 30]
        backoff.went_well()
        assert backoff.pause() == 7.5

    def test_pause_varies_with_the_jitter(self) -> None:
        assert (Backoff(8, 30, lambda: 0.0).pause(), Backoff(8, 30, lambda: 0.5).pause()) == (8, 10)

    def test_pause_is_never_shorter_than_the_first(self) -> None:
        backoff = Backoff(8, 2, lambda: 0.0)
        assert [backoff.pause(), backoff.pause()] == [8, 8]

    def test_pause_does_not_overflow_after_many_failures(self) -> None:
        backoff = Backoff(5, 30, lambda: 1.0)
        assert {backoff.pause() for _ in range(5_000)} == {7.5, 15, 30}


class TestKeyedBackoff:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    def keyed_backoff(self, clock: ManualClock, most_names: int = 10) -> KeyedBackoff:
        return KeyedBackoff(clock, lambda: 1.0, first=1, most=4, most_names=most_names)

    def test_each_key_backs_off_by_itself(self, clock: ManualClock) -> None:
        late = self.keyed_backoff(clock)
        assert [late.failed("a") for _ in range(4)] == [1.5, 3, 4, 4]
        assert late.failed("b") == 1.5
        clock.advance(1.5)
        assert (late.waits("a"), late.waits("b"), late.waits("c")) == (True, False, False)
        clock.advance(3)
        assert not late.waits("a")

    def test_forgotten_key_starts_again_from_the_first_pause(self, clock: ManualClock) -> None:
        late = self.keyed_backoff(clock)
        late.failed("a")
        late.forget("a")
        assert not late.waits("a")
        assert late.failed("a") == 1.5

    def test_keys_that_are_not_kept_are_dropped(self, clock: ManualClock) -> None:
        late = self.keyed_backoff(clock)
        for name in "abc":
            late.failed(name)
        late.keep({"b"})
        assert (len(late), late.waits("b"), late.waits("a")) == (1, True, False)

    def test_number_of_keys_is_bounded(self, clock: ManualClock) -> None:
        late = self.keyed_backoff(clock, most_names=3)
        for name in "abcd":
            late.failed(name)
        assert (len(late), late.waits("a"), late.waits("d")) == (3, False, True)
