"""The OCR service: writes the document's text to `output.txt` and how each page was read to `pages.json`."""

from contextlib import closing

import msgspec

from lucius.reference_services.documents import Documents
from lucius.reference_services.engine import OcrEngine, get_engine
from lucius.reference_services.pages import Page, count_unread, join_pages
from lucius.reference_services.reading import DEFAULT_DPI, open_document, read_pages
from lucius.reference_services.settings import ServiceSettings
from lucius.reference_services.text import UnreadableInput
from lucius.version import __version__
from lucius.worker import NonRetryable, Service, StepContext, StepResult


class OcrParams(msgspec.Struct, frozen=True):
    """The payload members that OCR uses. `language` is ignored, since one model reads all languages."""

    pages: list[int] | None = None
    dpi: int = DEFAULT_DPI
    force_ocr: bool = False


def ocr_service(settings: ServiceSettings) -> Service:
    service = Service("ocr", version=__version__)
    documents = Documents()

    def engine() -> OcrEngine | None:
        return None if settings.ocr_engine == "off" else get_engine(settings.threads)

    @service.startup
    def load_engine() -> None:
        engine()

    @service.step("OCR", params=OcrParams)
    def read_text(ctx: StepContext, params: OcrParams) -> StepResult:
        if not 72 <= params.dpi <= 1200:
            raise NonRetryable("INVALID_PAYLOAD", "dpi must be 72 to 1200")

        def checkpoint(done: int, total: int) -> None:
            ctx.raise_if_stopping()
            ctx.progress(done, total, "page")

        data = documents.read_input(ctx)
        try:
            with closing(open_document(data, engine(), dpi=params.dpi, force_ocr=params.force_ocr)) as reader:
                pages = read_pages(reader, checkpoint, params.pages)
        except UnreadableInput as error:
            raise NonRetryable(error.code, str(error)) from error
        return _write_result(ctx, documents, pages)

    return service


def _write_result(ctx: StepContext, documents: Documents, pages: list[Page]) -> StepResult:
    text, page_index = join_pages(pages)
    output = text.encode()
    ref = ctx.files.write("output.txt", output)
    pages_ref = ctx.files.write("pages.json", msgspec.json.encode(page_index))
    result: dict[str, object] = {"pages": len(pages), "chars": len(text), "sha256": ref.sha256}
    by_ocr = [page for page in pages if page.method == "ocr"]
    result["text_pages"] = sum(page.method == "text" for page in pages)
    result["ocr_pages"] = len(by_ocr)
    if by_ocr:
        result["confidence"] = round(sum(page.confidence or 0.0 for page in by_ocr) / len(by_ocr), 4)
    if count_unread(pages):
        result["unread_pages"] = count_unread(pages)
    ctx.progress(len(pages), len(pages), "page")
    return StepResult({**result, **documents.write_output(ctx, "output.txt", output)}, [ref, pages_ref])
