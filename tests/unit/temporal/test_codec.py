"""Payloads as Temporal sees them: nothing to read without the key, and nothing accepted that we did not write."""

import base64

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.codec import KEY_ID, NONCE_BYTES, CodecError, EncryptionCodec
from lucius.engine.temporal.wire import HandOver
from lucius.settings import SettingsError, load_settings

OLD, NEW = b"o" * 32, b"n" * 32
WHAT = HandOver("job-1", "ocr", 1, "lease-1", "ocr", "topic")
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'{"amount":17}')


async def sealed(codec: EncryptionCodec, payload: Payload = PLAIN) -> Payload:
    (found,) = await codec.encode([payload])
    return found


async def opened(codec: EncryptionCodec, payload: Payload) -> Payload:
    (found,) = await codec.decode([payload])
    return found


async def test_a_payload_comes_back_as_it_was_and_shows_neither_content_nor_encoding() -> None:
    codec = EncryptionCodec({"2026": NEW})
    kept = await sealed(codec)
    assert b"amount" not in kept.SerializeToString()
    assert b"json" not in kept.SerializeToString()
    assert await opened(codec, kept) == PLAIN


async def test_the_same_payload_never_looks_the_same_twice() -> None:
    codec = EncryptionCodec({"2026": NEW})
    kept = [await sealed(codec) for _ in range(100)]
    assert len({payload.data for payload in kept}) == 100
    assert len({payload.data[:NONCE_BYTES] for payload in kept}) == 100


async def test_after_a_change_of_keys_the_new_one_writes_and_the_old_one_still_reads() -> None:
    before, after = EncryptionCodec({"2025": OLD}), EncryptionCodec({"2026": NEW, "2025": OLD})
    assert await opened(after, await sealed(before)) == PLAIN
    assert (await sealed(after)).metadata[KEY_ID] == b"2026"


async def test_a_key_that_is_not_there_is_named() -> None:
    kept = await sealed(EncryptionCodec({"2025": OLD}))
    with pytest.raises(CodecError, match=r"key '2025'; LUCIUS_TEMPORAL_KEYS has 2026"):
        await opened(EncryptionCodec({"2026": NEW}), kept)


async def test_another_key_of_that_name_is_told_from_the_right_one() -> None:
    kept = await sealed(EncryptionCodec({"2026": OLD}))
    with pytest.raises(CodecError, match="does not open with key '2026'"):
        await opened(EncryptionCodec({"2026": NEW}), kept)


@pytest.mark.parametrize("cut", [0, 5, NONCE_BYTES, NONCE_BYTES + 3])
async def test_what_is_cut_off_is_refused(cut: int) -> None:
    codec = EncryptionCodec({"2026": NEW})
    kept = await sealed(codec)
    with pytest.raises(CodecError, match="does not open"):
        await opened(codec, Payload(metadata=kept.metadata, data=kept.data[:cut]))


async def test_no_bit_can_be_changed_and_no_key_be_named_instead() -> None:
    codec = EncryptionCodec({"2026": NEW, "same": NEW})
    kept = await sealed(codec)
    for at in (0, NONCE_BYTES, len(kept.data) - 1):
        data = bytearray(kept.data)
        data[at] ^= 1
        with pytest.raises(CodecError, match="does not open"):
            await opened(codec, Payload(metadata=kept.metadata, data=bytes(data)))
    with pytest.raises(CodecError, match="does not open"):
        await opened(codec, Payload(metadata={**kept.metadata, KEY_ID: b"same"}, data=kept.data))


async def test_what_is_not_encrypted_is_refused_where_there_is_a_key() -> None:
    with pytest.raises(CodecError, match=r"not encrypted.*`plain`"):
        await opened(EncryptionCodec({"2026": NEW}), PLAIN)


async def test_plain_among_the_keys_reads_what_is_from_before_and_named_first_also_writes_it() -> None:
    to, back = EncryptionCodec({"2026": NEW, "plain": b""}), EncryptionCodec({"plain": b"", "2026": NEW})
    assert await opened(to, PLAIN) == PLAIN
    assert (await sealed(to)).metadata[KEY_ID] == b"2026"
    assert await sealed(back) == PLAIN
    assert await opened(back, await sealed(to)) == PLAIN


def test_a_key_of_the_wrong_length_and_no_key_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="128, 192, or 256 bits"):
        EncryptionCodec({"2026": b"short"})
    with pytest.raises(ValueError, match="must be a key"):
        EncryptionCodec({})


async def test_what_an_error_says_is_encrypted_too() -> None:
    words, failure = data_converter({"2026": NEW}), Failure()
    try:
        raise ApplicationError("invoice 17 of acme", {"amount": 17}, type="FAILED_FINAL")
    except ApplicationError as error:
        await words.encode_failure(error, failure)
    said = failure.SerializeToString()
    assert b"acme" not in said
    assert b"amount" not in said
    assert __file__.encode() not in said
    found = await words.decode_failure(failure)
    assert str(found) == "FAILED_FINAL: invoice 17 of acme"


async def test_records_go_through_all_of_it_and_plain_alone_encrypts_nothing() -> None:
    words = data_converter({"2026": NEW})
    kept = await words.encode([WHAT])
    assert b"lease-1" not in kept[0].SerializeToString()
    assert await words.decode(kept, [HandOver]) == [WHAT]
    assert data_converter({}).payload_codec is None
    assert data_converter({"plain": b""}).payload_codec is None


def test_a_key_that_is_called_plain_does_not_turn_encryption_off_unnoticed() -> None:
    with pytest.raises(SettingsError, match="no name for a key"):
        data_converter({"plain": NEW})
    with pytest.raises(SettingsError, match="'plain'"):
        load_settings({"LUCIUS_TEMPORAL_KEYS": f"plain:{base64.b64encode(NEW).decode()}"})
    keys = load_settings({"LUCIUS_TEMPORAL_KEYS": f"2026:{base64.b64encode(NEW).decode()}, plain"}).temporal_keys
    assert keys == {"2026": NEW, "plain": b""}
