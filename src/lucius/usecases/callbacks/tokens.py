"""Callback tokens: a directive carries one, and only its bearer may report on that attempt.

A token proves origin, not currency. It stays valid for a window beyond the lease, so that late callbacks are recorded
and not refused.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from msgspec import Struct

from lucius.core.model.records import Instant
from lucius.usecases.errors import RejectCode, Rejected

MIN_SECRET_BYTES = 16


class Claims(Struct, frozen=True, array_like=True):
    """The attempt that a token was made for, and when the token expires."""

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
        if not secrets or any(len(secret) < MIN_SECRET_BYTES for secret in secrets):
            raise ValueError(f"a token secret needs at least {MIN_SECRET_BYTES} bytes")
        self._secrets = secrets

    def sign(self, claims: Claims) -> str:
        body = _encode(claims)
        return f"{_b64(body)}.{_b64(_mac(self._secrets[0], body))}"

    def verify(self, token: str) -> Claims:
        """Return the claims of a genuine token, expired or not; each token has one valid spelling. Raises Rejected."""
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
    """Decode base64url. Raises ValueError unless `_b64` writes the same: decoders skip foreign characters and bits."""
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _b64(raw) != text:
        raise ValueError("not in canonical base64url")
    return raw
