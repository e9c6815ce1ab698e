"""Messages between API, workflow and activities: every input and every reply survives serialization."""

import enum
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import replace

from lucius.core.model.decision import Applied, CallbackReply, Ignored, Refused, Reply
from lucius.core.model.inputs import Ack, HandedOver, Input, Submit, Succeeded
from lucius.core.model.statuses import Disposition
from lucius.engine.temporal.converter import RecordConverter
from lucius.engine.temporal.messages import (
    JobMessage,
    decode_inbox_message,
    decode_input,
    decode_replies,
    encode_input,
    encode_replies,
    make_inbox_message,
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
    """Return a value of the type with every field set."""
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


def through_temporal(happened: JobMessage) -> JobMessage:
    words = RecordConverter()
    (found,) = words.from_payloads(words.to_payloads([happened]), [JobMessage])
    assert isinstance(found, JobMessage)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_input_can_be_encoded(kind: Any) -> None:
    happened = example(kind)
    assert decode_input(through_temporal(encode_input(happened, "letter-1"))) == happened


def test_every_kind_of_reply_can_be_encoded() -> None:
    assert {type(reply) for reply in REPLIES} == set(get_args(Reply))
    assert decode_replies(encode_replies(REPLIES)) == REPLIES


def test_message_id_is_derived_from_the_content() -> None:
    message = make_inbox_message("job-1", SAID, at=1)
    assert make_inbox_message("job-1", SAID, at=2).message_id == message.message_id
    assert make_inbox_message("job-2", SAID, at=1).message_id != message.message_id
    assert make_inbox_message("job-1", SAID[:1], at=1).message_id != message.message_id


def test_handovers_of_one_attempt_to_different_pulls_have_one_message_id() -> None:
    plain = HandedOver("ocr", 1, "l-1")
    shared, own = (make_inbox_message("job-1", [one], at=1) for one in (plain, replace(plain, tenant_bound=True)))
    assert shared.message_id == own.message_id
    assert [decode_input(one) for one in decode_inbox_message(own)] == [replace(plain, tenant_bound=True)]
    assert shared.body == (
        '[{"kind":"HandedOver","body":{"step_id":"ocr","attempt_no":1,"lease_id":"l-1","caps":[],"picked_up":false}}]'
    ), "as versions without windows of tenants encode it: their messages must have the same ids"


def test_decoded_inbox_message_has_its_inputs_and_id() -> None:
    message = make_inbox_message("job-1", SAID, at=1)
    told = decode_inbox_message(message)
    assert tuple(decode_input(happened) for happened in told) == SAID
    assert {happened.message_id for happened in told} == {message.message_id}


def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    ack = Ack(step_id="ocr", attempt_no=1, lease_id="l-1")
    body = b'{"step_id":"ocr","attempt_no":1,"lease_id":"l-1","extra":{},"of_later":true}'
    words = RecordConverter()
    (payload,) = words.to_payloads([encode_input(ack)])
    payload.data = b'{"kind":"Ack","of_later":1,"body":' + body + b"}"
    (found,) = words.from_payloads([payload], [JobMessage])
    assert decode_input(found) == ack
