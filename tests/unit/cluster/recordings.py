# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm's commands answered when `tests.contract.record` asked them, by Slurm release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "contract" / "recordings"
RELEASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def text(release: str, name: str) -> str:
    """A reply as the command printed it."""
    return (FOLDER / release / f"{name}.json").read_text()


def errors(release: str) -> dict[str, dict[str, Any]]:
    """What scontrol printed when it failed, by situation."""
    found: dict[str, dict[str, Any]] = json.loads(text(release, "errors"))
    return found
