"""From a client's bytes to pages, whatever they are and whatever is installed."""

from collections.abc import Callable, Sequence

from lucius.services.engine import Engine
from lucius.services.extras import hint, load
from lucius.services.images import ImageSheets
from lucius.services.pages import MAX_CHARS, MAX_PAGES, PAGE_BREAK, Page, Sheets, TextSheets
from lucius.services.pdf import PdfSheets
from lucius.services.pdf_plain import pdf_pages
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


def read_pages(sheets: Sheets, between: Callable[[float], None], wanted: list[int] | None = None) -> list[Page]:
    """The pages wanted, in the order of the document, those that it does not have left out.

    `between` is called before each with how far it is, 0 to 1, and may raise. Raises NotText.
    """
    chosen = _chosen(sheets.count, wanted)
    pages: list[Page] = []
    size = 0
    for number in chosen:
        between(len(pages) / len(chosen))
        page = sheets.read(number)
        size += len(page.text)
        if size > MAX_CHARS:
            told = f"more than {MAX_CHARS} characters; OCR can be told to read some of the `pages`"
            raise NotText(told, code="INPUT_TOO_LARGE")
        pages.append(page)
    _refuse_unread(pages)
    return pages


def _chosen(count: int, wanted: list[int] | None) -> Sequence[int]:
    chosen = range(1, count + 1) if wanted is None else sorted({number for number in wanted if 1 <= number <= count})
    if not chosen:
        raise NotText(f"the document has {count} pages, and none of those asked for", code="NO_SUCH_PAGE")
    if len(chosen) > MAX_PAGES:
        raise NotText(
            f"more than {MAX_PAGES} pages; OCR can be told to read some of the `pages`", code="TOO_MANY_PAGES"
        )
    return chosen


def _refuse_unread(pages: list[Page]) -> None:
    """Raises NotText if not one page could be read."""
    if pages and all(page.method == "none" and not page.text for page in pages):
        raise NotText(f"scanned pages: reading pixels needs an OCR engine ({hint('ocr')})")


def _plain_pdf(data: bytes) -> Sheets:
    try:
        return TextSheets(pdf_pages(data))
    except NotText as error:
        if error.code == "UNSUPPORTED_INPUT":
            raise NotText(f"{error}; {hint('ocr')} reads more") from error
        raise
