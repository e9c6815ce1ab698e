"""What every inbox promises (`lucius.ports.inbox`)."""

import asyncio

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


async def test_what_was_thrown_away_is_gone_and_may_come_again(ledger: FullLedger) -> None:
    await ledger.put([letter("a"), letter("b")])
    await ledger.throw_away(["a", "never there"])
    await ledger.throw_away([])
    assert [x.letter_id for x in await ledger.unread(2_000, 10)] == ["b"]
    assert await ledger.put([letter("a")]) == [True]
