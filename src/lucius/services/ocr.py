"""OCR: the text of the client's document, as `output.txt`, and where each page of it came from, as `pages.json`."""

from collections.abc import Iterator
from contextlib import closing

import msgspec

from lucius import __version__
from lucius.services.documents import Documents
from lucius.services.engine import Engine, engine_of
from lucius.services.pages import MAX_CHARS, MAX_PAGES, Page, Sheets, joined
from lucius.services.reading import DPI, open_document, refuse_unread
from lucius.services.settings import ServiceSettings
from lucius.services.text import NotText
from lucius.worker import NonRetryable, Service, StepContext, StepResult


class OcrParams(msgspec.Struct, frozen=True):
    """The part of the payload this service heeds. One model reads all languages, so `language` says nothing to it."""

    pages: list[int] | None = None
    dpi: int = DPI
    force_ocr: bool = False


def ocr_service(settings: ServiceSettings) -> Service:
    service = Service("ocr", version=__version__)
    documents = Documents(settings)

    def engine() -> Engine | None:
        return None if settings.ocr_engine == "off" else engine_of(settings.threads)

    @service.startup
    def load_engine() -> None:
        engine()

    @service.step("OCR", params=OcrParams)
    def read_text(ctx: StepContext, params: OcrParams) -> StepResult:
        if not 72 <= params.dpi <= 1200:
            raise NonRetryable("INVALID_PAYLOAD", "dpi must be 72 to 1200")
        data = documents.read_input(ctx)
        try:
            with closing(open_document(data, engine(), dpi=params.dpi, force_ocr=params.force_ocr)) as sheets:
                pages = list(_read(ctx, sheets, _chosen(sheets, params.pages)))
            refuse_unread(pages)
        except NotText as error:
            raise NonRetryable(error.code, str(error)) from error
        return _leave(ctx, documents, pages)

    return service


def _chosen(sheets: Sheets, wanted: list[int] | None) -> list[int]:
    """Page numbers in the order of the document, those that it does not have left out."""
    chosen = sorted({number for number in wanted if 1 <= number <= sheets.count}) if wanted is not None else None
    if chosen is None:
        chosen = list(range(1, sheets.count + 1))
    if not chosen:
        raise NonRetryable("NO_SUCH_PAGE", f"the document has {sheets.count} pages, and none of those asked for")
    if len(chosen) > MAX_PAGES:
        raise NonRetryable("TOO_MANY_PAGES", f"more than {MAX_PAGES} pages; choose some with `pages`")
    return chosen


def _read(ctx: StepContext, sheets: Sheets, chosen: list[int]) -> Iterator[Page]:
    size = 0
    for done, number in enumerate(chosen):
        ctx.raise_if_stopping()
        ctx.progress(done / len(chosen))
        page = sheets.read(number)
        size += len(page.text)
        if size > MAX_CHARS:
            raise NonRetryable("INPUT_TOO_LARGE", f"more than {MAX_CHARS} characters; choose some pages with `pages`")
        yield page


def _leave(ctx: StepContext, documents: Documents, pages: list[Page]) -> StepResult:
    text, places = joined(pages)
    output = text.encode()
    ref = ctx.files.write("output.txt", output)
    places_ref = ctx.files.write("pages.json", msgspec.json.encode(places))
    result: dict[str, object] = {"pages": len(pages), "chars": len(text), "sha256": ref.sha256}
    by_ocr = [page for page in pages if page.method == "ocr"]
    result["text_pages"] = sum(page.method == "text" for page in pages)
    result["ocr_pages"] = len(by_ocr)
    if by_ocr:
        result["confidence"] = round(sum(page.confidence or 0.0 for page in by_ocr) / len(by_ocr), 4)
    unread = sum(page.method == "none" for page in pages)
    if unread:
        result["unread_pages"] = unread
    ctx.progress(1.0)
    return StepResult({**result, **documents.hand_over(ctx, "output.txt", output)}, [ref, places_ref])
