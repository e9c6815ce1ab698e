"""Callback tokens: a directive carries one, and only its bearer may speak for that attempt.

A token proves origin, not currency. It outlives the lease by a window, so that what comes late is recorded and
not refused.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from msgspec import Struct

from lucius.core.model import Instant
from lucius.service.errors import RejectCode, Rejected

MIN_SECRET = 16


class Claims(Struct, frozen=True, array_like=True):
    tenant_id: str
    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    expires_at: Instant


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Claims).decode


class TokenSigner:
    """Signs with the first secret and accepts any of them, so that secrets can be rotated."""

    def __init__(self, secrets: tuple[bytes, ...]) -> None:
        if not secrets or any(len(secret) < MIN_SECRET for secret in secrets):
            raise ValueError(f"a token secret needs at least {MIN_SECRET} bytes")
        self._secrets = secrets

    def sign(self, claims: Claims) -> str:
        body = _encode(claims)
        return f"{_b64(body)}.{_b64(_mac(self._secrets[0], body))}"

    def verify(self, token: str) -> Claims:
        """The claims of a token that we made, whether or not it has expired."""
        try:
            body_part, mac_part = token.split(".")
            body, mac = _unb64(body_part), _unb64(mac_part)
            genuine = any(hmac.compare_digest(_mac(secret, body), mac) for secret in self._secrets)
            claims = _decode(body) if genuine else None
        except (ValueError, msgspec.MsgspecError):
            claims = None
        if claims is None:
            raise Rejected(RejectCode.INVALID_CALLBACK_TOKEN, "this callback token was not made by this orchestrator")
        return claims


def _mac(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, body, hashlib.sha256)


def _b64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
