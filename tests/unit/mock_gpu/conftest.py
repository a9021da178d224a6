# SPDX-License-Identifier: GPL-2.0-or-later
"""The mock GPU libraries, compiled once for all tests, and a node that uses them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.mock_gpu.bench import SOURCE, Node


@pytest.fixture(scope="session")
def mock_gpu_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the libraries and commands."""
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no C compiler (cc, make)")
    folder = tmp_path_factory.mktemp("mock_gpu")
    done = subprocess.run(
        ["make", "-s", "-j4", "-C", str(SOURCE), f"BUILD={folder}", "CFLAGS=-O1", "all"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def bare_node(mock_gpu_build: Path, tmp_path: Path) -> Iterator[Node]:
    """A node on which mockgpu init has not been run."""
    with Node(mock_gpu_build, tmp_path) as node:
        yield node


@pytest.fixture
def node(bare_node: Node) -> Node:
    """A node with two A100."""
    return bare_node.init()
