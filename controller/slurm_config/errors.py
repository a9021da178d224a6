# SPDX-License-Identifier: GPL-2.0-or-later
"""Errors while Slurm's configuration is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from controller.errors import GandivaError


class SlurmConfigError(GandivaError):
    """Slurm's configuration cannot be made."""


class DescriptionError(SlurmConfigError):
    """The cluster description cannot be used. `problems`: one line for each wrong key: where, what value,
    what is allowed."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


class FileConflictError(SlurmConfigError):
    """Files to be written are there already with other content; nothing at all was written."""

    def __init__(self, paths: Sequence[Path]) -> None:
        names = ", ".join(str(path) for path in paths)
        super().__init__(
            f"not overwriting {names}: there already, with other content; "
            "compare them and use --force, or choose another --output-dir"
        )
