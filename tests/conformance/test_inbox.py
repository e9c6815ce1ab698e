"""Guarantees of every inbox (`lucius.ports.inbox`)."""

import asyncio

import pytest

from lucius.ports.inbox import InboxMessage
from lucius.ports.store import Store


def message(name: str, at: int = 1_000, job_id: str = "j1", body: str = '[{"kind":"Ack"}]') -> InboxMessage:
    return InboxMessage(name, job_id, body, at)


async def test_message_is_read_as_it_was_stored(store: Store) -> None:
    put = message("a", body='{"wörd":"\\u0000"}')
    assert await store.inbox.put([put]) == [True]
    assert await store.inbox.list_pending(2_000, 10) == [put]


async def test_message_with_a_known_id_is_not_stored_again(store: Store) -> None:
    assert await store.inbox.put([message("a"), message("b"), message("a", at=3)]) == [True, True, False]
    assert await store.inbox.put([message("b", body="other"), message("c")]) == [False, True]
    assert [(x.message_id, x.at, x.body) for x in await store.inbox.list_pending(2_000, 10)] == [
        (name, 1_000, message("a").body) for name in ("a", "b", "c")
    ]


async def test_concurrent_puts_of_one_message_store_it_once(store: Store) -> None:
    outcomes = await asyncio.gather(*(store.inbox.put([message("a")]) for _ in range(20)))
    assert sorted(outcomes) == [[False]] * 19 + [[True]]


async def test_pending_messages_are_listed_oldest_first_up_to_an_age(store: Store) -> None:
    await store.inbox.put([message("a", at=30), message("b", at=10), message("c", at=20), message("d", at=40)])
    assert [x.message_id for x in await store.inbox.list_pending(40, 10)] == ["b", "c", "a"]
    first = await store.inbox.list_pending(40, 2)
    assert [x.message_id for x in first] == ["b", "c"]
    assert [x.message_id for x in await store.inbox.list_pending(50, 5, first[-1])] == ["a", "d"]


@pytest.mark.parametrize("lazily", [False, True])
async def test_deleted_message_can_be_stored_again(store: Store, lazily: bool) -> None:
    await store.inbox.put([message("a"), message("b")])
    await store.inbox.delete(["a", "never there"], lazily=lazily)
    await store.inbox.delete([])
    assert [x.message_id for x in await store.inbox.list_pending(2_000, 10)] == ["b"]
    assert await store.inbox.put([message("a")]) == [True]
    await store.inbox.delete(["a"], lazily=lazily)
    assert await store.inbox.put([message("a"), message("b")]) == [True, False]
    assert await store.inbox.put([message("a")]) == [False]
    assert [x.message_id for x in await store.inbox.list_pending(2_000, 10)] == ["a", "b"]


async def test_messages_are_read_by_id_in_the_requested_order_and_once_each(store: Store) -> None:
    a, b, c = message("j1/a", at=30), message("j1/b", at=10, body='{"wörd":"\\u0000"}'), message("j2/c", at=20)
    await store.inbox.put([a, b, c])
    assert await store.inbox.get_many(["j2/c", "j1/a", "never there", "j2/c", "j1/b"]) == [c, a, b]
    assert await store.inbox.get_many([]) == []


async def test_deleted_message_is_not_read_by_id(store: Store) -> None:
    again = message("j1/a", at=2_000)
    await store.inbox.put([message("j1/a"), message("j1/b")])
    await store.inbox.delete(["j1/a"])
    assert await store.inbox.get_many(["j1/a", "j1/b"]) == [message("j1/b")]
    await store.inbox.put([again])
    assert await store.inbox.get_many(["j1/a"]) == [again]


async def test_announcement_of_a_missing_message_is_accepted(store: Store) -> None:
    store.inbox.announce(["j1/a", "never there"])
    store.inbox.announce([])
    assert await store.inbox.get_many(["j1/a"]) == []
