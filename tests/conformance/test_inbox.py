"""What every inbox promises (`lucius.ports.inbox`)."""

import asyncio

import pytest

from lucius.ports.inbox import Letter
from tests.conformance.conftest import FullLedger


def letter(name: str, at: int = 1_000, job_id: str = "j1", body: str = '[{"kind":"Ack"}]') -> Letter:
    return Letter(name, job_id, body, at)


async def test_a_letter_is_read_as_it_was_put(ledger: FullLedger) -> None:
    put = letter("a", body='{"wörd":"\\u0000"}')
    assert await ledger.put([put]) == [True]
    assert await ledger.unread(2_000, 10) == [put]


async def test_the_same_letter_is_put_once(ledger: FullLedger) -> None:
    assert await ledger.put([letter("a"), letter("b"), letter("a", at=3)]) == [True, True, False]
    assert await ledger.put([letter("b", body="other"), letter("c")]) == [False, True]
    assert [(x.letter_id, x.at, x.body) for x in await ledger.unread(2_000, 10)] == [
        (name, 1_000, letter("a").body) for name in ("a", "b", "c")
    ]


async def test_of_many_who_put_the_same_one_is_the_first(ledger: FullLedger) -> None:
    told = await asyncio.gather(*(ledger.put([letter("a")]) for _ in range(20)))
    assert sorted(told) == [[False]] * 19 + [[True]]


async def test_the_oldest_come_first_and_those_that_are_too_young_not_at_all(ledger: FullLedger) -> None:
    await ledger.put([letter("a", at=30), letter("b", at=10), letter("c", at=20), letter("d", at=40)])
    assert [x.letter_id for x in await ledger.unread(40, 10)] == ["b", "c", "a"]
    first = await ledger.unread(40, 2)
    assert [x.letter_id for x in first] == ["b", "c"]
    assert [x.letter_id for x in await ledger.unread(50, 5, first[-1])] == ["a", "d"]


@pytest.mark.parametrize("lazily", [False, True])
async def test_what_was_thrown_away_is_gone_and_may_come_again(ledger: FullLedger, lazily: bool) -> None:
    await ledger.put([letter("a"), letter("b")])
    await ledger.throw_away(["a", "never there"], lazily=lazily)
    await ledger.throw_away([])
    assert [x.letter_id for x in await ledger.unread(2_000, 10)] == ["b"]
    assert await ledger.put([letter("a")]) == [True]
    await ledger.throw_away(["a"], lazily=lazily)
    assert await ledger.put([letter("a"), letter("b")]) == [True, False]
    assert await ledger.put([letter("a")]) == [False]
    assert [x.letter_id for x in await ledger.unread(2_000, 10)] == ["a", "b"]


async def test_letters_are_read_by_name_in_the_order_asked_and_each_once(ledger: FullLedger) -> None:
    a, b, c = letter("j1/a", at=30), letter("j1/b", at=10, body='{"wörd":"\\u0000"}'), letter("j2/c", at=20)
    await ledger.put([a, b, c])
    assert await ledger.letters(["j2/c", "j1/a", "never there", "j2/c", "j1/b"]) == [c, a, b]
    assert await ledger.letters([]) == []


async def test_a_letter_that_was_thrown_away_is_not_read_by_name(ledger: FullLedger) -> None:
    again = letter("j1/a", at=2_000)
    await ledger.put([letter("j1/a"), letter("j1/b")])
    await ledger.throw_away(["j1/a"])
    assert await ledger.letters(["j1/a", "j1/b"]) == [letter("j1/b")]
    await ledger.put([again])
    assert await ledger.letters(["j1/a"]) == [again]


async def test_a_letter_may_be_announced_whoever_is_there_to_hear_it(ledger: FullLedger) -> None:
    ledger.announce(["j1/a", "never there"])
    ledger.announce([])
    assert await ledger.letters(["j1/a"]) == []
