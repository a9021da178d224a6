# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for the shape of the code: sizes, the one way of imports, and words that stand for no design.

Each test lists everything that it finds.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator

import pytest

from tests.unit.structure.sources import ROOT, Module, cycles, modules

MOST_LINES = 400
MEDIAN_LINES = 107
ALL_LINES = 46_700
"""Of them 4,100 are for `gandiva run`."""

ROOMS = (
    ("gandiva",),
    ("checkpointing",),
    ("controller.errors",),
    ("controller.model",),
    ("controller.settings.base", "controller.settings.places"),
    ("controller.cluster", "controller.solver"),
    ("controller.slurm_config",),
    ("controller.nodes",),
    ("controller.agent",),
    ("controller.journal",),
    ("controller.policies",),
    ("controller.settings",),
    ("controller.observe",),
    ("controller.act",),
    ("controller.loop",),
    ("controller.simulation",),
    ("controller.api",),
    ("controller.reports",),
    ("controller.checks",),
    ("controller.daemon",),
    ("controller.run",),
    ("controller.cli",),
    ("container",),
)
"""From the lowest to the highest: a room imports itself and lower ones. Rooms in one line do not import each
other."""

OF_THE_AGENT = (
    "controller.agent",
    "controller.nodes.protocol",
    "controller.nodes.installed",
    "checkpointing",
    "gandiva",
)
"""What the agent may import. The version, `controller.__version__`, besides."""

WORDS = frozenset({"partial", "concurrent", "keeps_jobs", "keeps_steps", "told", "untold", "reads_accrual"})
"""Names that stood for "if simulated"."""
ASSEMBLY = frozenset({"controller.daemon.daemon"})


@pytest.fixture(scope="module")
def known() -> dict[str, Module]:
    return modules()


@pytest.fixture(scope="module")
def controller(known: dict[str, Module]) -> dict[str, Module]:
    return {name: module for name, module in known.items() if name.split(".")[0] == "controller"}


def test_modules_are_small(known: dict[str, Module], controller: dict[str, Module]) -> None:
    product = {name: module.lines for name, module in known.items() if not _within(name, "container")}
    assert {name: count for name, count in product.items() if count > MOST_LINES} == {}
    lines = {name: module.lines for name, module in controller.items()}
    median = statistics.median(lines[n] for n, m in controller.items() if m.path.name != "__init__.py")
    assert median <= MEDIAN_LINES
    altogether = sum(lines.values())
    assert altogether < ALL_LINES


def test_no_modules_import_each_other(known: dict[str, Module]) -> None:
    assert cycles(known) == []


def test_imports_go_one_way(known: dict[str, Module]) -> None:
    upward = set()
    for name, module in known.items():
        rank, room = _room(name)
        for to, line in module.imports(known):
            if to == "controller":
                continue  # the version
            other_rank, other = _room(to)
            if other_rank > rank or (other_rank == rank and other != room):
                upward.add(f"{name}:{line} imports {to}")
    assert not upward, "\n".join(sorted(upward))


def test_every_room_is_there(known: dict[str, Module]) -> None:
    for rooms in ROOMS:
        for room in rooms:
            assert room in known, f"{room} is in ROOMS, but not in the tree"


def test_nothing_lies_loose(controller: dict[str, Module]) -> None:
    loose = [m.path.name for n, m in controller.items() if n.count(".") == 1 and m.path.name != "__init__.py"]
    assert loose == ["errors.py"]


def test_the_agent_shares_the_protocol_and_what_checks_look_at(known: dict[str, Module]) -> None:
    found = set()
    for name, module in known.items():
        if not _within(name, "controller.agent"):
            continue
        for to, line in module.imports(known):
            if to != "controller" and not any(_within(to, allowed) for allowed in OF_THE_AGENT):
                found.add(f"{name}:{line} imports {to}")
    assert not found, "\n".join(sorted(found))


def test_nothing_asks_whether_it_is_simulated(controller: dict[str, Module]) -> None:
    found = []
    for name, module in controller.items():
        for word, line in _names(module.tree):
            if word in WORDS or not WORDS.isdisjoint(word.split("_")):
                found.append(f"{name}:{line}: {word}")
        if name not in ASSEMBLY:
            found += [f"{name}:{line}: isinstance(…, Journal)" for line in _asks_for_journal(module.tree)]
    assert not found, "\n".join(found)


def _within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def _room(name: str) -> tuple[int, str]:
    """Rank and name of the room that a module is in: the innermost."""
    found = [(rank, r) for rank, rooms in enumerate(ROOMS) for r in rooms if _within(name, r)]
    assert found or name == "controller", f"{name} is in no room"
    return max(found, key=lambda each: len(each[1]), default=(-1, ""))


def _names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names that the code gives to things or reaches them by, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.Name():
                yield node.id, node.lineno
            case ast.Attribute():
                yield node.attr, node.lineno
            case ast.arg() | ast.keyword() if node.arg:
                yield node.arg, node.lineno


def _asks_for_journal(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
                if any(isinstance(each, ast.Name) and each.id == "Journal" for each in ast.walk(kind)):
                    yield node.lineno


def test_files_that_pages_name_are_there() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "container").glob("*.md")]
    name = re.compile(
        r"`((?:controller|tests|benchmarks|container|checkpointing|gandiva)/[\w./]+(?:\.py|/))`"
    )
    gone = {
        f"{page.name}: {path}"
        for page in pages
        for path in name.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    }
    assert not gone, "\n".join(sorted(gone))
