"""Slow start, in numbers."""

from lucius.usecases.handover.slow_start import INITIAL_WINDOW, STEP_SECONDS, PacedRamp, Ramp


def ramp(full: int = 100, jitter: float = 0.5) -> Ramp:
    return Ramp(full, lambda: jitter)


def test_ramp_without_an_outage_has_the_full_window_and_no_pause() -> None:
    calm = ramp()
    calm.note_success()
    assert (calm.window, calm.pause()) == (100, 0.0)


def test_window_doubles_with_each_successful_turn_after_an_outage() -> None:
    back, windows = ramp(), []
    back.outage()
    for _ in range(6):
        windows.append(back.window)
        back.note_success()
    assert windows == [8, 16, 32, 64, 100, 100]


def test_ramp_restarts_at_the_next_outage() -> None:
    back = ramp()
    back.outage()
    back.note_success()
    back.outage()
    assert back.window == 8


def test_a_small_full_window_is_never_exceeded() -> None:
    small = ramp(full=4)
    small.outage()
    assert small.window == 4
    assert small.pause() == 0.0


def test_pauses_vary_with_the_jitter_and_stay_short() -> None:
    quick, slow = ramp(jitter=0.0), ramp(jitter=0.999)
    for each in (quick, slow):
        each.outage()
    assert 0 < quick.pause() < slow.pause() < 2 * STEP_SECONDS


def test_full_speed_is_reached_within_three_seconds() -> None:
    back, seconds = ramp(full=1_024, jitter=0.999), 0.0
    back.outage()
    while not back.is_full:
        seconds += back.pause()
        back.note_success()
    assert seconds < 3


class Steady:
    at = 100.0

    def __call__(self) -> float:
        return self.at


class TestPacedRamp:
    def pace(self, now: Steady, full: int = 100) -> PacedRamp:
        return PacedRamp(full, lambda: 0.5, now)

    def go(self, pace: PacedRamp) -> int:
        """Start as many as permitted, all of which succeed; return the number."""
        room = pace.room()
        pace.count_started(room)
        pace.note_success()
        return room

    def test_room_is_always_full_without_an_outage(self) -> None:
        calm = self.pace(Steady())
        assert [self.go(calm) for _ in range(3)] == [100, 100, 100]
        assert calm.wait() == 0

    def test_window_is_used_once_per_pause_however_often_it_is_asked_for(self) -> None:
        now = Steady()
        back = self.pace(now)
        back.outage()
        assert [self.go(back) for _ in range(3)] == [INITIAL_WINDOW, 0, 0]
        assert 0 < back.wait() < 2 * STEP_SECONDS
        windows = []
        for _ in range(5):
            now.at += back.wait() + 0.001
            windows.append(self.go(back))
        assert windows == [16, 32, 64, 100, 100]

    def test_unused_room_is_returned(self) -> None:
        back = self.pace(Steady())
        back.outage()
        back.count_started(back.room())
        assert back.room() == 0
        back.count_started(-3)
        assert back.room() == 3

    def test_window_grows_only_after_a_success(self) -> None:
        now = Steady()
        back = self.pace(now)
        back.outage()
        assert back.room() == INITIAL_WINDOW
        now.at += 10
        assert back.room() == INITIAL_WINDOW

    def test_paced_ramp_restarts_at_the_next_outage(self) -> None:
        now = Steady()
        back = self.pace(now)
        back.outage()
        self.go(back)
        now.at += 10
        self.go(back)
        back.outage()
        assert [self.go(back), self.go(back)] == [INITIAL_WINDOW, 0]
