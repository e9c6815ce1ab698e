"""Lines of text from the places where an OCR engine saw pieces of it: columns, rows, paragraphs.

A page is cut where a gap runs through it: from top to bottom between two columns of prose, else from side to side at
the widest gap. What can be cut no more is read row by row.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

Point = tuple[float, float]

PROSE = 8.0
"""Lines this many times as wide as high are prose, and may stand in columns; the cells of a table are shorter."""
GUTTER = 1.0
"""Columns are at least this many line heights apart."""
PARAGRAPH = 0.9
"""So are paragraphs, from the foot of a line to the head of the next."""


class Piece(NamedTuple):
    """Text and the rectangle around it."""

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


def slant(quads: Sequence[Sequence[Point]]) -> float:
    """The angle by which the page was scanned askew, from the upper edges of its longer lines."""
    angles = [math.atan2(b[1] - a[1], b[0] - a[0]) for a, b, _, d in quads if math.dist(a, b) > 5 * math.dist(a, d)]
    return median(angles) if angles else 0.0


def upright(quad: Sequence[Point], angle: float, text: str) -> Piece:
    """The rectangle of a box on the page turned back by the angle."""
    turned = [(x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)) for x, y in quad]
    left_x, right_x = (turned[0][0] + turned[3][0]) / 2, (turned[1][0] + turned[2][0]) / 2
    top_y, bottom_y = (turned[0][1] + turned[1][1]) / 2, (turned[2][1] + turned[3][1]) / 2
    return Piece(min(left_x, right_x), min(top_y, bottom_y), max(left_x, right_x), max(top_y, bottom_y), text)


def text_of(pieces: Sequence[Piece]) -> str:
    """The pieces' text in reading order, a blank line between paragraphs."""
    lines: list[str] = []
    before: Piece | None = None
    for row in _reading_order(pieces):
        first = row[0]
        if before and (first.top - before.bottom > PARAGRAPH * before.height or first.bottom < before.top):
            lines.append("")  # further down than the next line, or up again in the next column
        lines.append(" ".join(piece.text for piece in row))
        before = first
    return "\n".join(lines)


def _reading_order(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Row by row. A stack and no recursion: a page may have as many parts as it has rows."""
    waiting = [list(pieces)] if pieces else []
    while waiting:
        part = waiting.pop()
        halves = _columns(part) or _bands(part)
        if halves is None:
            yield from _rows(part)
        else:
            first, second = halves
            waiting += [second, first]


def _columns(part: list[Piece]) -> tuple[list[Piece], list[Piece]] | None:
    cut = _widest_gap([(piece.left, piece.right) for piece in part])
    if cut is None or cut[0] < GUTTER * median(piece.height for piece in part):
        return None
    left = [piece for piece in part if piece.left < cut[1]]
    right = [piece for piece in part if piece.left >= cut[1]]
    return (left, right) if _is_prose(left) and _is_prose(right) else None


def _is_prose(part: list[Piece]) -> bool:
    return len(part) > 2 and median(piece.width / max(1.0, piece.height) for piece in part) >= PROSE


def _bands(part: list[Piece]) -> tuple[list[Piece], list[Piece]] | None:
    cut = _widest_gap([(piece.top, piece.bottom) for piece in part])
    if cut is None:
        return None
    upper = [piece for piece in part if piece.top < cut[1]]
    return upper, [piece for piece in part if piece.top >= cut[1]]


def _widest_gap(spans: list[tuple[float, float]]) -> tuple[float, float] | None:
    """How wide the widest gap between the spans is, and where it ends."""
    best: tuple[float, float] | None = None
    spans.sort()
    reach = spans[0][1]
    for start, end in spans[1:]:
        if start - reach > (best[0] if best else 0.0):
            best = (start - reach, start)
        reach = max(reach, end)
    return best


def _rows(block: list[Piece]) -> list[list[Piece]]:
    """Pieces whose middles are at about the same height, from left to right."""
    rows: list[list[Piece]] = []
    for piece in sorted(block, key=lambda piece: piece.top + piece.bottom):
        row = rows[-1] if rows else None
        if row and (piece.top + piece.bottom) / 2 - (row[0].top + row[0].bottom) / 2 < 0.5 * row[0].height:
            row.append(piece)
        else:
            rows.append([piece])
    return [sorted(row) for row in rows]
