"""PDFs through pdfium: the text layer where there is one, else pixels for the OCR engine.

pdfium may be in one thread at a time only, and pypdfium2 closes what is forgotten from whichever thread collects
garbage: so every call is made under one lock, and everything is closed there.
"""

import re
import threading
import unicodedata
from typing import Any

from lucius.services.engine import Engine
from lucius.services.extras import hint
from lucius.services.pages import MAX_SOURCE_PIXELS, PAGE_BREAK, Page, bearable
from lucius.services.text import NotText

_PDFIUM = threading.Lock()
_PASSWORD, _SECURITY = 4, 5  # FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY
_OBJECT_IMAGE = 3  # FPDF_PAGEOBJ_IMAGE
_DEPTH = 15
"""Of drawings within drawings that we look into."""
_COLOUR_BITS = 24
POINTS = 72
SPARSE = 50
"""A page with fewer letters than this, under a picture of most of the page, is a scan with a stamp on it."""
MOST_OF_A_PAGE = 0.5
_SOFT_HYPHEN = re.compile("[\x02\ufffe\u00ad]\n?")
_UNREADABLE = frozenset({"Cc", "Co", "Cn", "Cs"})


class PdfSheets:
    """An open PDF. `engine` is None where there is none: scanned pages stay unread then."""

    def __init__(self, data: bytes, pdfium: Any, engine: Engine | None, dpi: int, force_ocr: bool) -> None:
        if force_ocr and engine is None:
            raise NotText(f"force_ocr needs an OCR engine ({hint('ocr')})", code="ENGINE_MISSING")
        self._error: type[Exception] = pdfium.PdfiumError
        self._engine = engine
        self._dpi = dpi
        self._force_ocr = force_ocr
        with _PDFIUM:
            try:
                self._document: Any = pdfium.PdfDocument(data)
            except self._error as error:
                raise _refused(error) from error
            self._count = len(self._document)

    @property
    def count(self) -> int:
        return self._count

    def read(self, number: int) -> Page:
        text, picture = self._look(number)
        if picture is None:
            return Page(number, text, "text")
        if self._engine is None:
            return Page(number, text, "none")  # with the stamp on it, if that is all we have
        found = self._engine.read(picture, number)
        if text and not found.text:
            return Page(number, text, "text")
        return Page(number, found.text, "ocr", found.confidence)

    def close(self) -> None:
        with _PDFIUM:
            self._document.close()

    def _look(self, number: int) -> tuple[str, Any]:
        """The page's text, if it is any good, and its picture, if the text is not enough."""
        with _PDFIUM:
            try:
                page = self._document[number - 1]
            except self._error as error:
                raise NotText(f"page {number} of the PDF is damaged", code="DAMAGED_INPUT") from error
            try:
                text = _text_of(page)
                needed = self._force_ocr or _needs_ocr(page, text)
                return text, self._picture(page, number) if needed else None
            except self._error as error:
                raise NotText(f"page {number} of the PDF is damaged: {error}", code="DAMAGED_INPUT") from error
            finally:
                page.close()

    def _picture(self, page: Any, number: int) -> Any:
        """Pixels of their own: pdfium's go with the page. Without an engine, nobody looks at them."""
        if self._engine is None:
            return b""
        _refuse_huge_images(page, number)
        scale = min(self._dpi / POINTS, bearable(*page.get_size()))
        bitmap = page.render(scale=scale, grayscale=True)
        try:
            return bitmap.to_pil().copy()
        finally:
            bitmap.close()


def _text_of(page: Any) -> str:
    """The text layer; empty if its characters are not text, as with fonts that hide what they mean."""
    layer = page.get_textpage()
    try:
        text = layer.get_text_bounded()
    finally:
        layer.close()
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "\n".join(line.rstrip() for line in text.replace(PAGE_BREAK, "\n").split("\n")).strip("\n")
    return text if is_readable(text) else ""


def is_readable(text: str) -> bool:
    """Whether nearly all of it are characters that mean something."""
    visible = [character for character in text if not character.isspace()]
    bad = sum(character == "\ufffd" or unicodedata.category(character) in _UNREADABLE for character in visible)
    return bad * 10 <= len(visible)


def _needs_ocr(page: Any, text: str) -> bool:
    if sum(character.isalnum() for character in text) >= SPARSE:
        return False
    width, height = page.get_size()
    anything = False
    for found in page.get_objects(max_depth=_DEPTH):
        anything = True
        if found.type == _OBJECT_IMAGE:
            left, bottom, right, top = found.get_bounds()
            if (right - left) * (top - bottom) >= MOST_OF_A_PAGE * width * height:
                return True
    return anything and not text.strip()  # drawn letters; a page with nothing on it is empty


def _refuse_huge_images(page: Any, number: int) -> None:
    """pdfium unpacks an image as a whole before it scales it. Drawings in black and white may be large."""
    for found in page.get_objects(filter=[_OBJECT_IMAGE], max_depth=_DEPTH):
        width, height = found.get_px_size()
        if width * height <= MAX_SOURCE_PIXELS:
            continue
        if width * height * (found.get_metadata().bits_per_pixel or _COLOUR_BITS) > MAX_SOURCE_PIXELS * _COLOUR_BITS:
            raise NotText(f"page {number} has an image of {width} x {height} pixels", code="INPUT_TOO_LARGE")


def _refused(error: Exception) -> NotText:
    if getattr(error, "err_code", None) in (_PASSWORD, _SECURITY):
        return NotText("an encrypted PDF that needs a password", code="ENCRYPTED_INPUT")
    return NotText("a damaged PDF", code="DAMAGED_INPUT")
