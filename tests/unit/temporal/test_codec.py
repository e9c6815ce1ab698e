"""Payloads as Temporal sees them: unreadable without the key; only payloads that Lucius wrote are accepted."""

import base64

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from lucius.bootstrap.settings import load_settings
from lucius.engine.temporal.client import data_converter
from lucius.engine.temporal.codec import KEY_ID, NONCE_BYTES, CodecError, EncryptionCodec
from lucius.engine.temporal.messages import HandoverRequest
from lucius.ports.errors import SettingsError

OLD, NEW = b"o" * 32, b"n" * 32
WHAT = HandoverRequest("job-1", "ocr", 1, "lease-1", "ocr", "topic")
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'{"amount":17}')


async def sealed(codec: EncryptionCodec, payload: Payload = PLAIN) -> Payload:
    (found,) = await codec.encode([payload])
    return found


async def opened(codec: EncryptionCodec, payload: Payload) -> Payload:
    (found,) = await codec.decode([payload])
    return found


async def test_encrypted_payload_hides_content_and_encoding_and_decodes_to_the_original() -> None:
    codec = EncryptionCodec({"2026": NEW})
    kept = await sealed(codec)
    assert b"amount" not in kept.SerializeToString()
    assert b"json" not in kept.SerializeToString()
    assert await opened(codec, kept) == PLAIN


async def test_equal_payloads_encrypt_differently() -> None:
    codec = EncryptionCodec({"2026": NEW})
    kept = [await sealed(codec) for _ in range(100)]
    assert len({payload.data for payload in kept}) == 100
    assert len({payload.data[:NONCE_BYTES] for payload in kept}) == 100


async def test_rotated_key_encrypts_and_the_old_key_still_decrypts() -> None:
    before, after = EncryptionCodec({"2025": OLD}), EncryptionCodec({"2026": NEW, "2025": OLD})
    assert await opened(after, await sealed(before)) == PLAIN
    assert (await sealed(after)).metadata[KEY_ID] == b"2026"


async def test_missing_key_is_named_in_the_error() -> None:
    kept = await sealed(EncryptionCodec({"2025": OLD}))
    with pytest.raises(CodecError, match=r"key '2025'; LUCIUS_TEMPORAL_KEYS has 2026"):
        await opened(EncryptionCodec({"2026": NEW}), kept)


async def test_different_key_of_the_same_name_is_detected() -> None:
    kept = await sealed(EncryptionCodec({"2026": OLD}))
    with pytest.raises(CodecError, match="does not open with key '2026'"):
        await opened(EncryptionCodec({"2026": NEW}), kept)


@pytest.mark.parametrize("cut", [0, 5, NONCE_BYTES, NONCE_BYTES + 3])
async def test_truncated_payload_is_refused(cut: int) -> None:
    codec = EncryptionCodec({"2026": NEW})
    kept = await sealed(codec)
    with pytest.raises(CodecError, match="does not open"):
        await opened(codec, Payload(metadata=kept.metadata, data=kept.data[:cut]))


async def test_payload_with_a_changed_bit_or_key_name_is_refused() -> None:
    codec = EncryptionCodec({"2026": NEW, "same": NEW})
    kept = await sealed(codec)
    for at in (0, NONCE_BYTES, len(kept.data) - 1):
        data = bytearray(kept.data)
        data[at] ^= 1
        with pytest.raises(CodecError, match="does not open"):
            await opened(codec, Payload(metadata=kept.metadata, data=bytes(data)))
    with pytest.raises(CodecError, match="does not open"):
        await opened(codec, Payload(metadata={**kept.metadata, KEY_ID: b"same"}, data=kept.data))


async def test_unencrypted_payload_is_refused_if_keys_are_configured() -> None:
    with pytest.raises(CodecError, match=r"not encrypted.*`plain`"):
        await opened(EncryptionCodec({"2026": NEW}), PLAIN)


async def test_plain_among_the_keys_reads_unencrypted_payloads_and_writes_them_if_first() -> None:
    to, back = EncryptionCodec({"2026": NEW, "plain": b""}), EncryptionCodec({"plain": b"", "2026": NEW})
    assert await opened(to, PLAIN) == PLAIN
    assert (await sealed(to)).metadata[KEY_ID] == b"2026"
    assert await sealed(back) == PLAIN
    assert await opened(back, await sealed(to)) == PLAIN


def test_key_of_the_wrong_length_and_an_empty_list_of_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="128, 192, or 256 bits"):
        EncryptionCodec({"2026": b"short"})
    with pytest.raises(ValueError, match="must be a key"):
        EncryptionCodec({})


async def test_message_and_details_of_an_error_are_encrypted() -> None:
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


async def test_records_are_encrypted_unless_the_only_key_is_plain() -> None:
    words = data_converter({"2026": NEW})
    kept = await words.encode([WHAT])
    assert b"lease-1" not in kept[0].SerializeToString()
    assert await words.decode(kept, [HandoverRequest]) == [WHAT]
    assert data_converter({}).payload_codec is None
    assert data_converter({"plain": b""}).payload_codec is None


def test_key_named_plain_is_refused() -> None:
    with pytest.raises(SettingsError, match="no name for a key"):
        data_converter({"plain": NEW})
    with pytest.raises(SettingsError, match="'plain'"):
        load_settings({"LUCIUS_TEMPORAL_KEYS": f"plain:{base64.b64encode(NEW).decode()}"})
    keys = load_settings({"LUCIUS_TEMPORAL_KEYS": f"2026:{base64.b64encode(NEW).decode()}, plain"}).temporal_keys
    assert keys == {"2026": NEW, "plain": b""}
