"""Tables that fit any width: columns without room go to further rows, and no cell is cut."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP_COLUMNS = 2
INDENT_COLUMNS = 4
MIN_LAST_COLUMNS = 24


class Row(Protocol):
    """Cells under their heads, and notes below them that span the whole width."""

    @property
    def cells(self) -> Sequence[Text]: ...

    @property
    def notes(self) -> Sequence[Text]: ...


class Listing:
    """Lines under their heads. Only the last column wraps, between words, unless a cell is wider than the terminal."""

    def __init__(self, heads: Sequence[str], lines: Sequence[Row]) -> None:
        self._heads = [Text(head, style="bold") for head in heads]
        self._lines = lines
        columns = [[head, *(line.cells[i] for line in lines)] for i, head in enumerate(self._heads)]
        self._widths = [max(cell.cell_len for cell in column) for column in columns]
        words = [len(word) for cell in columns[-1] for word in cell.plain.split()]
        self._last_width = max(min(self._widths[-1], MIN_LAST_COLUMNS), *words)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = self._pack(options.max_width)
        yield from self._rows(self._heads, rows, options.max_width)
        for line in self._lines:
            if any(line.cells):
                yield from self._rows(line.cells, rows, options.max_width)
            yield from (Padding(note, (0, 0, 0, INDENT_COLUMNS), expand=False) for note in line.notes if note)

    def _pack(self, width: int) -> list[list[int]]:
        """Return the columns of each row: as many as fit, in their order."""
        rows: list[list[int]] = [[]]
        used = 0
        for column, natural in enumerate(self._widths):
            needed = self._last_width if column == len(self._widths) - 1 else natural
            room = width - (INDENT_COLUMNS if len(rows) > 1 else 0)
            if rows[-1] and used + GAP_COLUMNS + needed > room:
                rows.append([])
                used = 0
            used += needed + (GAP_COLUMNS if rows[-1] else 0)
            rows[-1].append(column)
        return rows

    def _rows(self, cells: Sequence[Text], rows: Sequence[Sequence[int]], width: int) -> Iterator[RenderableType]:
        for number, row in enumerate(rows):
            if any(cells[column] for column in row):
                indent = INDENT_COLUMNS if number else 0
                yield Padding(self._row(cells, row, width - indent), (0, 0, 0, indent), expand=False)

    def _row(self, cells: Sequence[Text], row: Sequence[int], width: int) -> Table:
        made = Table.grid(padding=(0, GAP_COLUMNS, 0, 0))
        for column in row[:-1]:
            made.add_column(width=self._widths[column], no_wrap=True, overflow="fold")
        made.add_column(overflow="fold")
        made.add_row(*(cells[column] for column in row))
        return made
