"""Cutting text into chunks: by size, by sentences or by paragraphs. Offsets are into the text, always."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from lucius.worker import NonRetryable

Span = tuple[int, int]
ChunkBy = Literal["size", "sentences", "paragraphs"]

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*|\f\s*")
# It begins where dots begin, and gives none back: a line of a million dots is looked at once.
_CANDIDATE = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？]+[」』”]*|\n")
_VISIBLE = re.compile(r"\S")
_SPACES = tuple(chr(code) for code in range(0x3001) if chr(code).isspace())
_LIST_ITEM = re.compile(r"[^\S\n]*(?:[-–•*]|\(?\d{1,3}(?:\.\d{1,3})*[.)]|\(?[a-z]\))\s")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|\d{1,3}|(?:\w\.)+\w|approx|art|bzw|ca|cf|co|dr|etc|fig|inc|incl|ltd|max|min|mr|mrs|ms|no"
    r"|nos|nr|p|par|pp|prof|sec|st|str|tel|vgl|vs)$",
    re.IGNORECASE,
)
SHORT_LINE = 0.6
"""A line this much shorter than the longest of its paragraph was ended on purpose: a heading, a row of a table."""
LONGEST_SENTENCE = 2000
"""Characters. What has no end for so long is a table or a log, and is cut between lines or words."""
PAUSE = 1000
"""Sentences between two looks at whether to go on."""


def chunk_spans(
    text: str, by: ChunkBy, size: int, overlap: int, least: int, between: Callable[[], None] = lambda: None
) -> list[Span]:
    """At least one chunk, none longer than `size`; those shorter than `least` are joined to a neighbour.

    Takes time in proportion to the text. `between` is called now and then, and may raise.
    """
    match by:
        case "size":
            spans = list(_by_size((0, len(text)), size, overlap))
        case "sentences":
            spans = _packed(sentence_spans(text, between), size, overlap)
        case "paragraphs":
            spans = [part for span in paragraph_spans(text) for part in _fitting(text, span, size, between)]
    return _no_scraps(spans, size, least) or [(0, len(text))]


def least_chunks(text: str, by: ChunkBy, size: int, overlap: int) -> int:
    """How many chunks there will be at the very least, known before any is cut; by size, exactly so many."""
    if by == "size":
        return -(-max(1, len(text) - overlap) // (size - overlap))
    visible = len(text) - sum(text.count(space) for space in _SPACES)
    return -(-visible // size)


def paragraph_spans(text: str) -> list[Span]:
    """What blank lines and page breaks separate, without the space around it."""
    spans: list[Span] = []
    start = 0
    for gap in _PARAGRAPH_END.finditer(text):
        spans.append((start, gap.start()))
        start = gap.end()
    spans.append((start, len(text)))
    return [span for found in spans if (span := _trimmed(text, found))]


def sentence_spans(text: str, between: Callable[[], None] = lambda: None) -> list[Span]:
    """None longer than LONGEST_SENTENCE. `between` is called now and then, and may raise."""
    spans: list[Span] = []
    for paragraph in paragraph_spans(text):
        spans += _sentences(text, paragraph, between)
    return spans


def _sentences(text: str, paragraph: Span, between: Callable[[], None]) -> Iterator[Span]:
    between()
    for number, span in enumerate(_marked(text, paragraph), start=1):
        if number % PAUSE == 0:
            between()
        yield from _bounded(text, span)


def _bounded(text: str, span: Span) -> Iterator[Span]:
    start, end = span
    while end - start > LONGEST_SENTENCE:
        limit = start + LONGEST_SENTENCE
        places = (text.rfind("\n", start, limit), text.rfind(" ", start, limit), limit)
        cut = next(place for place in places if place > start)
        if part := _trimmed(text, (start, cut)):
            yield part
        start = cut
    if part := _trimmed(text, (start, end)):
        yield part


def _marked(text: str, paragraph: Span) -> Iterator[Span]:
    """What ends where a reader would end a sentence."""
    start, end = paragraph
    longest = max(len(line) for line in text[start:end].split("\n"))
    line_start = start
    for mark in _CANDIDATE.finditer(text, start, end):
        if mark[0] == "\n":
            ends = _ends_line(text, line_start, mark.start(), end, longest)
            line_start = mark.end()
        else:
            ends = _ends_sentence(text, start, mark, end)
        if ends and (span := _trimmed(text, (start, mark.end()))):
            yield span
            start = mark.end()
    if span := _trimmed(text, (start, end)):
        yield span


def _ends_sentence(text: str, start: int, mark: re.Match[str], end: int) -> bool:
    """Not after an abbreviation or an ordinal, and not before a small letter."""
    if mark[0][0] in "。！？":
        return True
    if _goes_on(text, mark.end(), end):
        return False
    word = text[max(start, mark.start() - 12) : mark.start()]
    return not (mark[0][0] == "." and _ABBREVIATION.search(word))


def _ends_line(text: str, line_start: int, line_end: int, end: int, longest: int) -> bool:
    """Whether the line's end is meant, and not only the edge of the paper."""
    if _LIST_ITEM.match(text, line_end + 1, end):
        return True
    return line_end - line_start < SHORT_LINE * longest and not _goes_on(text, line_end + 1, end)


def _goes_on(text: str, place: int, end: int) -> bool:
    """Whether a small letter is next."""
    after = _VISIBLE.search(text, place, end)
    return after is not None and after[0].islower()


def _by_size(span: Span, size: int, overlap: int) -> Iterator[Span]:
    start, end = span
    for place in range(start, max(start + 1, end - overlap), size - overlap):
        yield place, min(end, place + size)


def _fitting(text: str, span: Span, size: int, between: Callable[[], None]) -> Iterable[Span]:
    """The span, or if it is too long its sentences packed, or if they are too long pieces of them."""
    if span[1] - span[0] <= size:
        return [span]
    return _packed(list(_sentences(text, span, between)), size, 0)


def _packed(sentences: list[Span], size: int, overlap: int) -> list[Span]:
    """As many whole sentences as fit; each chunk takes up to `overlap` characters of sentences from the one before."""
    pieces = [piece for span in sentences for piece in _by_size(span, size, 0)]
    chunks: list[Span] = []
    first = 0
    for number in range(1, len(pieces) + 1):
        if number < len(pieces) and pieces[number][1] - pieces[first][0] <= size:
            continue
        chunks.append((pieces[first][0], pieces[number - 1][1]))
        if number < len(pieces):
            first = _shared_from(pieces, first, number, size, overlap)
    return chunks


def _shared_from(pieces: list[Span], first: int, number: int, size: int, overlap: int) -> int:
    """Where the next chunk begins so that it shares what it may, is longer than that, and still fits."""
    begin = first + 1  # from here on: no piece is passed by twice
    earliest = max(pieces[number - 1][1] - overlap, pieces[number][1] - size)
    while begin < number and pieces[begin][0] < earliest:
        begin += 1
    return begin


def _no_scraps(spans: list[Span], size: int, least: int) -> list[Span]:
    """Short chunks are joined to the next, the last to the one before, unless that makes one too long."""
    kept: list[Span] = []
    for span in spans:
        if kept and min(kept[-1][1] - kept[-1][0], span[1] - span[0]) < least and span[1] - kept[-1][0] <= size:
            kept[-1] = (kept[-1][0], span[1])
        else:
            kept.append(span)
    return kept


def _trimmed(text: str, span: Span) -> Span | None:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None


def check_sizes(size: int, overlap: int, least: int) -> None:
    """The orchestrator checks payloads against a schema too; a service does not rely on it."""
    if not 1 <= size <= 1_000_000 or not 0 <= overlap < size or not 0 <= least <= size:
        told = "chunk_size must be 1 to 1,000,000, chunk_overlap below it and min_chunk_size no more than it"
        raise NonRetryable("INVALID_PAYLOAD", told)
