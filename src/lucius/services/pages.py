"""Pages of a document, read one by one, and what is left of them: `output.txt` and `pages.json`."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

PAGE_BREAK = "\f"
MAX_PAGES = 2000
MAX_CHARS = 32_000_000
MAX_PIXELS = 30_000_000
"""Of a page as it is read: A4 at 500 dpi. What has more is reduced."""
MAX_SIDE = 10_000
MAX_SOURCE_PIXELS = 89_000_000
"""Of a picture before it is unpacked: a few bytes can claim to be one of any size. Pillow warns above this."""

Method = Literal["text", "ocr", "none"]


class Page(Struct, frozen=True):
    number: int
    text: str
    method: Method
    """`text`: it was there as text. `ocr`: read from pixels. `none`: there is something that we can't read."""
    confidence: float | None = None
    """Of OCR, 0 to 1."""


class Sheets(Protocol):
    """An open document."""

    @property
    def count(self) -> int: ...

    def read(self, number: int) -> Page:
        """A page, from 1 on. Raises NotText."""
        ...

    def close(self) -> None: ...


class TextSheets:
    """Pages whose text is known; None for those that can't be read."""

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


def bearable(width: float, height: float) -> float:
    """The largest scale at which a page of this size can be read."""
    area, longest = max(width * height, 1e-9), max(width, height, 1e-9)
    return float(min((MAX_PIXELS / area) ** 0.5, MAX_SIDE / longest))


class PageSpan(Struct, frozen=True):
    """Where in the text a page is."""

    number: int
    start: int
    end: int


class PageEntry(PageSpan, frozen=True):
    method: Method
    confidence: float | None


class PagesFile(Struct, frozen=True):
    """pages.json"""

    pages: list[PageEntry]


def joined(pages: Sequence[Page]) -> tuple[str, PagesFile]:
    """The text of all pages, and where each is in it."""
    entries: list[PageEntry] = []
    place = 0
    for page in pages:
        end = place + len(page.text)
        entries.append(PageEntry(page.number, place, end, page.method, page.confidence))
        place = end + len(PAGE_BREAK)
    return PAGE_BREAK.join(page.text for page in pages), PagesFile(entries)


def unread(pages: Sequence[Page | PageEntry]) -> int:
    return sum(page.method == "none" for page in pages)


def entries_in(pages_json: bytes, text: str) -> list[PageEntry]:
    """What OCR left beside the text; empty if it is not of this text."""
    try:
        found = msgspec.json.decode(pages_json, type=PagesFile).pages
    except msgspec.DecodeError:
        return []
    return found if found and found[-1].end == len(text) else []


def spans_in(entries: Sequence[PageEntry]) -> list[PageSpan]:
    return [PageSpan(page.number, page.start, page.end) for page in entries]


def spans_of(text: str) -> list[PageSpan]:
    """From its page breaks. Empty for a text without pages, or with more than anyone has use for."""
    if not 0 < text.count(PAGE_BREAK) < MAX_PAGES:
        return []
    spans: list[PageSpan] = []
    place = 0
    for number, page in enumerate(text.split(PAGE_BREAK), start=1):
        spans.append(PageSpan(number, place, place + len(page)))
        place += len(page) + len(PAGE_BREAK)
    return spans


def page_at(spans: Sequence[PageSpan], place: int) -> int | None:
    """The number of the page that has this character, or ends before it."""
    after = bisect_right(spans, place, key=lambda span: span.start)
    return spans[after - 1].number if after else None
