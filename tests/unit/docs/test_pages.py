# SPDX-License-Identifier: GPL-2.0-or-later
"""The pages for readers: links and anchors lead somewhere, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("container/**/*.md")])
LINK = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"')


def prose(page: Path) -> str:
    """The page without its code, in which nothing is a link."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def links(page: Path) -> list[str]:
    return [a or b for a, b in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))]


def anchors(page: Path) -> set[str]:
    """What a renderer makes of the headings: lower case, hyphens for blanks, no other punctuation."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
    return found


def dead(page: Path) -> list[str]:
    """Links of this page to files or anchors that are not there."""
    found = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        known = target.exists() and target.is_relative_to(ROOT)
        if not known or (anchor and (target.suffix != ".md" or anchor not in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead(page) == []


def test_dead_links_are_seen(tmp_path: Path) -> None:
    page = ROOT / "docs" / "reports.md"
    assert "gandiva-top" in anchors(page) and "gandiva-nothing" not in anchors(page)
    assert anchors(ROOT / "docs" / "check.md") == {"examining-an-installation-gandiva-check"}
    elsewhere = tmp_path / "page.md"
    elsewhere.write_text("# B\n[1](page.md) [2](#a) `[3](x.md)`\n\n    [4](x.md)\n")
    assert links(elsewhere) == ["page.md", "#a"]
    assert dead(elsewhere) == ["page.md", "#a"], "outside the repository"


def test_every_page_can_be_reached_from_the_first() -> None:
    seen = {ROOT / "README.md"}
    new = set(seen)
    while new:
        page = new.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in seen:
                seen.add(target)
                new.add(target)
    assert [str(p.relative_to(ROOT)) for p in PAGES if p not in seen] == []


def test_commands_of_make_in_the_pages_are_there() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page.name, target)
        for page in PAGES
        if page.parent in (ROOT, ROOT / "docs")
        for target in re.findall(r"(?:`|^    )make ([a-z][\w-]*)", page.read_text(), re.MULTILINE)
    }
    assert len(named) > 10
    assert {(page, target) for page, target in named if target not in targets} == set()


def test_tables_have_as_many_cells_in_each_row() -> None:
    wrong = []
    for page in PAGES:
        cells = 0
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if not line.startswith("|"):
                cells = 0
                continue
            here = len(re.split(r"(?<!\\)\|", line.strip()))
            cells = cells or here
            if here != cells:
                wrong.append(f"{page.name}:{number}")
    assert wrong == []


def test_the_architecture_names_every_module_of_the_controller() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [m.name for m in (ROOT / "controller").glob("*.py") if m.name != "__init__.py"]
    folders = [f"{f.name}/" for f in (ROOT / "controller").iterdir() if (f / "__init__.py").exists()]
    assert [name for name in modules + folders if f"`{name}`" not in text and f"/{name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_of_prose_is_wider_than_a_terminal(page: Path) -> None:
    lines = (line for line in prose(page).splitlines() if not line.lstrip().startswith(("|", "<")))
    assert [line for line in lines if len(line) > 100 and " " in line.strip()] == []
