"""Rebuilds a document's sentences from its chunks, each with the heading above it."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct

from lucius.reference_services.chunking import Span, sentence_spans
from lucius.reference_services.pages import PAGE_BREAK, PageSpan
from lucius.reference_services.vectors import Chunk

_HEADING = re.compile(r"(?:\d{1,3}(?:\.\d{1,3})*[.)]?\s+)?[^\d.!?:;]{1,60}")


class Sentence(Struct, frozen=True):
    text: str
    offset: int
    """Offset in the document."""
    heading: str = ""

    @property
    def in_context(self) -> str:
        return f"{self.heading}: {self.text}" if self.heading else self.text


def sentences_by_chunk(
    chunks: Sequence[Chunk], pages: Sequence[PageSpan], checkpoint: Callable[[], None] = lambda: None
) -> list[list[Sentence]]:
    """Return the whole sentences of each chunk, although a chunk may begin or end inside one.

    `checkpoint` may raise to abort.
    """
    text = _document(chunks, pages)
    if text is None:
        return [_sentences(chunk.text, sentence_spans(chunk.text, checkpoint), chunk.start) for chunk in chunks]
    sentences = _sentences(text, sentence_spans(text, checkpoint), 0)
    starts = [sentence.offset for sentence in sentences]
    ends = [sentence.offset + len(sentence.text) for sentence in sentences]
    return [sentences[bisect_right(ends, chunk.start) : bisect_left(starts, chunk.end)] for chunk in chunks]


def _sentences(text: str, spans: list[Span], base: int) -> list[Sentence]:
    """Return sentences with their headings; a heading counts as a sentence only if no text follows it."""
    found: list[Sentence] = []
    heading = pending = None
    for start, end in spans:
        sentence = Sentence(" ".join(text[start:end].split()), base + start)
        if _HEADING.fullmatch(sentence.text):
            if pending:
                found.append(pending)
            heading = pending = sentence
        else:
            found.append(Sentence(sentence.text, sentence.offset, heading.text if heading else ""))
            pending = None
    return [*found, pending] if pending else found


def _document(chunks: Sequence[Chunk], pages: Sequence[PageSpan]) -> str | None:
    """Rebuild the text from its chunks; return None if their offsets are inconsistent."""
    size = sum(len(chunk.text) for chunk in chunks)
    if any(chunk.start < 0 or chunk.end - chunk.start != len(chunk.text) or chunk.end > 2 * size for chunk in chunks):
        return None
    text = ["\n"] * max((chunk.end for chunk in chunks), default=0)
    for page in pages:
        if 0 <= page.end < len(text):
            text[page.end] = PAGE_BREAK
    for chunk in chunks:
        text[chunk.start : chunk.end] = chunk.text
    return "".join(text)
