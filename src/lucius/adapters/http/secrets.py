"""Names that stand for secrets, replaced at the last moment and blanked out of everything that comes back."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lucius.ports.errors import CallRefused

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{\s*secrets\.([A-Za-z0-9_.-]+)\s*\}")
_BLANK = "[secret]"
_SHORTEST = 6  # anything shorter is blanked out as a word of its own only, or it would tear others apart


def normal(name: str) -> str:
    """As in the environment: `stripe-key` is STRIPE_KEY."""
    return name.upper().replace("-", "_").replace(".", "_")


class Filling:
    """Replaces placeholders of one call and remembers which secrets it used. Without any, leaves all as it is."""

    def __init__(self, secrets: Mapping[str, str] | None) -> None:
        self._secrets = secrets
        self._used: set[str] = set()

    def fill(self, value: Any) -> Any:
        """Raises CallRefused for a secret that is not there."""
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
        self._used.add(secret)
        return secret

    def blank(self, value: Any) -> Any:
        """The value without the secrets, should a peer echo them."""
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
        written = self._used | {quote(secret, safe="") for secret in self._used}
        for secret in sorted(written, key=len, reverse=True):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, _BLANK)
            elif secret in text:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _BLANK, text)
        return text


def _is_number(secret: str, value: float) -> bool:
    """Whether a peer that takes everything for a number if it can would have made this one of it."""
    try:
        return int(secret) == value if secret.isdecimal() else float(secret) == value
    except ValueError:
        return False
