"""Webhook signatures by the Standard Webhooks convention."""

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode

from lucius.core.model.records import Instant

PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64  # as the convention has it

Keys = tuple[bytes, ...]


def parse_keys(secret: str) -> Keys:
    """Parse the keys in a secret: `whsec_` and base64, several separated by spaces while they are rotated.

    Raises ValueError.
    """
    keys = tuple(_key(part) for part in secret.split())
    if not keys:
        raise ValueError("it is empty")
    return keys


def _key(part: str) -> bytes:
    if not part.startswith(PREFIX):
        raise ValueError(f"each part must be {PREFIX} followed by base64")
    encoded = part.removeprefix(PREFIX)
    try:
        key = b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"what follows {PREFIX} is not base64") from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, and one has {len(key)}")
    return key


def signed_headers(message_id: str, now: Instant, body: bytes, keys: Keys) -> dict[str, str]:
    """Return the webhook headers, with a signature for each key: receivers may have the old or the new one."""
    seconds = now // 1000
    content = f"{message_id}.{seconds}.".encode() + body
    signatures = (b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
