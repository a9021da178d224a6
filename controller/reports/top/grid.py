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
        columns: Sequence[tuple[str, dict[str, Any]]] = (),
        row: Callable[[T], Sequence[Text]] = lambda _: (),
        selected: T | None = None,
    ) -> None:
        """`columns`: header and format of each; widths or ratios, so that they keep their place while the
        content scrolls. `row`: the cells of an entry that is not text."""
        self.entries = entries
        self._columns, self._row, self._selected = columns, row, selected
        self.header = 1 if columns else 0
        """Lines above the entries."""
        self.height = self.header + len(entries)

    def lines(self, console: Console, options: ConsoleOptions, start: int, stop: int) -> list[Line]:
        shown = self.entries[max(0, start - self.header) : max(0, stop - self.header)]
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
        for name, how in self._columns:
            table.add_column(name, no_wrap=True, overflow="ellipsis", **how)
        for entry in shown:
            if not isinstance(entry, Text):
                table.add_row(*self._row(entry), style="reverse" if entry is self._selected else None)
        rows = iter(draw(console, options, table) if self._columns else ())
        header = [next(rows) for _ in range(self.header)]
        body = [draw(console, options, one)[0] if isinstance(one, Text) else next(rows) for one in shown]
        return (header if start <= 0 < stop else []) + body
