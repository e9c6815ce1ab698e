"""OCR: the text of the client's document, as `output.txt`, and where each page of it came from, as `pages.json`."""

from contextlib import closing

import msgspec

from lucius import __version__
from lucius.services.documents import Documents
from lucius.services.engine import Engine, engine_of
from lucius.services.pages import Page, joined, unread
from lucius.services.reading import DPI, open_document, read_pages
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

        def between(done: float) -> None:
            ctx.raise_if_stopping()
            ctx.progress(done)

        data = documents.read_input(ctx)
        try:
            with closing(open_document(data, engine(), dpi=params.dpi, force_ocr=params.force_ocr)) as sheets:
                pages = read_pages(sheets, between, params.pages)
        except NotText as error:
            raise NonRetryable(error.code, str(error)) from error
        return _leave(ctx, documents, pages)

    return service


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
    if unread(pages):
        result["unread_pages"] = unread(pages)
    ctx.progress(1.0)
    return StepResult({**result, **documents.hand_over(ctx, "output.txt", output)}, [ref, places_ref])
