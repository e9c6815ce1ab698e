"""What Temporal keeps of us, encrypted: AES-GCM with keys that have names, so that they can be replaced one by one."""

import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

ENCODING = b"binary/encrypted"
NONCE_BYTES = 12


class EncryptionCodec(PayloadCodec):
    """Encrypts with the first key; decrypts with the one that a payload names. What is not encrypted is left as it is:
    it is from before there was a key."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        """Raises ValueError for keys that are not 16, 24 or 32 bytes long."""
        if not keys:
            raise ValueError("there must be a key to encrypt with")
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._current = next(iter(keys))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce, name = os.urandom(NONCE_BYTES), self._current.encode()
        sealed = self._ciphers[self._current].encrypt(nonce, payload.SerializeToString(), name)
        return Payload(metadata={"encoding": ENCODING, "encryption-key-id": name}, data=nonce + sealed)

    def _decrypted(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        name = payload.metadata.get("encryption-key-id", b"")
        cipher = self._ciphers.get(name.decode(errors="replace"))
        if cipher is None:
            known = ", ".join(self._ciphers)
            raise ValueError(f"a payload is encrypted with key {name.decode(errors='replace')!r}; known: {known}")
        nonce, sealed = payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:]
        try:
            return Payload.FromString(cipher.decrypt(nonce, sealed, name))
        except InvalidTag:
            raise ValueError(
                f"a payload does not open with key {name.decode()!r}: it was changed, or the key was"
            ) from None
