"""Fills placeholders for secrets at the last moment and blanks the secrets out of everything that comes back."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from lucius.ports.errors import CallRefused

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{\s*secrets\.([A-Za-z0-9_.-]+)\s*\}")
_BLANK = "[secret]"
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+(?:[\r\n]{1,2}[A-Za-z0-9+/_-]+)*={0,2}")  # wrapped, too
_SPACES = r"[\r\n\t ]{0,2}"
_NO_SPACES = str.maketrans("", "", "\r\n\t ")
_HEX_DIGITS = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}")
_MIN_ENCODED_CHARS = 8  # shorter base64 or hexadecimal may be part of something else
_MIN_PARTIAL_CHARS = 6  # shorter ones are blanked only as whole words, or other words would be torn


def normal(name: str) -> str:
    """Return a name as in the environment: `stripe-key` is STRIPE_KEY."""
    return name.upper().replace("-", "_").replace(".", "_")


class Filling:
    """Fills placeholders of one call and remembers which secrets it used. Without secrets, changes nothing."""

    def __init__(self, secrets: Mapping[str, str] | None) -> None:
        self._secrets = secrets
        self._used: set[str] = set()
        self._written: list[str] = []
        self._encoded: set[str] = set()

    def fill(self, value: Any) -> Any:
        """Return the value with its placeholders filled. Raises CallRefused for an unknown secret."""
        if self._secrets is None:
            return value
        match value:
            case str():
                return _PLACEHOLDER.sub(self._replace, value) if "${" in value else value
            case dict():
                return {self.fill(key): self.fill(item) for key, item in value.items()}
            case list():
                return [self.fill(item) for item in value]
            case _:
                return value

    def _replace(self, found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "${"
        secret = (self._secrets or {}).get(normal(name))
        if secret is None:
            raise CallRefused("UNKNOWN_SECRET", f"there is no secret {name}; set LUCIUS_SECRET_{normal(name)}")
        if secret not in self._used:
            self._used.add(secret)
            self._written = sorted({*self._written, *_spellings(secret)}, key=len, reverse=True)
            self._encoded |= _in_base64(secret)
        return secret

    def blank(self, value: Any) -> Any:
        """Return the value without the secrets, in case a peer echoes them."""
        if not self._used:
            return value
        match value:
            case str():
                return self._blanked(value)
            case dict():
                return {self._blanked(key): self.blank(item) for key, item in value.items()}
            case list():
                return [self.blank(item) for item in value]
            case int() | float() if not isinstance(value, bool):
                return _BLANK if any(_is_number(secret, value) for secret in self._used) else value
            case _:
                return value

    def _blanked(self, text: str) -> str:
        joined = text.translate(_NO_SPACES)
        encoded = [inner for inner in self._encoded if inner in joined]
        if encoded:
            text = _BASE64.sub(lambda run: _BLANK if _holds(run[0], encoded) else run[0], text)
            text = _blank_spaced(text, encoded)
        folded = text.lower()
        for spelling in self._written:
            if spelling in text or (spelling.isascii() and spelling.lower() in folded):
                text = _pattern(spelling).sub(_BLANK, text)
        return text


def _holds(run: str, encoded: list[str]) -> bool:
    joined = run.translate(_NO_SPACES)
    return any(inner in joined for inner in encoded)


def _blank_spaced(text: str, encoded: list[str]) -> str:
    """Blank base64 that is broken by spaces, but only the secret itself: what follows may be words."""
    for inner in encoded:
        spaced = _SPACES.join(map(re.escape, inner))
        text = re.sub(rf"(?:[A-Za-z0-9+/_-]{_SPACES})?{spaced}(?:{_SPACES}[A-Za-z0-9+/_-])?=*", _BLANK, text)
    return text


def _spellings(secret: str) -> set[str]:
    """Return the secret as it is, and as peers write it in JSON, URLs, HTML and hexadecimal."""
    in_json = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    in_html = {html.escape(secret), html.escape(secret, quote=False), html.escape(secret).replace("&#x27;", "&#39;")}
    in_urls = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    found = {secret, *in_json, *(text.replace("/", r"\/") for text in in_json), *in_html, *in_urls}
    in_hex = secret.encode().hex()
    return found | {in_hex, in_hex.upper()} if len(in_hex) >= _MIN_ENCODED_CHARS else found


def _pattern(spelling: str) -> re.Pattern[str]:
    """Match a spelling, with hexadecimal digits of its escapes in either case."""
    pieces = zip(_HEX_DIGITS.split(spelling), [*_HEX_DIGITS.findall(spelling), ""], strict=True)
    written = "".join(re.escape(plain) + (f"(?i:{re.escape(escape)})" if escape else "") for plain, escape in pieces)
    return re.compile(written if len(spelling) >= _MIN_PARTIAL_CHARS else rf"(?<!\w){written}(?!\w)")


def _in_base64(secret: str) -> set[str]:
    """Return the characters that the secret makes in the base64 of any text around it, such as `user:secret`.

    A byte shares characters with its neighbours, so there are three ways to write it, in two alphabets. Characters that
    depend on what stands before or behind the secret are left out.
    """
    found: set[str] = set()
    raw = secret.encode()
    for before in range(3):
        encoded = b64encode(b"\0" * before + raw).decode()
        first = -(-before * 8 // 6)
        last = (before + len(raw)) * 8 // 6
        inner = encoded[first:last]
        if len(inner) >= _MIN_ENCODED_CHARS:
            found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return found


def _is_number(secret: str, value: float) -> bool:
    """Return whether a peer that reads texts as numbers would have made this number of the secret."""
    try:
        return int(secret) == value if secret.isdecimal() else float(secret) == value
    except ValueError:
        return False
