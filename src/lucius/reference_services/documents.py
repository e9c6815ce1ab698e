"""Input and output shared by the three services: finds the text to work on and writes the client's result."""

from collections.abc import Callable, Sequence
from contextlib import closing

from msgspec import Struct

from lucius.reference_services.pages import (
    MAX_CHARS,
    PageSpan,
    count_unread,
    join_pages,
    parse_pages_file,
    spans_from_page_breaks,
    spans_of_entries,
)
from lucius.reference_services.reading import open_document, read_pages
from lucius.reference_services.text import UnreadableInput, decode_text
from lucius.worker import NonRetryable, StepContext


class DocumentText(Struct, frozen=True):
    """A document's text, and its pages if they are known."""

    text: str
    pages: Sequence[PageSpan]
    unread_pages: int = 0
    """Number of pages with content that could not be read."""


class Documents:
    """Reads the text of a step's document and writes its output."""

    def read_input(self, ctx: StepContext) -> bytes:
        """Read the client's document."""
        return ctx.files.read(ctx.directive.input_ref)

    def read_text(self, ctx: StepContext) -> DocumentText:
        """Return the text artifact of an earlier step, else the text of the client's document."""
        ref = find_artifact(ctx, "ocr", ".txt")
        if ref is None:
            return extract_text(self.read_input(ctx), ctx.raise_if_stopping)
        text = decode_text(ctx.files.read(ref))
        if len(text) > MAX_CHARS:
            raise NonRetryable("INPUT_TOO_LARGE", f"more than {MAX_CHARS} characters")
        pages_ref = f"{ref.rpartition('/')[0]}/pages.json"
        if any(pages_ref in found.artifact_refs for found in ctx.inputs.values()):
            entries = parse_pages_file(ctx.files.read(pages_ref), text)
            if entries:
                return DocumentText(text, spans_of_entries(entries), count_unread(entries))
        return DocumentText(text, spans_from_page_breaks(text))

    def write_output(self, ctx: StepContext, name: str, data: bytes) -> dict[str, str]:
        """On the job's last step, write `data` to `output_ref` and return the ref; otherwise return nothing."""
        if not ctx.last_step:
            return {}
        return {"output_ref": str(ctx.files.write_output(data, name))}


def find_artifact(ctx: StepContext, step_id: str, suffix: str) -> str | None:
    """Find an artifact of an earlier step by suffix: of step `step_id` if it has one, else of the latest that does."""
    named = ctx.inputs.get(step_id)
    others = [found for found in ctx.inputs.values() if found is not named]
    for found in [*others, *([named] if named else [])][::-1]:
        for ref in found.artifact_refs:
            if ref.endswith(suffix):
                return ref
    return None


def extract_text(data: bytes, checkpoint: Callable[[], None]) -> DocumentText:
    """Extract the text of a client's document without OCR. `checkpoint` is called before each page."""
    try:
        with closing(open_document(data, None)) as reader:
            pages = read_pages(reader, lambda done, total: checkpoint())
    except UnreadableInput as error:
        raise NonRetryable(error.code, str(error)) from error
    text, page_index = join_pages(pages)
    return DocumentText(text, spans_of_entries(page_index.pages) if len(pages) > 1 else [], count_unread(pages))
