"""Checks a webhook's signature by the Standard Webhooks convention."""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300


def find_fault(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float | None = None) -> str | None:
    """Return what is wrong with the signature, or None. `headers` are looked up by lower-case names."""
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    if missing := [name for name in names if not headers.get(name)]:
        return f"there is no header {missing[0]}"
    stamp = headers["webhook-timestamp"]
    if not (stamp.isascii() and stamp.isdigit()) or abs((now or time.time()) - int(stamp)) > TOLERANCE_SECONDS:
        return f"webhook-timestamp {stamp} is not within {TOLERANCE_SECONDS} s of now"
    given = headers["webhook-signature"].split()
    signed = f"{headers['webhook-id']}.{stamp}.".encode() + body
    for secret in secrets:
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            continue
        expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        if any(hmac.compare_digest(expected.encode(), one.encode()) for one in given):
            return None
    return "no signature fits the tenant's secrets"
