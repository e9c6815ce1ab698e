"""Encrypts the payloads that Temporal stores: AES-GCM with named keys, so that they can be replaced one by one.

Encoding and metadata are those of Temporal's own examples, which other tools understand. Nonces are random, so a key is
good for some 2^32 payloads: replace it before it has been used for a hundred million jobs.
"""

import os
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

ENCODING = b"binary/encrypted"
KEY_ID = "encryption-key-id"
NONCE_BYTES = 12
PLAIN = "plain"
"""Name that stands for no encryption, used while changing to encryption or back."""


class CodecError(ValueError):
    """Raised for a payload that can't be decrypted, or must not be accepted."""


class EncryptionCodec(PayloadCodec):
    """Encrypts with the first key and decrypts with the key that a payload names.

    Refuses payloads that are not encrypted, as anyone with access to Temporal could forge them. With `plain` among the
    keys they are accepted: needed while jobs live that began without encryption.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Set up the keys. Raises ValueError if there are none, or for one that is not 16, 24 or 32 bytes long."""
        if not keys:
            raise ValueError("there must be a key to encrypt with")
        self._ciphers = {name: AESGCM(key) for name, key in keys.items() if name != PLAIN}
        self._current = next(iter(keys))
        self._reads_plain = PLAIN in keys

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        if self._current == PLAIN:
            return payload
        nonce, name = os.urandom(NONCE_BYTES), self._current.encode()
        sealed = self._ciphers[self._current].encrypt(nonce, payload.SerializeToString(), name)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: name}, data=nonce + sealed)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            if self._reads_plain:
                return payload
            raise CodecError(
                "a payload is not encrypted: it is not from us, or from before there was a key; to read those, "
                f"add `{PLAIN}` to LUCIUS_TEMPORAL_KEYS"
            )
        name = payload.metadata.get(KEY_ID, b"")
        shown = name.decode(errors="replace")
        cipher = self._ciphers.get(shown)
        if cipher is None:
            known = ", ".join(self._ciphers) or "none"
            raise CodecError(f"a payload is encrypted with key {shown!r}; LUCIUS_TEMPORAL_KEYS has {known}")
        nonce, sealed = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, name))
        except (InvalidTag, ValueError, DecodeError):
            raise CodecError(
                f"a payload does not open with key {shown!r} of LUCIUS_TEMPORAL_KEYS: one of them was changed"
            ) from None
