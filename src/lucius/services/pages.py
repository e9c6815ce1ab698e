"""Pages of a document, read one by one, and what is left of them: `output.txt` and `pages.json`."""

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
    """Pages whose text is known."""

    def __init__(self, pages: Sequence[str], unread: int = 0) -> None:
        self._pages = pages
        self._unread = unread

    @property
    def count(self) -> int:
        return len(self._pages) + self._unread

    def read(self, number: int) -> Page:
        if number > len(self._pages):
            return Page(number, "", "none")
        return Page(number, self._pages[number - 1], "text")

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


def spans_of(text: str, pages_json: bytes | None = None) -> list[PageSpan]:
    """From what OCR left beside the text; else from its page breaks. Empty for a text without pages."""
    if pages_json is not None:
        try:
            found = msgspec.json.decode(pages_json, type=PagesFile).pages
        except msgspec.DecodeError:
            found = []
        if found and found[-1].end == len(text):
            return [PageSpan(page.number, page.start, page.end) for page in found]
    if PAGE_BREAK not in text:
        return []
    spans: list[PageSpan] = []
    place = 0
    for number, page in enumerate(text.split(PAGE_BREAK), start=1):
        spans.append(PageSpan(number, place, place + len(page)))
        place += len(page) + len(PAGE_BREAK)
    return spans


def page_at(spans: Sequence[PageSpan], place: int) -> int | None:
    """The number of the page that has this character, or ends before it."""
    found: int | None = None
    for span in spans:
        if span.start > place:
            break
        found = span.number
    return found
