"""Server-sent events, however they are split into chunks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.client import sse
from lucius.client.sse import Parser, ServerSentEvent

STREAM = (
    b'id: 1\nevent: A\ndata: {"x": 1}\n\n: still here\n\n'
    b"event: B\r\ndata: one\r\ndata:two\r\n\r\ndata\rdata: \r\revent: end\ndata: {}\n\n"
)
EVENTS = [
    ServerSentEvent("A", b'{"x": 1}'),
    ServerSentEvent("B", b"one\ntwo"),
    ServerSentEvent("", b"\n"),
    ServerSentEvent("end", b"{}"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_chunks_can_end_anywhere(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    parser = Parser()
    found = [event for a, b in pairwise(places) for event in parser.feed(STREAM[a:b])]
    assert found == EVENTS


def test_unfinished_event_is_not_returned() -> None:
    assert Parser().feed(b"event: A\ndata: {}\n") == []


def test_event_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    for chunk in (b"x" * 60, b"data: " + b"x" * 51 + b"\n"):
        parser = Parser()
        parser.feed(chunk)
        with pytest.raises(ValueError, match="more than 100 bytes"):
            parser.feed(chunk)
