# SPDX-License-Identifier: GPL-2.0-or-later
"""The project's modules as syntax trees, and which of them imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("controller", "checkpointing", "gandiva", "container")


class Module:
    """One file."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.text = path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def _statements(self) -> list[ast.AST]:
        return [node for node in _walk(self.tree) if isinstance(node, ast.Import | ast.ImportFrom)]

    @property
    def lines(self) -> int:
        """How long it is."""
        return self.text.count("\n")

    def imports(self, known: Mapping[str, Module]) -> Iterator[tuple[str, int]]:
        """Modules of the project that it imports, in functions too, each with the line. What is there for
        type checkers alone does not count."""
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in self._statements:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in known:
                        yield alias.name, node.lineno
            elif isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), package)
                for alias in node.names:
                    inner = f"{source}.{alias.name}"
                    if inner in known or source in known:
                        yield inner if inner in known else source, node.lineno


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement but those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        yield child
        yield from _walk(child)


def modules(root: Path = ROOT) -> dict[str, Module]:
    """All of them, by dotted name; a package goes by its own name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(path, name)
    return found


def cycles(known: Mapping[str, Module]) -> list[list[str]]:
    """Sets of modules that import each other, directly or by way of others (Tarjan's algorithm)."""
    graph = {name: sorted({to for to, _ in module.imports(known)}) for name, module in known.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        path.append(name)
        for to in graph[name]:
            if to not in index:
                visit(to)
            if to in path:
                low[name] = min(low[name], low[to])
        if low[name] == index[name]:
            of_one = path[path.index(name) :]
            del path[path.index(name) :]
            if len(of_one) > 1 or name in graph[name]:
                found.append(sorted(of_one))

    for name in graph:
        if name not in index:
            visit(name)
    return found
