# SPDX-License-Identifier: GPL-2.0-or-later
"""Where this installation has its files that are not Python, and which adapter it uses.

A Debian package replaces this file by one with its own places (debian/stage); nothing else differs between an
installation from source and one from packages.
"""

from typing import Final, Literal

JOBSIDE: Final[str] = "/opt/gandiva/jobside"
"""Folder that holds the package `gandiva` for jobs, and nothing else."""

SLURM_FILES: Final[str | None] = None
"""Folder with the Lua modules, prolog and epilog; None: they are in Slurm's configuration folder."""

ADAPTER: Final[Literal["pyslurm", "command"]] = "pyslurm"
"""Default of `cluster.adapter`: `command` where no pyslurm is packaged for this Slurm."""
