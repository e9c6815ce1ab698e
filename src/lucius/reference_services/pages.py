"""Pages of a document and their serialized form: `output.txt` and `pages.json`."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

PAGE_BREAK = "\f"
MAX_PAGES = 2000
MAX_CHARS = 32_000_000
MAX_PIXELS = 30_000_000
"""Largest page that is recognized: A4 at 500 dpi. Larger pages are scaled down."""
MAX_SIDE_PIXELS = 10_000
MAX_SOURCE_PIXELS = 89_000_000
"""Largest image that is decompressed, since a few bytes can claim any size. Pillow warns above this."""

ReadMethod = Literal["text", "ocr", "none"]


class Page(Struct, frozen=True):
    number: int
    text: str
    method: ReadMethod
    """`text`: from a text layer. `ocr`: recognized from pixels. `none`: the page has content that can't be read."""
    confidence: float | None = None
    """Of the OCR engine, 0 to 1."""


class PageReader(Protocol):
    """An open document, read page by page."""

    @property
    def count(self) -> int: ...

    def read(self, number: int) -> Page:
        """Read a page, counted from 1. Raises UnreadableInput."""
        ...

    def close(self) -> None: ...


class TextPageReader:
    """Pages whose text is known; None for pages that can't be read."""

    def __init__(self, pages: Sequence[str | None]) -> None:
        self._pages = pages

    @property
    def count(self) -> int:
        return len(self._pages)

    def read(self, number: int) -> Page:
        text = self._pages[number - 1]
        return Page(number, "", "none") if text is None else Page(number, text, "text")

    def close(self) -> None:
        pass


def max_scale(width: float, height: float) -> float:
    """Return the largest scale at which a page of this size is within the pixel limits."""
    area, longest = max(width * height, 1e-9), max(width, height, 1e-9)
    return float(min((MAX_PIXELS / area) ** 0.5, MAX_SIDE_PIXELS / longest))


class PageSpan(Struct, frozen=True):
    """Range of a page in the joined text."""

    number: int
    start: int
    end: int


class PageEntry(PageSpan, frozen=True):
    method: ReadMethod
    confidence: float | None


class PagesFile(Struct, frozen=True):
    """Content of `pages.json`."""

    pages: list[PageEntry]


# built here: msgspec builds a type's decoder at first use, which several threads may not do at once
_decode_pages_file = msgspec.json.Decoder(PagesFile).decode


def join_pages(pages: Sequence[Page]) -> tuple[str, PagesFile]:
    """Join the text of all pages and index the range of each."""
    entries: list[PageEntry] = []
    offset = 0
    for page in pages:
        end = offset + len(page.text)
        entries.append(PageEntry(page.number, offset, end, page.method, page.confidence))
        offset = end + len(PAGE_BREAK)
    return PAGE_BREAK.join(page.text for page in pages), PagesFile(entries)


def count_unread(pages: Sequence[Page | PageEntry]) -> int:
    return sum(page.method == "none" for page in pages)


def parse_pages_file(pages_json: bytes, text: str) -> list[PageEntry]:
    """Parse `pages.json`; return an empty list if it does not belong to this text."""
    try:
        found = _decode_pages_file(pages_json).pages
    except msgspec.DecodeError:
        return []
    return found if found and found[-1].end == len(text) else []


def spans_of_entries(entries: Sequence[PageEntry]) -> list[PageSpan]:
    return [PageSpan(page.number, page.start, page.end) for page in entries]


def spans_from_page_breaks(text: str) -> list[PageSpan]:
    """Derive page ranges from page breaks; empty for text without any, or with more than MAX_PAGES."""
    if not 0 < text.count(PAGE_BREAK) < MAX_PAGES:
        return []
    spans: list[PageSpan] = []
    offset = 0
    for number, page in enumerate(text.split(PAGE_BREAK), start=1):
        spans.append(PageSpan(number, offset, offset + len(page)))
        offset += len(page) + len(PAGE_BREAK)
    return spans


def page_at(spans: Sequence[PageSpan], offset: int) -> int | None:
    """Return the number of the page that contains this offset or ends before it."""
    after = bisect_right(spans, offset, key=lambda span: span.start)
    return spans[after - 1].number if after else None
