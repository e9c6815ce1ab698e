"""OCR: the text of the client's document, as `output.txt`."""

import msgspec

from lucius import __version__
from lucius.services.documents import Documents, ServiceSettings
from lucius.services.text import NotText, text_of
from lucius.worker import NonRetryable, Service, StepContext, StepResult


class Wanted(msgspec.Struct, frozen=True):
    """The part of the payload this service heeds. It does not look at pixels, so language and dpi say nothing to it."""

    pages: list[int] | None = None


def ocr(settings: ServiceSettings) -> Service:
    service = Service("ocr", version=__version__)
    documents = Documents(settings)

    @service.step("OCR", params=Wanted)
    def read_text(ctx: StepContext, params: Wanted) -> StepResult:
        document = documents.read_input(ctx)
        ctx.progress(0.2)
        try:
            pages = text_of(document)
        except NotText as error:
            raise NonRetryable("UNSUPPORTED_INPUT", str(error)) from error
        ctx.raise_if_stopping()
        if params.pages is not None:
            pages = [page for number, page in enumerate(pages, start=1) if number in params.pages]
        text = "\f".join(pages)
        data = text.encode()
        ctx.progress(0.8)
        ref = ctx.files.write("output.txt", data)
        handed_over = documents.hand_over(ctx, "output.txt", data)
        return StepResult({"pages": len(pages), "chars": len(text), "sha256": ref.sha256, **handed_over}, [ref])

    return service
