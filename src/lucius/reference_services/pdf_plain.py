"""Extracts text from PDFs with the standard library alone; used without the `ocr` extra.

Page content is a stream of operators; `(text) Tj` and `[(te) -20 (xt)] TJ` show text between BT and ET. Fonts with
custom encodings need tables that are not read here: their output is not text and is refused.
"""

import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from lucius.reference_services.text import UnreadableInput

MAX_STREAM_BYTES = 16 * 1024 * 1024
MAX_UNPACKED_BYTES = 128 * 1024 * 1024

# The patterns are possessive (`++`): a hostile file must not make them backtrack.

_STREAM = re.compile(rb"<<(?P<dict>(?:[^<>]++|<<[^<>]*+>>|<[^<>]*+>)*+)>>\s*stream\r?\n", re.DOTALL)
_PAGE = re.compile(rb"/Type\s*/Page\b")
_OBJECT = re.compile(rb"\b(\d{1,9})\s{1,9}\d{1,5}\s{1,9}obj\b")
_REFERENCE = re.compile(rb"(\d{1,9})\s+\d{1,5}\s+R")
_REFERENCES = rb"\s{0,9}\[?([\d\sR]*+)"
_CONTENTS = re.compile(rb"/Contents" + _REFERENCES)
_KIDS = re.compile(rb"/Kids" + _REFERENCES)
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


def pdf_pages(data: bytes) -> list[str | None]:
    """Return the text of each page, None for pages without text; in file order if the page tree can't be read."""
    if _ENCRYPTED.search(data):
        raise UnreadableInput("an encrypted PDF", code="ENCRYPTED_INPUT")
    places = [(match.start(), int(match[1])) for match in _OBJECT.finditer(data)]
    shown: dict[int, str] = {}  # by the offset of the content stream
    unpacked = 0
    is_blank = b"/ObjStm" not in data and b"/Image" not in data
    for offset, content in _streams(data):
        unpacked += len(content)
        is_blank = is_blank and not content.strip()
        if unpacked > MAX_UNPACKED_BYTES:
            raise UnreadableInput("a PDF that unpacks to more than this service takes")
        if text := _shown_text(content):
            shown[offset] = text
    if is_blank and b"/Pages" in data:
        raise UnreadableInput("a PDF without pages, or with nothing on them", code="EMPTY_INPUT")
    text = "".join(shown.values())
    if not text or sum(character.isprintable() or character.isspace() for character in text) < 0.9 * len(text):
        raise UnreadableInput(
            "a PDF without text that can be read by simple means (scanned, or fonts with own encodings)"
        )
    by_object = {_object_at(places, offset): text for offset, text in shown.items()}
    pages = [_joined(by_object, contents) for contents in page_contents(data, places)]
    if sum(map(len, filter(None, pages))) >= len(text):
        return pages
    # Some text is in form objects, or the page tree is compressed: only a minimum page count is known.
    return [*shown.values(), *[None] * (len(_PAGE.findall(data)) - len(shown))]


def page_contents(data: bytes, places: list[tuple[int, int]]) -> list[list[int]]:
    """Return the object numbers of each page's content streams, in page order."""
    pages: dict[int, list[int]] = {}
    for after in dict.fromkeys(
        bisect_right(places, match.start(), key=itemgetter(0)) for match in _PAGE.finditer(data)
    ):
        start, number = places[after - 1] if after else (0, -1)
        contents = _CONTENTS.search(data, start, places[after][0] if after < len(places) else len(data))
        pages[number] = _references(contents[1]) if contents else []
    kids = {_object_at(places, match.start()): _references(match[1]) for match in _KIDS.finditer(data)}
    order: dict[int, None] = {}
    parented = {kid for found in kids.values() for kid in found}
    waiting = [number for number in kids if number not in parented]
    while waiting:
        number = waiting.pop()
        if number not in order:
            order[number] = None
            waiting += reversed(kids.get(number, []))
    return [pages[number] for number in order if number in pages] or list(pages.values())


def _object_at(places: list[tuple[int, int]], offset: int) -> int:
    """Return the number of the object that contains this offset; -1 if none does."""
    after = bisect_right(places, offset, key=itemgetter(0))
    return places[after - 1][1] if after else -1


def _references(numbers: bytes) -> list[int]:
    return [int(match[1]) for match in _REFERENCE.finditer(numbers)]


def _joined(by_object: dict[int, str], contents: list[int]) -> str | None:
    return "\n".join(by_object[number] for number in contents if number in by_object) or None


def _streams(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the streams that can hold page content, plain or deflated, with their offsets in the file."""
    offset = 0
    while match := _STREAM.search(data, offset):
        offset = data.find(b"endstream", match.end())
        offset = offset if offset >= 0 else len(data)  # continue from there: no byte is scanned twice
        header = match["dict"]
        if b"/Image" in header or b"/XRef" in header or b"/FontFile" in header:
            continue
        body = data[match.end() : offset]
        if b"/Filter" not in header:
            yield match.start(), body
        elif b"/FlateDecode" in header and header.count(b"Decode") == 1 + header.count(b"/DecodeParms"):
            try:
                yield match.start(), zlib.decompressobj().decompress(body, MAX_STREAM_BYTES)
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
