"""Opens a client's document of any supported kind and reads its pages with the installed packages."""

from collections.abc import Callable, Sequence

from lucius.reference_services.engine import OcrEngine
from lucius.reference_services.extras import install_hint, load
from lucius.reference_services.images import ImagePageReader
from lucius.reference_services.pages import MAX_CHARS, MAX_PAGES, PAGE_BREAK, Page, PageReader, TextPageReader
from lucius.reference_services.pdf import PdfPageReader
from lucius.reference_services.pdf_plain import pdf_pages
from lucius.reference_services.text import UnreadableInput, decode_text, detect_kind

DEFAULT_DPI = 300
EMPTY_INPUT = "EMPTY_INPUT"


def open_document(
    data: bytes, engine: OcrEngine | None, *, dpi: int = DEFAULT_DPI, force_ocr: bool = False
) -> PageReader:
    """Open a document; the caller closes it. Raises UnreadableInput."""
    if not data:
        raise UnreadableInput("the document has no bytes", code=EMPTY_INPUT)
    match detect_kind(data):
        case "text":
            return TextPageReader(decode_text(data).split(PAGE_BREAK))
        case "image":
            return ImagePageReader(data, engine)
        case "pdf":
            pdfium = load("pypdfium2", "ocr")
            return PdfPageReader(data, pdfium, engine, dpi, force_ocr) if pdfium else _plain_pdf(data)


def read_pages(
    reader: PageReader, checkpoint: Callable[[int, int], None], wanted: list[int] | None = None
) -> list[Page]:
    """Read the wanted pages in document order; numbers that the document does not have are skipped.

    `checkpoint` is called before each page with the pages read and the pages to read, and may raise to abort. Raises
    UnreadableInput.
    """
    chosen = _select_pages(reader.count, wanted)
    pages: list[Page] = []
    size = 0
    for number in chosen:
        checkpoint(len(pages), len(chosen))
        page = reader.read(number)
        size += len(page.text)
        if size > MAX_CHARS:
            message = f"more than {MAX_CHARS} characters; the OCR payload member `pages` selects some of them"
            raise UnreadableInput(message, code="INPUT_TOO_LARGE")
        pages.append(page)
    _reject_unread(pages)
    if wanted is None and not isinstance(reader, ImagePageReader):  # a blank image may be one page of many
        _reject_blank(pages)
    return pages


def _select_pages(count: int, wanted: list[int] | None) -> Sequence[int]:
    if count == 0:
        raise UnreadableInput("the document has no pages", code=EMPTY_INPUT)
    chosen = range(1, count + 1) if wanted is None else sorted({number for number in wanted if 1 <= number <= count})
    if not chosen:
        raise UnreadableInput(f"the document has {count} pages, and none of the requested ones", code="NO_SUCH_PAGE")
    if len(chosen) > MAX_PAGES:
        raise UnreadableInput(
            f"more than {MAX_PAGES} pages; the OCR payload member `pages` selects some of them", code="TOO_MANY_PAGES"
        )
    return chosen


def _reject_unread(pages: list[Page]) -> None:
    """Raise UnreadableInput if no page could be read."""
    if pages and all(page.method == "none" and not page.text for page in pages):
        raise UnreadableInput(f"scanned pages: reading pixels needs an OCR engine ({install_hint('ocr')})")


def _reject_blank(pages: list[Page]) -> None:
    """Raise UnreadableInput if no page of the whole document has any text."""
    if not any(page.text.strip() for page in pages):
        count = f"{len(pages)} pages" if len(pages) > 1 else "one page"
        raise UnreadableInput(f"the document has {count} and no text", code=EMPTY_INPUT)


def _plain_pdf(data: bytes) -> PageReader:
    try:
        return TextPageReader(pdf_pages(data))
    except UnreadableInput as error:
        if error.code == "UNSUPPORTED_INPUT":
            raise UnreadableInput(f"{error}; {install_hint('ocr')} reads more") from error
        raise
