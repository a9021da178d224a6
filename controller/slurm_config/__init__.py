# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's own configuration files, made from one description of the cluster.

Everything here is pure but :func:`~controller.slurm_config.files.write`: a description (TOML, checked by
pydantic) and the options of the installation go in, a mapping of file names to texts comes out.
"""

from controller.slurm_config.description import ClusterDescription, load, parse
from controller.slurm_config.errors import DescriptionError, FileConflictError, SlurmConfigError
from controller.slurm_config.files import write
from controller.slurm_config.fragments import PARTS, Options, render

__all__ = [
    "PARTS",
    "ClusterDescription",
    "DescriptionError",
    "FileConflictError",
    "Options",
    "SlurmConfigError",
    "load",
    "parse",
    "render",
    "write",
]
