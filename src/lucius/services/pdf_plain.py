"""Text of PDFs with the standard library alone: what there is without the `ocr` extra.

Page content is a stream of operators; `(text) Tj` and `[(te) -20 (xt)] TJ` show text between BT and ET. Fonts with
their own encoding need tables that we do not read: what comes out of them is not text, and is refused.
"""

import re
import zlib
from collections.abc import Iterator

from lucius.services.text import NotText

MAX_STREAM = 16 * 1024 * 1024
MAX_STREAMS = 128 * 1024 * 1024

# The patterns are possessive (`++`): a hostile file must not make them backtrack.

_STREAM = re.compile(rb"<<(?P<dict>(?:[^<>]++|<<[^<>]*+>>|<[^<>]*+>)*+)>>\s*stream\r?\n", re.DOTALL)
_PAGE = re.compile(rb"/Type\s*/Page\b")
_ENCRYPTED = re.compile(rb"/Encrypt\s+\d+\s+\d+\s+R")
_TOKEN = re.compile(
    rb"\((?P<literal>(?:[^()\\]++|\\.|\((?:[^()\\]++|\\.|\([^()]*+\))*+\))*+)\)"
    rb"|<(?P<hex>[0-9A-Fa-f\s]*)>"
    rb"|(?P<number>[-+]?\d*\.?\d+)"
    rb"|(?P<open>\[)"
    rb"|(?P<operator>[A-Za-z'\"*]+)",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\([nrtbf()\\]|[0-7]{1,3}|\r\n|\r|\n)")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"(": b"(", b")": b")", b"\\": b"\\"}
_SHOW = frozenset({b"Tj", b"TJ", b"'", b'"'})
_NEW_LINE = frozenset({b"Td", b"TD", b"T*", b"Tm", b"ET", b"'", b'"'})


def pdf_pages(data: bytes) -> list[str]:
    """The text of each content stream that shows any, in file order."""
    if _ENCRYPTED.search(data):
        raise NotText("an encrypted PDF", code="ENCRYPTED_INPUT")
    pages: list[str] = []
    unpacked = 0
    for content in _streams(data):
        unpacked += len(content)
        if unpacked > MAX_STREAMS:
            raise NotText("a PDF that unpacks to more than this service takes")
        page = _shown_text(content)
        if page:
            pages.append(page)
    text = "".join(pages)
    if not text or sum(character.isprintable() or character.isspace() for character in text) < 0.9 * len(text):
        raise NotText("a PDF without text that can be read by simple means (scanned, or fonts with own encodings)")
    return pages


def page_count(data: bytes) -> int:
    """How many pages there are at least: those whose objects are not packed away."""
    return len(_PAGE.findall(data))


def _streams(data: bytes) -> Iterator[bytes]:
    """Streams that can hold page content: plain or deflated."""
    for match in _STREAM.finditer(data):
        end = data.find(b"endstream", match.end())
        body = data[match.end() : end if end >= 0 else len(data)]
        header = match["dict"]
        if b"/Image" in header or b"/XRef" in header or b"/FontFile" in header:
            continue
        if b"/Filter" not in header:
            yield body
        elif b"/FlateDecode" in header and header.count(b"Decode") == 1 + header.count(b"/DecodeParms"):
            try:
                yield zlib.decompressobj().decompress(body, MAX_STREAM)
            except zlib.error:
                continue


def _shown_text(content: bytes) -> str:
    if b"BT" not in content:
        return ""
    lines: list[list[str]] = [[]]
    operands: list[str] = []
    for match in _TOKEN.finditer(content):
        operator = match["operator"]
        if match["literal"] is not None:
            operands.append(_literal(match["literal"]))
        elif match["hex"] is not None:
            operands.append(_hexadecimal(match["hex"]))
        elif match["number"] is not None:
            if operands and float(match["number"]) < -150:  # a gap this wide inside TJ separates words
                operands.append(" ")
        elif operator is not None:
            if operator in _NEW_LINE and lines[-1]:
                lines.append([])
            if operator in _SHOW:
                lines[-1].extend(operands)
            operands.clear()
    return "\n".join("".join(line).strip() for line in lines if line).strip()


def _literal(raw: bytes) -> str:
    def unescape(match: re.Match[bytes]) -> bytes:
        what = match[1]
        if what in _ESCAPES:
            return _ESCAPES[what]
        return b"" if what[:1] in b"\r\n" else bytes([int(what, 8) & 255])

    return _pdf_string(_ESCAPE.sub(unescape, raw))


def _hexadecimal(raw: bytes) -> str:
    digits = b"".join(raw.split())
    return _pdf_string(bytes.fromhex((digits + b"0" * (len(digits) % 2)).decode()))


def _pdf_string(raw: bytes) -> str:
    return raw[2:].decode("utf-16-be", "replace") if raw.startswith(b"\xfe\xff") else raw.decode("cp1252", "replace")
