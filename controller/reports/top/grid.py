# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of which only the visible lines are drawn: a thousand jobs cost no more than twenty."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
Line = list[Segment]
Column = tuple[str, dict[str, Any], Callable[[T], Text]]
"""Header, format, and the cell of an entry. Formats are widths or ratios, so that columns keep their place
while the content scrolls."""


def draw(console: Console, options: ConsoleOptions, what: RenderableType) -> list[Line]:
    """The lines of a renderable, at the width of the options."""
    return console.render_lines(what, options.update(height=None), pad=False)


def one_line(text: str = "", style: str = "") -> Text:
    """Text that ends with the screen instead of going on below."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


class Grid(Generic[T]):
    """A part of the picture: lines of text, or a table in which some lines are text."""

    def __init__(
        self,
        entries: Sequence[T | Text],
        columns: Sequence[Column[T]] = (),
        selected: T | None = None,
    ) -> None:
        self.entries = entries
        self._columns, self._selected = columns, selected
        self.header = 1 if columns else 0
        """Lines above the entries."""
        self.height = self.header + len(entries)

    def lines(self, console: Console, options: ConsoleOptions, start: int, stop: int) -> list[Line]:
        shown = self.entries[max(0, start - self.header) : max(0, stop - self.header)]
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
        for name, how, _ in self._columns:
            table.add_column(name, no_wrap=True, overflow="ellipsis", **how)
        for entry in shown:
            if not isinstance(entry, Text):
                cells = [cell(entry) for _, _, cell in self._columns]
                table.add_row(*cells, style="reverse" if entry is self._selected else None)
        rows = iter(draw(console, options, table) if self._columns else ())
        header = [next(rows) for _ in range(self.header)]
        body = [draw(console, options, one)[0] if isinstance(one, Text) else next(rows) for one in shown]
        return (header if start <= 0 < stop else []) + body
