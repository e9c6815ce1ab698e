"""Slow start, in numbers."""

from lucius.service.ramp import FIRST, STEP_SECONDS, Pace, Ramp


def ramp(full: int = 100, jitter: float = 0.5) -> Ramp:
    return Ramp(full, lambda: jitter)


def test_without_an_outage_there_is_no_limit_and_no_pause() -> None:
    calm = ramp()
    calm.went_well()
    assert (calm.window, calm.pause()) == (100, 0.0)


def test_after_an_outage_it_doubles_with_each_turn_that_went_well() -> None:
    back, windows = ramp(), []
    back.outage()
    for _ in range(6):
        windows.append(back.window)
        back.went_well()
    assert windows == [8, 16, 32, 64, 100, 100]


def test_the_next_outage_begins_it_anew() -> None:
    back = ramp()
    back.outage()
    back.went_well()
    back.outage()
    assert back.window == 8


def test_a_small_full_window_is_never_exceeded() -> None:
    small = ramp(full=4)
    small.outage()
    assert small.window == 4
    assert small.pause() == 0.0


def test_pauses_differ_from_one_replica_to_the_next_and_none_is_long() -> None:
    quick, slow = ramp(jitter=0.0), ramp(jitter=0.999)
    for each in (quick, slow):
        each.outage()
    assert 0 < quick.pause() < slow.pause() < 2 * STEP_SECONDS


def test_full_speed_is_reached_within_three_seconds() -> None:
    back, seconds = ramp(full=1_024, jitter=0.999), 0.0
    back.outage()
    while not back.is_full:
        seconds += back.pause()
        back.went_well()
    assert seconds < 3


class Steady:
    at = 100.0

    def __call__(self) -> float:
        return self.at


class TestPace:
    def pace(self, now: Steady, full: int = 100) -> Pace:
        return Pace(full, lambda: 0.5, now)

    def go(self, pace: Pace) -> int:
        """As many as may, and all goes well."""
        room = pace.room()
        pace.began(room)
        pace.went_well()
        return room

    def test_without_an_outage_there_is_always_room(self) -> None:
        calm = self.pace(Steady())
        assert [self.go(calm) for _ in range(3)] == [100, 100, 100]
        assert calm.wait() == 0

    def test_however_often_they_come_a_window_lasts_for_its_pause(self) -> None:
        now = Steady()
        back = self.pace(now)
        back.outage()
        assert [self.go(back) for _ in range(3)] == [FIRST, 0, 0]
        assert 0 < back.wait() < 2 * STEP_SECONDS
        windows = []
        for _ in range(5):
            now.at += back.wait() + 0.001
            windows.append(self.go(back))
        assert windows == [16, 32, 64, 100, 100]

    def test_what_did_not_go_leaves_its_room(self) -> None:
        back = self.pace(Steady())
        back.outage()
        back.began(back.room())
        assert back.room() == 0
        back.began(-3)
        assert back.room() == 3

    def test_it_grows_only_if_something_went_well(self) -> None:
        now = Steady()
        back = self.pace(now)
        back.outage()
        assert back.room() == FIRST
        now.at += 10
        assert back.room() == FIRST

    def test_the_next_outage_begins_it_anew(self) -> None:
        now = Steady()
        back = self.pace(now)
        back.outage()
        self.go(back)
        now.at += 10
        self.go(back)
        back.outage()
        assert [self.go(back), self.go(back)] == [FIRST, 0]
