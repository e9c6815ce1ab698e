"""What goes between API, workflow and activities: every input and every reply survives the way."""

import enum
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

from lucius.core.decision import Applied, CallbackReply, Ignored, Refused, Reply
from lucius.core.inputs import Ack, HandedOver, Input, Submit, Succeeded
from lucius.core.model import Disposition
from lucius.engine.temporal.converter import RecordConverter
from lucius.engine.temporal.wire import (
    Happened,
    letter_of,
    pack,
    packed_letter,
    packed_replies,
    unpack,
    unpacked_replies,
)

KINDS: list[Any] = [kind for kind in get_args(Input) if kind is not Submit]
REPLIES: tuple[Reply, ...] = (
    Applied(),
    Ignored("it has ended"),
    Refused("JOB_ENDED", "it has ended"),
    CallbackReply(Disposition.APPLIED, lease_expires_at=17, cancel_requested=True),
)
SIMPLE: dict[Any, Any] = {str: "text", int: 7, float: 0.5, bool: True, Any: {"any": [1]}}
SAID = (HandedOver("ocr", 1, "l-1"), Succeeded(step_id="ocr", attempt_no=1, lease_id="l-1", result={"a": 1}))


def example(wanted: Any) -> Any:
    """One with every field filled in."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if wanted in SIMPLE:
        return SIMPLE[wanted]
    if origin in (Union, types.UnionType):
        return example(next(kind for kind in inner if kind is not type(None)))
    if origin is dict:
        return {example(inner[0]): example(inner[1])}
    if origin in (list, tuple):
        return origin([example(inner[0])])
    if issubclass(wanted, enum.Enum):
        return next(iter(wanted))
    assert issubclass(wanted, Struct), wanted
    return wanted(**{name: example(hint) for name, hint in get_type_hints(wanted).items() if name[0] != "_"})


def through_temporal(happened: Happened) -> Happened:
    words = RecordConverter()
    (found,) = words.from_payloads(words.to_payloads([happened]), [Happened])
    assert isinstance(found, Happened)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_input_can_be_told(kind: Any) -> None:
    happened = example(kind)
    assert unpack(through_temporal(pack(happened, "letter-1"))) == happened


def test_every_kind_of_reply_can_be_told() -> None:
    assert {type(reply) for reply in REPLIES} == set(get_args(Reply))
    assert unpacked_replies(packed_replies(REPLIES)) == REPLIES


def test_the_same_thing_said_twice_is_the_same_letter_and_another_is_another() -> None:
    letter = letter_of("job-1", SAID, at=1)
    assert letter_of("job-1", SAID, at=2).letter_id == letter.letter_id
    assert letter_of("job-2", SAID, at=1).letter_id != letter.letter_id
    assert letter_of("job-1", SAID[:1], at=1).letter_id != letter.letter_id


def test_a_letter_is_told_as_what_was_said_and_says_where_it_lies() -> None:
    letter = letter_of("job-1", SAID, at=1)
    told = packed_letter(letter)
    assert tuple(unpack(happened) for happened in told) == SAID
    assert {happened.letter for happened in told} == {letter.letter_id}


def test_what_a_later_version_adds_does_not_trouble_this_one() -> None:
    ack = Ack(step_id="ocr", attempt_no=1, lease_id="l-1")
    body = b'{"step_id":"ocr","attempt_no":1,"lease_id":"l-1","extra":{},"of_later":true}'
    words = RecordConverter()
    (payload,) = words.to_payloads([pack(ack)])
    payload.data = b'{"kind":"Ack","of_later":1,"body":' + body + b"}"
    (found,) = words.from_payloads([payload], [Happened])
    assert unpack(found) == ack
