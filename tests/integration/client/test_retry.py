"""Conditions for retrying a request, and the pauses before it."""

import pytest

from lucius.client import LuciusError, Misconfigured, NotLucius, Problem, TimedOut, Unreachable
from lucius.client.errors import refused
from lucius.client.retry import MAX_PAUSE_SECONDS, Tries, is_retryable, pause_after


class ManualTime:
    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def tries(self, retry_for: float, random_fraction: float = 1.0) -> Tries:
        return Tries(retry_for, now=lambda: self.now, sleep=self.sleep, random_fraction=lambda: random_fraction)


def no_connection() -> Unreachable:
    return Unreachable("http://h", "no_connection", "refused")


def lost() -> Unreachable:
    error = Unreachable("http://h", "lost", "reset")
    error.maybe_done = True
    return error


def problem(status: int, retry_after: float | None = None, code: str = "X") -> LuciusError:
    return refused(Problem(type="t", title="T", status=status, code=code), "POST /x", retry_after)


async def test_pauses_double_up_to_a_limit_and_end_with_the_budget() -> None:
    time = ManualTime()
    tries = time.tries(30)
    expected = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    for _ in expected:
        await tries.pause_or_raise(no_connection(), True)
    with pytest.raises(Unreachable) as caught:
        await tries.pause_or_raise(no_connection(), True)
    assert time.pauses == expected
    assert caught.value.tries == 10
    assert time.now - 100.0 <= 30


async def test_pauses_are_spread_over_their_whole_range() -> None:
    assert [pause_after(4, 0.0, random_fraction) for random_fraction in (0.0, 0.5, 1.0)] == [0.0, 0.8, 1.6]
    assert pause_after(10_000, 0.0, 1.0) == MAX_PAUSE_SECONDS


async def test_retry_after_of_the_server_is_the_minimum_pause() -> None:
    time = ManualTime()
    await time.tries(30, random_fraction=0.5).pause_or_raise(problem(429, 3.0), True)
    assert time.pauses == [3.1]
    with pytest.raises(LuciusError):
        await time.tries(30).pause_or_raise(problem(429, 31.0), True)
    assert time.pauses == [3.1], "there is no use in waiting for less than was asked for"


async def test_empty_budget_allows_no_second_try() -> None:
    time = ManualTime()
    with pytest.raises(Unreachable):
        await time.tries(0, random_fraction=0.0).pause_or_raise(no_connection(), True)


async def test_success_resets_the_pauses() -> None:
    time = ManualTime()
    tries = time.tries(1.0)
    for _ in range(9):
        await tries.pause_or_raise(no_connection(), True)
        tries.reset()
    assert time.pauses == [0.2] * 9


async def test_sign_of_life_renews_the_budget_while_pauses_grow() -> None:
    time = ManualTime()
    tries = time.tries(6.0)
    for _ in range(9):
        await tries.pause_or_raise(no_connection(), True)
        tries.restart_period()
    assert time.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


async def test_possible_success_of_an_earlier_try_is_remembered() -> None:
    time = ManualTime()
    tries = time.tries(10)
    await tries.pause_or_raise(lost(), True)
    with pytest.raises(LuciusError) as caught:
        await tries.pause_or_raise(problem(409), True)
    assert (caught.value.maybe_done, caught.value.tries) == (True, 2)


@pytest.mark.parametrize(
    ("error", "always", "if_repeatable"),
    [
        (no_connection(), True, True),
        (lost(), False, True),
        (Unreachable("http://h", "untrusted", "x"), False, False),
        (problem(429), True, True),
        (problem(429, code="LONG_POLL_LIMIT"), False, False),
        (problem(503), True, True),
        (problem(502), False, True),
        (problem(504), False, True),
        (problem(500), False, False),
        (problem(507), False, False),
        (problem(409), False, False),
        (problem(422), False, False),
        (NotLucius("http://h", "x", 429), True, True),
        (NotLucius("http://h", "x", 404), False, False),
        (NotLucius("http://h", "x"), False, False),
        (TimedOut("j", 1.0, None), False, False),
        (Misconfigured("x"), False, False),
    ],
    ids=repr,
)
def test_errors_are_retried_by_kind_and_repeatability(error: LuciusError, always: bool, if_repeatable: bool) -> None:
    assert (is_retryable(error, False), is_retryable(error, True)) == (always, if_repeatable)
