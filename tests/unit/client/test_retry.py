"""When a request is sent again, and after which pause."""

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from lucius.client import LuciusError, Misconfigured, NotLucius, Problem, TimedOut, Unreachable
from lucius.client.errors import refused
from lucius.client.retry import LONGEST_PAUSE, Tries, pause_after, retry_after_of, worth_it


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def tries(self, retry_for: float, chance: float = 1.0) -> Tries:
        return Tries(retry_for, now=lambda: self.now, sleep=self.sleep, chance=lambda: chance)


def no_connection() -> Unreachable:
    return Unreachable("http://h", "no_connection", "refused")


def lost() -> Unreachable:
    error = Unreachable("http://h", "lost", "reset")
    error.maybe_done = True
    return error


def problem(status: int, retry_after: float | None = None) -> LuciusError:
    return refused(Problem(type="t", title="T", status=status, code="X"), "POST /x", retry_after)


async def test_pauses_double_up_to_a_limit_and_end_with_the_budget() -> None:
    time = Time()
    tries = time.tries(30)
    expected = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    for _ in expected:
        await tries.again(no_connection(), True)
    with pytest.raises(Unreachable) as caught:
        await tries.again(no_connection(), True)
    assert time.pauses == expected
    assert caught.value.tries == 10
    assert time.now - 100.0 <= 30


async def test_pauses_are_spread_over_all_of_their_range() -> None:
    assert [pause_after(4, 0.0, chance) for chance in (0.0, 0.5, 1.0)] == [0.0, 0.8, 1.6]
    assert pause_after(10_000, 0.0, 1.0) == LONGEST_PAUSE


async def test_what_the_server_asks_for_is_the_least() -> None:
    time = Time()
    await time.tries(30, chance=0.5).again(problem(429, 3.0), True)
    assert time.pauses == [3.1]
    with pytest.raises(LuciusError):
        await time.tries(30).again(problem(429, 31.0), True)
    assert time.pauses == [3.1], "there is no use in waiting for less than was asked for"


async def test_no_budget_is_no_second_try_even_by_chance() -> None:
    time = Time()
    with pytest.raises(Unreachable):
        await time.tries(0, chance=0.0).again(no_connection(), True)


async def test_success_makes_failures_forgotten() -> None:
    time = Time()
    tries = time.tries(1.0)
    for _ in range(9):
        await tries.again(no_connection(), True)
        tries.went_well()
    assert time.pauses == [0.2] * 9


async def test_a_sign_of_life_makes_patience_new_while_pauses_go_on_growing() -> None:
    time = Time()
    tries = time.tries(6.0)
    for _ in range(9):
        await tries.again(no_connection(), True)
        tries.alive()
    assert time.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


async def test_a_try_that_may_have_worked_is_remembered_to_the_end() -> None:
    time = Time()
    tries = time.tries(10)
    await tries.again(lost(), True)
    with pytest.raises(LuciusError) as caught:
        await tries.again(problem(409), True)
    assert (caught.value.maybe_done, caught.value.tries) == (True, 2)


@pytest.mark.parametrize(
    ("error", "always", "if_repeatable"),
    [
        (no_connection(), True, True),
        (lost(), False, True),
        (Unreachable("http://h", "untrusted", "x"), False, False),
        (problem(429), True, True),
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
def test_what_is_worth_another_try(error: LuciusError, always: bool, if_repeatable: bool) -> None:
    assert (worth_it(error, False), worth_it(error, True)) == (always, if_repeatable)


def test_retry_after_is_seconds_or_a_date() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    soon = format_datetime(now.replace(second=15), usegmt=True)
    assert retry_after_of("7") == 7
    assert retry_after_of(soon, now.timestamp) == 10
    assert retry_after_of(format_datetime(now.replace(second=1), usegmt=True), now.timestamp) == 0
    assert [retry_after_of(text) for text in (None, "", "soon", "-1", "1e9")] == [None] * 5
