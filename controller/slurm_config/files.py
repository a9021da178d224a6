# SPDX-License-Identifier: GPL-2.0-or-later
"""Putting the rendered files into a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.slurm_config.description import SlurmConfigError


class FileConflictError(SlurmConfigError):
    """Files to be written are there already with other content; nothing at all was written."""

    def __init__(self, paths: Sequence[Path]) -> None:
        names = ", ".join(str(path) for path in paths)
        super().__init__(
            f"not overwriting {names}: there already, with other content; "
            "compare them and use --force, or choose another --output-dir"
        )


def write(files: Mapping[str, str], folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the files (names relative to `folder`, and texts) that are missing or differ; all or none.

    Returns the paths that were written. Raises OSError, and FileConflictError where a file is there with
    other content and `force` is not given.
    """
    changed = {
        folder / name: text for name, text in files.items() if _content(folder / name) != text.encode()
    }
    conflicts = [path for path in changed if path.exists()]
    if conflicts and not force:
        raise FileConflictError(conflicts)
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    return tuple(changed)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


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
