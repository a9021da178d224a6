# SPDX-License-Identifier: GPL-2.0-or-later
"""Putting the rendered files into a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from controller.slurm_config.description import SlurmConfigError


def write(files: Mapping[str, str], folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the files (names relative to `folder`, and texts) that are missing or differ; all or none.

    Returns the paths that were written. Raises OSError, and SlurmConfigError where a file is there with
    other content and `force` is not given.
    """
    texts = {folder / name: text for name, text in files.items()}
    there = [path for path in texts if path.exists()]
    differing = [path for path in there if path.read_bytes() != texts[path].encode()]
    if differing and not force:
        raise SlurmConfigError(
            f"not overwriting {', '.join(map(str, differing))}: there already, with other content; "
            "compare them and use --force, or choose another --output-dir"
        )
    changed = {path: text for path, text in texts.items() if path not in there or path in differing}
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    return tuple(changed)


def _replace(path: Path, text: str) -> None:
    """Slurm may read the file at any moment: it sees the old one or the new one, never half."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o755 if text.startswith("#!") else 0o644)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
