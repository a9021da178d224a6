# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables that benchmarks write into pages of `docs/`, each between two marks."""

from collections.abc import Iterable
from pathlib import Path


def put_table(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Put these lines between the marks. Raises ValueError where the page does not have each mark once."""
    before, rest = page.read_text(encoding="utf-8").split(begin)
    _, after = rest.split(end)
    page.write_text("\n".join([before + begin, *lines, end + after]), encoding="utf-8")
