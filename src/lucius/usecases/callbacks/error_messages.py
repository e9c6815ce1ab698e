"""Redaction of services' error messages, which are stored and shown: cut short, with likely secrets masked."""

import re
from base64 import urlsafe_b64decode
from collections.abc import Callable

MAX_MESSAGE_CHARS = 1_000
_MAX_SCANNED_CHARS = 4_000
MASK = "[…]"

_SECRET = r"passwords?|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key"
_WORD = rf"(?:{_SECRET}|token|key|sig|signature|credentials?)"
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|[^\s,;&"'<>(){}\[\]]+)"""

_USER = re.compile(r"(://)(?:[^/?#]*|[^/:]*:.*)@")


def _mask_url(found: re.Match[str]) -> str:
    """Mask user and query of a URL, also of a URL inside its path."""
    user_end = found[0].rfind("@") + 1
    url = _USER.sub(rf"\1{MASK}@", found[0][:user_end]) + found[0][user_end:]
    place, _, query = url.partition("?")
    return f"{place}?{MASK}" if query else url


# No pattern may visit a character more than a few times: services, and documents that they quote, choose the text.
_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", MASK),
    (r"\beyJ[\w-]{8,}+(?:\.[\w-]*){1,4}", MASK),  # a JSON web token
    (r"""(authorization["']?\s{0,4}[:=]\s{0,4}["']?)[^\r\n"']+""", rf"\1{MASK}"),
    (r"\b(bearer|basic)(\s{1,4})(?!tokens?\b|auth)[\w.~+/=-]+", rf"\1\2{MASK}"),
    (r"""://[^\s"'<>]*+""", _mask_url),
    (rf"({_WORD}=){_VALUE}", rf"\1{MASK}"),
    (rf"""(["'][\w.-]{{0,64}}?{_WORD}["']\s{{0,4}}[:=]\s{{0,4}}){_VALUE}""", rf"\1{MASK}"),
    (rf"((?:{_SECRET})\s{{0,4}}[:=]\s{{0,4}}){_VALUE}", rf"\1{MASK}"),
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-](?:[\r\n]{0,2}[A-Za-z0-9+/_-]){15,}={0,2}")  # may be wrapped
_PLAIN = str.maketrans("+/", "-_", "\r\n=")
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in _RULES)


def _masked(text: str) -> str:
    for pattern, instead in _COMPILED:
        text = pattern.sub(instead, text)
    return text


def _mask_encoded(found: re.Match[str]) -> str:
    """Mask base64, padded or not, wrapped or not, of either alphabet, if its decoded text would be masked.

    A word on the line before may match as its beginning, so decoding is tried from each of the first four characters.
    """
    encoded = found[0].translate(_PLAIN)
    for start in range(4 if len(encoded) < len(found[0].rstrip("=")) else 1):
        part = encoded[start:]
        text = urlsafe_b64decode(part[: len(part) // 4 * 4] + _end(part)).decode(errors="replace")
        if _masked(text) != text:
            return MASK
    return found[0]


def _end(encoded: str) -> str:
    """Return the last, shorter group with its padding; empty if it is a single character, which encodes no byte."""
    rest = len(encoded) % 4
    return encoded[-rest:] + "=" * (4 - rest) if rest > 1 else ""


def redacted(message: str) -> str:
    """Return a message of at most 1,000 characters with likely secrets masked, in base64 too.

    Masked are bearer tokens, values with names of secrets, and users and queries of URLs. Other secrets can't be
    recognised: services should not send any.
    """
    text = _masked(_BASE64.sub(_mask_encoded, message[:_MAX_SCANNED_CHARS]))
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"
