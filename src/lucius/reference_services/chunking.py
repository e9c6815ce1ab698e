"""Splits text into chunks by size, by sentences or by paragraphs. Offsets always refer to the original text."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from lucius.worker import NonRetryable

Span = tuple[int, int]
ChunkBy = Literal["size", "sentences", "paragraphs"]

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*|\f\s*")
# Starts at the first dot of a run and never backtracks: a line of a million dots is scanned once.
_CANDIDATE = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？]+[」』”]*|\n")
_VISIBLE = re.compile(r"\S")
_SPACES = tuple(chr(code) for code in range(0x3001) if chr(code).isspace())
_LIST_ITEM = re.compile(r"[^\S\n]*(?:[-–•*]|\(?\d{1,3}(?:\.\d{1,3})*[.)]|\(?[a-z]\))\s")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|\d{1,3}|(?:\w\.)+\w|approx|art|bzw|ca|cf|co|dr|etc|fig|inc|incl|ltd|max|min|mr|mrs|ms|no"
    r"|nos|nr|p|par|pp|prof|sec|st|str|tel|vgl|vs)$",
    re.IGNORECASE,
)
SHORT_LINE_RATIO = 0.6
"""A line below this share of its paragraph's longest line was ended on purpose: a heading, a table row."""
MAX_SENTENCE_CHARS = 2000
"""A longer run without an end of sentence is a table or a log, and is cut between lines or words."""
SENTENCES_PER_CHECKPOINT = 1000
"""Sentences between two calls of `checkpoint`."""


def chunk_spans(
    text: str, by: ChunkBy, size: int, overlap: int, min_size: int, checkpoint: Callable[[], None] = lambda: None
) -> list[Span]:
    """Return the spans of at least one chunk, none longer than `size`; chunks shorter than `min_size` are joined.

    Runs in time linear in the text. `checkpoint` is called from time to time and may raise to abort.
    """
    match by:
        case "size":
            spans = list(_by_size((0, len(text)), size, overlap))
        case "sentences":
            spans = _pack(sentence_spans(text, checkpoint), size, overlap)
        case "paragraphs":
            spans = [part for span in paragraph_spans(text) for part in _split_to_size(text, span, size, checkpoint)]
    return _join_short(spans, size, min_size) or [(0, len(text))]


def min_chunk_count(text: str, by: ChunkBy, size: int, overlap: int) -> int:
    """Compute a lower bound on the number of chunks before splitting; exact if split by size."""
    if by == "size":
        return -(-max(1, len(text) - overlap) // (size - overlap))
    visible = len(text) - sum(text.count(space) for space in _SPACES)
    return -(-visible // size)


def paragraph_spans(text: str) -> list[Span]:
    """Return the spans between blank lines and page breaks, without surrounding white space."""
    spans: list[Span] = []
    start = 0
    for gap in _PARAGRAPH_END.finditer(text):
        spans.append((start, gap.start()))
        start = gap.end()
    spans.append((start, len(text)))
    return [span for found in spans if (span := _trim(text, found))]


def sentence_spans(text: str, checkpoint: Callable[[], None] = lambda: None) -> list[Span]:
    """Return the spans of sentences, none longer than MAX_SENTENCE_CHARS. `checkpoint` may raise to abort."""
    spans: list[Span] = []
    for paragraph in paragraph_spans(text):
        spans += _sentences(text, paragraph, checkpoint)
    return spans


def _sentences(text: str, paragraph: Span, checkpoint: Callable[[], None]) -> Iterator[Span]:
    checkpoint()
    for number, span in enumerate(split_at_marks(text, paragraph), start=1):
        if number % SENTENCES_PER_CHECKPOINT == 0:
            checkpoint()
        yield from _split_long(text, span)


def _split_long(text: str, span: Span) -> Iterator[Span]:
    start, end = span
    while end - start > MAX_SENTENCE_CHARS:
        limit = start + MAX_SENTENCE_CHARS
        places = (text.rfind("\n", start, limit), text.rfind(" ", start, limit), limit)
        cut = next(offset for offset in places if offset > start)
        if part := _trim(text, (start, cut)):
            yield part
        start = cut
    if part := _trim(text, (start, end)):
        yield part


def split_at_marks(text: str, paragraph: Span) -> Iterator[Span]:
    """Split a paragraph at punctuation and line ends that end a sentence."""
    start, end = paragraph
    longest = max(len(line) for line in text[start:end].split("\n"))
    line_start = start
    for mark in _CANDIDATE.finditer(text, start, end):
        if mark[0] == "\n":
            ends = _ends_line(text, line_start, mark.start(), end, longest)
            line_start = mark.end()
        else:
            ends = _ends_sentence(text, start, mark, end)
        if ends and (span := _trim(text, (start, mark.end()))):
            yield span
            start = mark.end()
    if span := _trim(text, (start, end)):
        yield span


def _ends_sentence(text: str, start: int, mark: re.Match[str], end: int) -> bool:
    """Return False after an abbreviation or an ordinal, and before a lower-case letter."""
    if mark[0][0] in "。！？":
        return True
    if _is_lowercase_next(text, mark.end(), end):
        return False
    word = text[max(start, mark.start() - 12) : mark.start()]
    return not (mark[0][0] == "." and _ABBREVIATION.search(word))


def _ends_line(text: str, line_start: int, line_end: int, end: int, longest: int) -> bool:
    """Return whether the line was ended on purpose rather than wrapped."""
    if _LIST_ITEM.match(text, line_end + 1, end):
        return True
    return line_end - line_start < SHORT_LINE_RATIO * longest and not _is_lowercase_next(text, line_end + 1, end)


def _is_lowercase_next(text: str, offset: int, end: int) -> bool:
    """Return whether the next visible character is a lower-case letter."""
    after = _VISIBLE.search(text, offset, end)
    return after is not None and after[0].islower()


def _by_size(span: Span, size: int, overlap: int) -> Iterator[Span]:
    start, end = span
    for offset in range(start, max(start + 1, end - overlap), size - overlap):
        yield offset, min(end, offset + size)


def _split_to_size(text: str, span: Span, size: int, checkpoint: Callable[[], None]) -> Iterable[Span]:
    """Return the span, or if it is too long its sentences packed into chunks, splitting sentences that are too long."""
    if span[1] - span[0] <= size:
        return [span]
    return _pack(list(_sentences(text, span, checkpoint)), size, 0)


def _pack(sentences: list[Span], size: int, overlap: int) -> list[Span]:
    """Pack whole sentences into chunks; each repeats up to `overlap` characters of sentences of the previous one."""
    pieces = [piece for span in sentences for piece in _by_size(span, size, 0)]
    chunks: list[Span] = []
    first = 0
    for number in range(1, len(pieces) + 1):
        if number < len(pieces) and pieces[number][1] - pieces[first][0] <= size:
            continue
        chunks.append((pieces[first][0], pieces[number - 1][1]))
        if number < len(pieces):
            first = _next_first(pieces, first, number, size, overlap)
    return chunks


def _next_first(pieces: list[Span], first: int, number: int, size: int, overlap: int) -> int:
    """Return the first piece of the next chunk: it repeats at most `overlap`, adds a new piece, and fits `size`."""
    begin = first + 1  # never before this piece, so that packing stays linear
    earliest = max(pieces[number - 1][1] - overlap, pieces[number][1] - size)
    while begin < number and pieces[begin][0] < earliest:
        begin += 1
    return begin


def _join_short(spans: list[Span], size: int, min_size: int) -> list[Span]:
    """Join chunks shorter than `min_size` to a neighbour unless the result would exceed `size`."""
    kept: list[Span] = []
    for span in spans:
        if kept and min(kept[-1][1] - kept[-1][0], span[1] - span[0]) < min_size and span[1] - kept[-1][0] <= size:
            kept[-1] = (kept[-1][0], span[1])
        else:
            kept.append(span)
    return kept


def _trim(text: str, span: Span) -> Span | None:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None


def check_sizes(size: int, overlap: int, min_size: int) -> None:
    """Raise NonRetryable if the sizes contradict each other; do not rely on the orchestrator's schema check."""
    if not 1 <= size <= 1_000_000 or not 0 <= overlap < size or not 0 <= min_size <= size:
        message = "chunk_size must be 1 to 1,000,000, chunk_overlap below it and min_chunk_size no more than it"
        raise NonRetryable("INVALID_PAYLOAD", message)
