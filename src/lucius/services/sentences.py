"""The sentences of a document, put together again from its chunks, each with the heading it stands under."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct

from lucius.services.chunking import Span, sentence_spans
from lucius.services.pages import PAGE_BREAK, PageSpan
from lucius.services.vectors import Chunk

_HEADING = re.compile(r"(?:\d{1,3}(?:\.\d{1,3})*[.)]?\s+)?[^\d.!?:;]{1,60}")


class Sentence(Struct, frozen=True):
    text: str
    place: int
    """In the document."""
    heading: str = ""

    @property
    def in_context(self) -> str:
        return f"{self.heading}: {self.text}" if self.heading else self.text


def sentences_by_chunk(
    chunks: Sequence[Chunk], pages: Sequence[PageSpan], between: Callable[[], None] = lambda: None
) -> list[list[Sentence]]:
    """Of each chunk; whole ones, although a chunk may begin or end inside of one. `between` may raise."""
    text = _document(chunks, pages)
    if text is None:
        return [_sentences(chunk.text, sentence_spans(chunk.text, between), chunk.start) for chunk in chunks]
    sentences = _sentences(text, sentence_spans(text, between), 0)
    starts = [sentence.place for sentence in sentences]
    ends = [sentence.place + len(sentence.text) for sentence in sentences]
    return [sentences[bisect_right(ends, chunk.start) : bisect_left(starts, chunk.end)] for chunk in chunks]


def _sentences(text: str, spans: list[Span], offset: int) -> list[Sentence]:
    """A heading answers nothing by itself, unless nothing stands under it."""
    found: list[Sentence] = []
    heading = waiting = None
    for start, end in spans:
        said = Sentence(" ".join(text[start:end].split()), offset + start)
        if _HEADING.fullmatch(said.text):
            if waiting:
                found.append(waiting)
            heading = waiting = said
        else:
            found.append(Sentence(said.text, said.place, heading.text if heading else ""))
            waiting = None
    return [*found, waiting] if waiting else found


def _document(chunks: Sequence[Chunk], pages: Sequence[PageSpan]) -> str | None:
    """The text that the chunks were cut from; None if what they say of their places can't be."""
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
