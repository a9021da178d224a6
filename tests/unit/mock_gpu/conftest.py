# SPDX-License-Identifier: GPL-2.0-or-later
"""A node with mock GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.mock_gpu.bench import Node


@pytest.fixture
def bare_node(mock_gpu: Path, tmp_path: Path) -> Iterator[Node]:
    """A node on which mockgpu init has not been run."""
    with Node(mock_gpu, tmp_path) as node:
        yield node


@pytest.fixture
def node(bare_node: Node) -> Node:
    """A node with two A100."""
    return bare_node.init()
