"""Renders URL templates: values are percent-encoded by position and can never change where a request goes."""

import re
from collections.abc import Callable, Sequence
from urllib.parse import quote, unquote

from lucius.adapters.expressions.cel.templates import Expression, Part, Secret, Text, escaped
from lucius.core.model.tools import ToolError

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\\]*")
_SECRET_ORIGIN = re.compile(r"\$\{secrets\.[^}]*\}[^/?#\\]*")  # set by the operator
_SEPARATORS = re.compile(r"[/\\?#;]")  # may end a segment for a peer that decodes
_IGNORED = re.compile(r"[\x00-\x20]")  # may be dropped by a peer
_MAX_DECODINGS = 5


def render_url(parts: Sequence[Part], text_of: Callable[[Expression], str]) -> str:
    """Join the parts of a URL template. `text_of` gives the encoded text of an expression.

    Raises ToolError if a value stands in the scheme or the host, leaves a path segment empty, or makes one `.` or
    `..`, also if only a peer that decodes it would see it.
    """
    if fault := origin_fault(parts):
        raise ToolError(fault)
    url = ""
    for number, part in enumerate(parts):
        match part:
            case Text():
                url += escaped(part.text)
            case Expression():
                url += _value(part, text_of(part), url, parts[number + 1 : number + 2])
            case Secret():
                if url.endswith("$"):
                    raise ToolError(f"text that ends in $ can't stand before ${{secrets.{part.name}}}")
                url += f"${{secrets.{part.name}}}"
    if fault := path_fault(url):
        raise ToolError(fault)
    return url


def origin_fault(parts: Sequence[Part]) -> str | None:
    """Return why a template's values could choose the scheme or the host; None if they can't."""
    before = ""
    for part in parts:
        match part:
            case Text():
                before += part.text
            case Secret():
                before += f"${{secrets.{part.name}}}"
            case Expression() if _path_of(before) is None:
                return (
                    "a value can stand in the path, the query or the fragment of a URL: write scheme and host into the "
                    "protocol, as in https://example.com/${…}"
                )
            case Expression():
                pass
    return None


def path_fault(url: str) -> str | None:
    """Return why a rendered URL could lead to another path than it shows; None if it can't."""
    path = re.split(r"[?#]", _path_of(url) or "", maxsplit=1)[0]
    if "\\" in path:
        return "a URL can't have a backslash in it"
    for _ in range(_MAX_DECODINGS):
        segments = (_IGNORED.sub("", segment).strip() for segment in _SEPARATORS.split(path))
        if any(segment in (".", "..") for segment in segments):
            return "a URL can't have . or .. as a segment of its path, encoded or not"
        before, path = path, unquote(path)
        if path == before:
            return None
    return "a URL's path is encoded too many times"


def _value(part: Expression, text: str, before: str, following: Sequence[Part]) -> str:
    """Refuse an empty path segment: `DELETE /numbers/${id}` must not become a request for all of them."""
    path = _path_of(before) or ""
    ends = not following or (isinstance(following[0], Text) and following[0].text[0] in "/?#;")
    if not text and path.endswith("/") and not re.search(r"[?#]", path) and ends:
        raise ToolError(f"has no text for a segment of the URL's path: {part.source[:100]}")
    return text


def _path_of(url: str) -> str | None:
    """Return all that follows the host, None if there is no end of the host yet."""
    found = _ORIGIN.match(url) or _SECRET_ORIGIN.match(url)
    rest = url[found.end() :] if found else ""
    return rest or None


def encode(text: str) -> str:
    """Encode everything that could be more than a character of a path segment, a query or a fragment.

    Raises ToolError for a text that is no Unicode.
    """
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise ToolError("a text has half a surrogate pair in it, which a URL can't carry") from None
