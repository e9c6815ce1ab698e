"""What the three services share: finding the text to work on, and handing the client its result."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from urllib.parse import quote, urlsplit

from msgspec import Struct

from lucius.services.pages import MAX_CHARS, PageSpan, entries_in, joined, spans_in, spans_of, unread
from lucius.services.reading import open_document, read_pages
from lucius.services.settings import ServiceSettings
from lucius.services.text import NotText, plain_text
from lucius.worker import NonRetryable, StepContext, StepFailure

MADE_UP_FOR = frozenset({"INPUT_NOT_FOUND", "UNSUPPORTED_REF"})


class Text(Struct, frozen=True):
    """A document's text, and its pages if they are known."""

    text: str
    pages: Sequence[PageSpan]
    unread_pages: int = 0
    """Pages that hold something which nobody has read."""


class Documents:
    """How the three services find the text to work on and hand the client its result."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._demo_inputs = settings.demo_inputs

    def read_input(self, ctx: StepContext) -> bytes:
        """The client's document."""
        ref = ctx.directive.input_ref
        try:
            return ctx.files.read(ref)
        except StepFailure as missing:
            if self._demo_inputs and missing.code in MADE_UP_FOR:
                return made_up_document(ref).encode()
            raise

    def read_text(self, ctx: StepContext) -> Text:
        """The text an earlier step left, else the text of the client's document."""
        ref = artifact(ctx, "ocr", ".txt")
        if ref is None:
            return text_in(self.read_input(ctx), ctx.raise_if_stopping)
        text = plain_text(ctx.files.read(ref))
        if len(text) > MAX_CHARS:
            raise NonRetryable("INPUT_TOO_LARGE", f"more than {MAX_CHARS} characters")
        pages_ref = f"{ref.rpartition('/')[0]}/pages.json"
        if any(pages_ref in found.artifact_refs for found in ctx.inputs.values()):
            entries = entries_in(ctx.files.read(pages_ref), text)
            if entries:
                return Text(text, spans_in(entries), unread(entries))
        return Text(text, spans_of(text))

    def hand_over(self, ctx: StepContext, name: str, data: bytes) -> dict[str, str]:
        """On the job's last step, write what the client wants to where it wants it."""
        if not ctx.last_step:
            return {}
        ref = ctx.directive.output_ref
        if self._demo_inputs and urlsplit(ref).scheme == "https":
            parts = urlsplit(ref)  # nowhere to upload to in a demo: keep it where one can look at it
            ref = f"blob://https/{parts.netloc}{quote(parts.path, safe='/%') or '/'}"
        return {"output_ref": str(ctx.files.write_output(data, name, ref=ref))}


def artifact(ctx: StepContext, step_id: str, suffix: str) -> str | None:
    """The ref an earlier step left: of the step with this id if there is one, else of the latest that fits."""
    named = ctx.inputs.get(step_id)
    others = [found for found in ctx.inputs.values() if found is not named]
    for found in [*others, *([named] if named else [])][::-1]:
        for ref in found.artifact_refs:
            if ref.endswith(suffix):
                return ref
    return None


def text_in(data: bytes, between: Callable[[], None]) -> Text:
    """The text of a client's document, as far as it is there as text. `between` is called for each page."""
    try:
        with closing(open_document(data, None)) as sheets:
            pages = read_pages(sheets, lambda done: between())
    except NotText as error:
        raise NonRetryable(error.code, str(error)) from error
    text, places = joined(pages)
    return Text(text, spans_in(places.pages) if len(pages) > 1 else [], unread(pages))


_SUBJECTS = ("The supplier", "The customer", "The auditor", "The committee", "The carrier", "The insurer")
_ACTS = ("shall deliver", "has approved", "may revoke", "must report", "will review", "has received")
_OBJECTS = ("the invoice", "the contract", "the shipment", "the annual statement", "the claim", "the specification")
_TERMS = ("within thirty days", "without delay", "in writing", "before the end of the quarter", "at its own cost")


def made_up_document(ref: str, sentences: int = 24) -> str:
    """The same text for the same ref, always."""
    lines = [f"Document {ref}."]
    for number in range(sentences):
        digest = hashlib.sha256(f"{ref}#{number}".encode()).digest()
        words = [part[digest[place] % len(part)] for place, part in enumerate((_SUBJECTS, _ACTS, _OBJECTS, _TERMS))]
        lines.append(f"{' '.join(words)}.")
    return "\n".join(lines)
