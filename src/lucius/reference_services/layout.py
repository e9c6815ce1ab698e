"""Reading order of the text boxes that an OCR engine found: columns, rows, paragraphs.

A page is split recursively at gaps: vertically between two columns of prose, else horizontally at the widest gap. Parts
that can't be split further are read row by row.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

Point = tuple[float, float]

MIN_PROSE_ASPECT_RATIO = 8.0
"""Boxes this many times as wide as high are prose and may form columns; table cells are shorter."""
MIN_GUTTER_LINES = 1.0
"""Minimum distance of columns, in line heights."""
MIN_PARAGRAPH_GAP_LINES = 0.9
"""Minimum distance of paragraphs in line heights, from the bottom of a line to the top of the next."""


class TextBox(NamedTuple):
    """A piece of text and its bounding rectangle."""

    left: float
    top: float
    right: float
    bottom: float
    text: str

    @property
    def height(self) -> float:
        return self.bottom - self.top

    @property
    def width(self) -> float:
        return self.right - self.left


def estimate_skew(quads: Sequence[Sequence[Point]]) -> float:
    """Estimate the angle by which the page was scanned askew, from the upper edges of its longer lines."""
    angles = [math.atan2(b[1] - a[1], b[0] - a[0]) for a, b, _, d in quads if math.dist(a, b) > 5 * math.dist(a, d)]
    return median(angles) if angles else 0.0


def deskew(quad: Sequence[Point], angle: float, text: str) -> TextBox:
    """Rotate a quadrilateral back by the angle and return its rectangle."""
    turned = [(x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)) for x, y in quad]
    left_x, right_x = (turned[0][0] + turned[3][0]) / 2, (turned[1][0] + turned[2][0]) / 2
    top_y, bottom_y = (turned[0][1] + turned[1][1]) / 2, (turned[2][1] + turned[3][1]) / 2
    return TextBox(min(left_x, right_x), min(top_y, bottom_y), max(left_x, right_x), max(top_y, bottom_y), text)


def text_of(pieces: Sequence[TextBox]) -> str:
    """Join the boxes' text in reading order, with a blank line between paragraphs."""
    lines: list[str] = []
    before: TextBox | None = None
    for row in _reading_order(pieces):
        first = row[0]
        if before and (
            first.top - before.bottom > MIN_PARAGRAPH_GAP_LINES * before.height or first.bottom < before.top
        ):
            lines.append("")  # a gap larger than a line, or the top of the next column
        lines.append(" ".join(piece.text for piece in row))
        before = first
    return "\n".join(lines)


def _reading_order(pieces: Sequence[TextBox]) -> Iterator[list[TextBox]]:
    """Yield rows in reading order. Uses a stack, not recursion: a page may have as many parts as rows."""
    waiting = [list(pieces)] if pieces else []
    while waiting:
        part = waiting.pop()
        halves = _columns(part) or _bands(part)
        if halves is None:
            yield from _rows(part)
        else:
            first, second = halves
            waiting += [second, first]


def _columns(part: list[TextBox]) -> tuple[list[TextBox], list[TextBox]] | None:
    cut = _widest_gap([(piece.left, piece.right) for piece in part])
    if cut is None or cut[0] < MIN_GUTTER_LINES * median(piece.height for piece in part):
        return None
    left = [piece for piece in part if piece.left < cut[1]]
    right = [piece for piece in part if piece.left >= cut[1]]
    return (left, right) if _is_prose(left) and _is_prose(right) else None


def _is_prose(part: list[TextBox]) -> bool:
    return len(part) > 2 and median(piece.width / max(1.0, piece.height) for piece in part) >= MIN_PROSE_ASPECT_RATIO


def _bands(part: list[TextBox]) -> tuple[list[TextBox], list[TextBox]] | None:
    cut = _widest_gap([(piece.top, piece.bottom) for piece in part])
    if cut is None:
        return None
    upper = [piece for piece in part if piece.top < cut[1]]
    return upper, [piece for piece in part if piece.top >= cut[1]]


def _widest_gap(spans: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the width of the widest gap between the spans and where it ends."""
    best: tuple[float, float] | None = None
    spans.sort()
    reach = spans[0][1]
    for start, end in spans[1:]:
        if start - reach > (best[0] if best else 0.0):
            best = (start - reach, start)
        reach = max(reach, end)
    return best


def _rows(block: list[TextBox]) -> list[list[TextBox]]:
    """Group boxes whose centers are at about the same height, each row from left to right."""
    rows: list[list[TextBox]] = []
    for piece in sorted(block, key=lambda piece: piece.top + piece.bottom):
        row = rows[-1] if rows else None
        if row and (piece.top + piece.bottom) / 2 - (row[0].top + row[0].bottom) / 2 < 0.5 * row[0].height:
            row.append(piece)
        else:
            rows.append([piece])
    return [sorted(row) for row in rows]
