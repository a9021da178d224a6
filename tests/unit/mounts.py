# SPDX-License-Identifier: GPL-2.0-or-later
"""File systems that tests mount below their folders, and that must not outlive them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.agent import rank_room
from controller.nodes import installed
from controller.nodes.protocol import APART


def unmount_below(folder: Path) -> None:
    """Whatever is mounted there, the innermost first."""
    points = [line.split(" ")[4] for line in installed.MOUNTS.read_text().splitlines()]
    for point in reversed([point for point in points if Path(point).is_relative_to(folder.resolve())]):
        subprocess.run(["umount", "-l", point], check=True, timeout=60)


@pytest.fixture
def mountable(tmp_path: Path) -> Iterator[Path]:
    """A folder in which file systems can be mounted, as root's processes and where a container allows it."""
    if os.geteuid() != 0 or rank_room.examine(tmp_path) != APART:
        pytest.skip("nothing can be mounted here")
    yield tmp_path
    unmount_below(tmp_path)
