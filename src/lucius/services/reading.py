"""From a client's bytes to pages, whatever they are and whatever is installed."""

from lucius.services.engine import Engine
from lucius.services.extras import hint, load
from lucius.services.images import ImageSheets
from lucius.services.pages import PAGE_BREAK, Page, Sheets, TextSheets
from lucius.services.pdf import PdfSheets
from lucius.services.pdf_plain import page_count, pdf_pages
from lucius.services.text import NotText, kind_of, plain_text

DPI = 300


def open_document(data: bytes, engine: Engine | None, *, dpi: int = DPI, force_ocr: bool = False) -> Sheets:
    """To be closed. Raises NotText."""
    match kind_of(data):
        case "text":
            return TextSheets(plain_text(data).split(PAGE_BREAK))
        case "image":
            return ImageSheets(data, engine)
        case "pdf":
            pdfium = load("pypdfium2", "ocr")
            return PdfSheets(data, pdfium, engine, dpi, force_ocr) if pdfium else _plain_pdf(data)


def text_layer(data: bytes) -> str:
    """The text that is there as text. Raises NotText if there is none."""
    sheets = open_document(data, None)
    try:
        pages = [sheets.read(number) for number in range(1, sheets.count + 1)]
    finally:
        sheets.close()
    refuse_unread(pages)
    return PAGE_BREAK.join(page.text for page in pages)


def refuse_unread(pages: list[Page]) -> None:
    """Raises NotText if not one page could be read."""
    if pages and all(page.method == "none" and not page.text for page in pages):
        raise NotText(f"scanned pages: reading pixels needs an OCR engine ({hint('ocr')})")


def _plain_pdf(data: bytes) -> Sheets:
    try:
        pages = pdf_pages(data)
    except NotText as error:
        if error.code == "UNSUPPORTED_INPUT":
            raise NotText(f"{error}; {hint('ocr')} reads more") from error
        raise
    return TextSheets(pages, unread=max(0, page_count(data) - len(pages)))
