"""Reads PDFs with pdfium: the text layer if there is one, else pixels for the OCR engine.

pdfium is not thread-safe, and pypdfium2 closes unreferenced objects in the thread that runs the garbage collector. So
every call is made under one lock, and every object is closed explicitly under it.
"""

import re
import threading
import unicodedata
from typing import Any

from lucius.reference_services.engine import OcrEngine
from lucius.reference_services.extras import install_hint
from lucius.reference_services.pages import MAX_SOURCE_PIXELS, PAGE_BREAK, Page, max_scale
from lucius.reference_services.text import UnreadableInput

_PDFIUM = threading.Lock()
_PASSWORD, _SECURITY = 4, 5  # FPDF_ERR_PASSWORD, FPDF_ERR_SECURITY
_OBJECT_IMAGE = 3  # FPDF_PAGEOBJ_IMAGE
_DEPTH = 15
"""Maximum nesting of form objects that is searched."""
_COLOUR_BITS = 24
POINTS_PER_INCH = 72
MIN_TEXT_LAYER_CHARS = 50
"""A page with fewer letters and an image over most of it is a scan with a stamp on it."""
MIN_SCAN_AREA_RATIO = 0.5
_SOFT_HYPHEN = re.compile("[\x02\ufffe\u00ad]\n?")
_UNREADABLE = frozenset({"Cc", "Co", "Cn", "Cs"})


class PdfPageReader:
    """An open PDF. Without an `engine`, scanned pages stay unread."""

    def __init__(self, data: bytes, pdfium: Any, engine: OcrEngine | None, dpi: int, force_ocr: bool) -> None:
        if force_ocr and engine is None:
            raise UnreadableInput(f"force_ocr needs an OCR engine ({install_hint('ocr')})", code="ENGINE_MISSING")
        self._error: type[Exception] = pdfium.PdfiumError
        self._engine = engine
        self._dpi = dpi
        self._force_ocr = force_ocr
        with _PDFIUM:
            try:
                self._document: Any = pdfium.PdfDocument(data)
            except self._error as error:
                raise _open_error(error, pdfium.raw, data) from error
            self._count = len(self._document)

    @property
    def count(self) -> int:
        return self._count

    def read(self, number: int) -> Page:
        text, picture = self._read_text_layer(number)
        if picture is None:
            return Page(number, text, "text")
        if self._engine is None:
            return Page(number, text, "none")  # the text of a stamp, if there is one
        found = self._engine.read(picture, number)
        if text and not found.text:
            return Page(number, text, "text")
        return Page(number, found.text, "ocr", found.confidence)

    def close(self) -> None:
        with _PDFIUM:
            self._document.close()

    def _read_text_layer(self, number: int) -> tuple[str, Any]:
        """Return the page's text if it is readable, and its image if the text layer is not sufficient."""
        with _PDFIUM:
            try:
                page = self._document[number - 1]
            except self._error as error:
                raise UnreadableInput(f"page {number} of the PDF is damaged", code="DAMAGED_INPUT") from error
            try:
                text = _text_of(page)
                needed = self._force_ocr or _needs_ocr(page, text)
                return text, self._render(page, number) if needed else None
            except self._error as error:
                raise UnreadableInput(f"page {number} of the PDF is damaged: {error}", code="DAMAGED_INPUT") from error
            finally:
                page.close()

    def _render(self, page: Any, number: int) -> Any:
        """Render the page to an image with its own memory, since pdfium's is freed with the page.

        Without an engine nothing is rendered.
        """
        if self._engine is None:
            return b""
        _reject_huge_images(page, number)
        scale = min(self._dpi / POINTS_PER_INCH, max_scale(*page.get_size()))
        bitmap = page.render(scale=scale, grayscale=True)
        try:
            return bitmap.to_pil().copy()
        finally:
            bitmap.close()


def _text_of(page: Any) -> str:
    """Return the text layer; empty if its characters are not text, as with fonts without a Unicode mapping."""
    layer = page.get_textpage()
    try:
        text = layer.get_text_bounded()
    finally:
        layer.close()
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = "\n".join(line.rstrip() for line in text.replace(PAGE_BREAK, "\n").split("\n")).strip("\n")
    return text if is_readable(text) else ""


def is_readable(text: str) -> bool:
    """Return whether at least 90 % of the visible characters are assigned and printable."""
    visible = [character for character in text if not character.isspace()]
    bad = sum(character == "\ufffd" or unicodedata.category(character) in _UNREADABLE for character in visible)
    return bad * 10 <= len(visible)


def _needs_ocr(page: Any, text: str) -> bool:
    if sum(character.isalnum() for character in text) >= MIN_TEXT_LAYER_CHARS:
        return False
    width, height = page.get_size()
    anything = False
    for found in page.get_objects(max_depth=_DEPTH):
        anything = True
        if found.type == _OBJECT_IMAGE:
            left, bottom, right, top = found.get_bounds()
            if (right - left) * (top - bottom) >= MIN_SCAN_AREA_RATIO * width * height:
                return True
    return anything and not text.strip()  # letters drawn as paths; a page without objects is empty


def _reject_huge_images(page: Any, number: int) -> None:
    """Raise UnreadableInput for huge images, which pdfium decompresses whole before scaling.

    Black-and-white drawings may have more pixels.
    """
    for found in page.get_objects(filter=[_OBJECT_IMAGE], max_depth=_DEPTH):
        width, height = found.get_px_size()
        if width * height <= MAX_SOURCE_PIXELS:
            continue
        if width * height * (found.get_metadata().bits_per_pixel or _COLOUR_BITS) > MAX_SOURCE_PIXELS * _COLOUR_BITS:
            raise UnreadableInput(f"page {number} has an image of {width} x {height} pixels", code="INPUT_TOO_LARGE")


def _open_error(error: Exception, raw: Any, data: bytes) -> UnreadableInput:
    if _has_no_pages(raw, data):
        return UnreadableInput("a PDF without pages", code="EMPTY_INPUT")
    if getattr(error, "err_code", None) in (_PASSWORD, _SECURITY):
        return UnreadableInput("an encrypted PDF that needs a password", code="ENCRYPTED_INPUT")
    return UnreadableInput("a damaged PDF", code="DAMAGED_INPUT")


def _has_no_pages(raw: Any, data: bytes) -> bool:
    """Return whether pdfium can load a file that pypdfium2 refused.

    The error code does not tell: pdfium leaves that of an earlier file in place when it loads one without pages.
    """
    document = raw.FPDF_LoadMemDocument64(data, len(data), None)
    if not document:
        return False
    raw.FPDF_CloseDocument(document)
    return True
