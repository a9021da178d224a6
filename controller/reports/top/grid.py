# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of which only the visible lines are drawn: a thousand jobs cost no more than twenty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
Line = list[Segment]


def draw(console: Console, options: ConsoleOptions, what: RenderableType) -> list[Line]:
    """The lines of a renderable, at the width of the options."""
    return console.render_lines(what, options.update(height=None), pad=False)


def new_table(*columns: tuple[str, dict[str, object]]) -> Table:
    """A table without borders whose rows are one line each. Columns have widths or ratios, so that they keep
    their place while the content scrolls."""
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for header, how in columns:
        table.add_column(header, no_wrap=True, overflow="ellipsis", **how)  # type: ignore[arg-type]
    return table


class Block(Protocol):
    """A part of the picture that can draw some of its lines."""

    @property
    def height(self) -> int:
        """Lines in all."""
        ...

    def lines(self, console: Console, options: ConsoleOptions, start: int, stop: int) -> list[Line]:
        """The lines from `start` up to `stop`."""
        ...


class Grid(Generic[T]):
    """A header, one line per item, and for some items a line above or below it."""

    def __init__(
        self,
        items: Sequence[T],
        table: Callable[[Sequence[T]], Table],
        below: Callable[[T], Text | None] = lambda _item: None,
        above: Callable[[T], Text | None] = lambda _item: None,
    ) -> None:
        """`table` makes the table of the items it is given; `above` and `below` other lines of an item."""
        self._table = table
        self._owners: list[tuple[T, Text | None]] = []
        self.line_of: list[int] = []
        """The line of each item; line 0 is the header."""
        for item in items:
            first, second = above(item), below(item)
            if first is not None:
                self._owners.append((item, first))
            self.line_of.append(len(self._owners) + 1)
            self._owners.append((item, None))
            if second is not None:
                self._owners.append((item, second))

    @property
    def height(self) -> int:
        """Lines in all."""
        return 1 + len(self._owners)

    def lines(self, console: Console, options: ConsoleOptions, start: int, stop: int) -> list[Line]:
        """The lines from `start` up to `stop`; line 0 is the header."""
        shown = self._owners[max(0, start - 1) : max(0, stop - 1)]
        own = [item for item, extra in shown if extra is None]
        header, *rows = draw(console, options, self._table(own))
        lines = [header] if start <= 0 < stop else []
        remaining = iter(rows)
        for _, extra in shown:
            lines.append(next(remaining) if extra is None else draw(console, options, extra)[0])
        return lines


class TextBlock:
    """Fixed lines among grids."""

    def __init__(self, text: Text) -> None:
        self._text = text

    @property
    def height(self) -> int:
        """Lines in all."""
        return 1 + self._text.plain.count("\n")

    def lines(self, console: Console, options: ConsoleOptions, start: int, stop: int) -> list[Line]:
        """The lines from `start` up to `stop`."""
        return draw(console, options, self._text)[max(0, start) : max(0, stop)]
