# SPDX-License-Identifier: GPL-2.0-or-later
"""Errors while Slurm's configuration is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from controller.errors import GandivaError


class SlurmConfigError(GandivaError):
    """Slurm's configuration cannot be made."""


class DescriptionError(SlurmConfigError):
    """The cluster description cannot be used.

    Attributes:
        source: the file's name (or what stood in for it), as in the message.
        problems: one line for each wrong key: where, what value, what is allowed.
    """

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class FileConflictError(SlurmConfigError):
    """A file to be written is there already with other content.

    Attributes:
        paths: the files that differ; nothing at all was written.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        names = ", ".join(str(path) for path in self.paths)
        super().__init__(
            f"not overwriting {names}: there already, with other content; "
            "compare them and use --force, or choose another --output-dir"
        )
