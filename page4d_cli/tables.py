"""Tables and labelled lines on standard output.

On a terminal, or if the environment variable COLUMNS states a width, columns without information are left out.
Columns of prose are wrapped in a table that is wider; if that is not enough, it becomes one block per row. Elsewhere,
output does not depend on a terminal: all columns, one row per line, so that scripts can rely on it. Nothing is
truncated, and lines end between words.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from page4d_cli.console import columns_of, given_columns, visible, wrapped

if TYPE_CHECKING:
    from rich.text import Text

_GAP = "  "
_NOTHING = ("", "-")
_LEAST = 16
"""Smallest width of a wrapped column."""


@dataclass(frozen=True)
class Column:
    """Heading and layout of a column.

    `usual` is the text of a cell that carries no information. A column that `wraps` holds prose.
    """

    title: str
    right: bool = False
    usual: str = ""
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """Text of a cell with the name of a colour; `informs` is False if it repeats other cells."""

    text: str
    color: str = ""
    informs: bool = True


Row = Sequence[str | Cell]


def number_columns(first: str, headings: Iterable[str]) -> list[Column]:
    """Return the column of names, and one of numbers per heading."""
    return [Column(first), *(Column(heading, right=True) for heading in headings)]


def print_table(columns: Sequence[Column], rows: Sequence[Row | str], title: str = "") -> None:
    """Print a table whose first column names the rows, followed by an empty line.

    A row that is a text is the heading of the rows below it. Line breaks in cells and headings are kept in a table.
    """
    width = _width()
    cells = [row if isinstance(row, str) else [_shown(cell) for cell in row] for row in rows]
    if width is not None:
        kept = [index for index, column in enumerate(columns) if index == 0 or _informs(column, index, cells)]
        columns = [columns[index] for index in kept]
        cells = [row if isinstance(row, str) else [row[index] for index in kept] for row in cells]
    for line in wrapped(visible(title), width) if title else ():
        _print(_text(line, "bold"))
    for text in _laid_out(columns, cells, width):
        text.rstrip()
        _print(text)
    _print(_text(""))


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print labelled lines; on a terminal long ones continue below their text."""
    for line in _fields([(label, Cell(visible(text))) for label, text in fields], "", _width()):
        line.rstrip()
        _print(line)


def _width() -> int | None:
    """Return the width of tables; None if they are written neither to a terminal nor for a stated width."""
    return columns_of(sys.stdout) or given_columns()


def _shown(cell: str | Cell) -> Cell:
    cell = Cell(cell) if isinstance(cell, str) else cell
    return Cell("\n".join(map(visible, cell.text.split("\n"))), cell.color, cell.informs)


def _text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style)


def _informs(column: Column, index: int, rows: Sequence[Sequence[Cell] | str]) -> bool:
    """Return whether a cell of the column carries information."""
    cells = [row[index] for row in rows if not isinstance(row, str)]
    return any(cell.informs and cell.text not in (*_NOTHING, column.usual) for cell in cells)


def _laid_out(columns: Sequence[Column], rows: Sequence[Sequence[Cell] | str], width: int | None) -> Iterator["Text"]:
    """Yield the lines of a table, with narrow gaps and wrapped prose if necessary, or of blocks."""
    for gap in ("  ", " "):
        room = None if width is None else width - len(gap) * (len(columns) - 1)
        widths = _fitted(columns, rows, room)
        if widths is not None:
            return _table(columns, rows, widths, gap)
    return _blocks(columns, rows, width)


def _fitted(columns: Sequence[Column], rows: Sequence[Sequence[Cell] | str], room: int | None) -> list[int] | None:
    """Return the widths of the columns, those of prose and of names narrowed to fit; None if they do not fit."""
    from rich.cells import cell_len

    cells = [[Cell(column.title) for column in columns], *(row for row in rows if not isinstance(row, str))]
    texts = [[row[index].text for row in cells] for index in range(len(columns))]
    widths = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
    if room is None:
        return widths
    words = [max((cell_len(word) for text in column for word in text.split()), default=0) for column in texts]
    while sum(widths) > room:
        narrowable = [i for i, column in enumerate(columns) if column.wraps and widths[i] > max(words[i], _LEAST)]
        if not narrowable:
            widths[0] = min(widths[0], max(room - sum(widths[1:]), _LEAST))
            return widths if sum(widths) <= room else None
        widths[max(narrowable, key=widths.__getitem__)] -= 1
    return widths


def _table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell] | str], widths: Sequence[int], gap: str
) -> Iterator["Text"]:
    """Yield the lines of a table with aligned columns; headings of several lines end at the bottom."""
    headings = [_lines(column.title, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headings))
    lifted = [[""] * (height - len(heading)) + heading for heading in headings]
    yield from _aligned(columns, [Cell("\n".join(heading)) for heading in lifted], widths, gap)
    yield _text(gap.join("-" * width for width in widths))
    for row in rows:
        if isinstance(row, str):
            yield _text(visible(row), "bold")
        else:
            yield from _aligned(columns, row, widths, gap)


def _aligned(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], gap: str) -> Iterator["Text"]:
    """Yield the lines of one row; a name that is wider than its column has a line of its own."""
    if _text(row[0].text).cell_len > widths[0] and not columns[0].wraps:
        yield _text(row[0].text, row[0].color)
        row = [Cell(""), *row[1:]]
    stacks = [_lines(cell.text, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*stacks, fillvalue=""):
        line = _text("")
        for column, cell, part, width in zip(columns, row, parts, widths, strict=True):
            text = _text(part, cell.color)
            space = " " * (width - text.cell_len)
            line = line + (space if column.right else "") + text + ("" if column.right else space) + gap
        yield line


def _blocks(columns: Sequence[Column], rows: Sequence[Sequence[Cell] | str], width: int | None) -> Iterator["Text"]:
    """Yield one block per row: the name, then one line per cell with information."""
    names = [" ".join(column.title.replace("-\n", "").split()) for column in columns]
    for row in rows:
        if isinstance(row, str):
            yield _text(visible(row), "bold")
            continue
        yield from (_text(line, "bold") for line in _lines(row[0].text or names[0], width))
        fields = [(name, cell) for name, cell in zip(names, row, strict=True) if cell.text not in _NOTHING]
        yield from _fields(fields[1:] if row[0].text not in _NOTHING else fields, _GAP, width)


def _fields(fields: Sequence[tuple[str, Cell]], indent: str, width: int | None) -> Iterator["Text"]:
    """Yield labelled lines with their texts aligned; long ones continue below."""
    label_width = max((len(label) for label, _ in fields), default=0)
    start = len(indent) + label_width + len(_GAP)
    for label, cell in fields:
        for line in _lines(cell.text, None if width is None else max(width - start, 1)):
            yield _text(f"{indent}{label:<{label_width}}{_GAP}") + _text(line, cell.color)
            label = ""


def _lines(text: str, width: int | None) -> list[str]:
    """Break the lines of a text between words."""
    return [part for line in text.split("\n") for part in wrapped(line, width)]


def _print(line: "Text") -> None:
    from rich.console import Console

    Console(soft_wrap=True, highlight=False, emoji=False).print(line)
