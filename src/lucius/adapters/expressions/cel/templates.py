"""Templates: text with expressions in `${…}`. `${secrets.NAME}` is left as it is; `$${` stands for a plain `${`."""

import re
from functools import lru_cache
from typing import Any

from msgspec import Struct

from lucius.core.model.tools import ToolError

_SECRET = re.compile(r"\s*secrets\.([A-Za-z0-9_.-]+)\s*")
_QUOTES = ("'''", '"""', "'", '"')


class Text(Struct, frozen=True):
    text: str


class Secret(Struct, frozen=True):
    name: str


class Expression(Struct, frozen=True):
    source: str


Part = Text | Secret | Expression


@lru_cache(4096)
def parse(template: str) -> tuple[Part, ...]:
    """Split a template into its parts. Raises ToolError."""
    parts: list[Part] = []
    at = 0
    while (found := template.find("${", at)) >= 0:
        if template[found - 1 : found] == "$" and found > at:  # `$${` is an escape
            _add_text(parts, template[at : found - 1] + "${")
            at = found + 2
            continue
        _add_text(parts, template[at:found])
        end = _end(template, found + 2)
        parts.append(_expression(template[found + 2 : end]))
        at = end + 1
    _add_text(parts, template[at:])
    return tuple(parts)


def _add_text(parts: list[Part], text: str) -> None:
    if parts and isinstance(parts[-1], Text):
        parts[-1] = Text(parts[-1].text + text)
    elif text:
        parts.append(Text(text))


def _expression(source: str) -> Part:
    if secret := _SECRET.fullmatch(source):
        return Secret(secret[1])
    if not source.strip():
        raise ToolError("${} has no expression in it")
    return Expression(source.strip())


def _end(template: str, at: int) -> int:
    """Return the index of the brace that ends an expression; skips braces inside it and inside its strings.

    Raises ToolError if there is none.
    """
    depth = 0
    while at < len(template):
        quote = next((quote for quote in _QUOTES if template.startswith(quote, at)), None)
        if quote is not None:
            at = _after_text(template, at, quote)
            continue
        if template[at] == "}" and depth == 0:
            return at
        depth += {"{": 1, "}": -1}.get(template[at], 0)
        at += 1
    raise ToolError("${ is never closed by }; write $${ for a plain ${")


def _after_text(template: str, at: int, quote: str) -> int:
    at += len(quote)
    while at < len(template) and not template.startswith(quote, at):
        at += 2 if template[at] == "\\" else 1
    return at + len(quote)


def strings(template: Any) -> list[str]:
    """Return every text in a template; keys of objects are not templates."""
    match template:
        case str():
            return [template]
        case list() | tuple():
            return [text for item in template for text in strings(item)]
        case dict():
            return [text for item in template.values() for text in strings(item)]
        case _:
            return []


def escaped(value: Any) -> Any:
    """Return a value with every `${` made `$${`, so that nothing in it can pass for the name of a secret."""
    match value:
        case str():
            return value.replace("${", "$${")
        case list():
            return [escaped(item) for item in value]
        case dict():
            return {escaped(key): escaped(item) for key, item in value.items()}
        case _:
            return value
