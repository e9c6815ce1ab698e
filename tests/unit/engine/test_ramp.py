"""Slow start, in numbers."""

from lucius.service.ramp import STEP_SECONDS, Ramp


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
