# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's own configuration files, made from one description of the cluster.

Everything here is pure but :func:`~controller.slurm_config.files.write`: a description (TOML, checked by
pydantic) and the options of the installation go in, a mapping of file names to texts comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from controller.slurm_config.description import ClusterDescription, load, parse
    from controller.slurm_config.errors import DescriptionError, FileConflictError, SlurmConfigError
    from controller.slurm_config.files import write
    from controller.slurm_config.fragments import PARTS, Options, render

_HOME = {
    "ClusterDescription": "description",
    "load": "description",
    "parse": "description",
    "DescriptionError": "errors",
    "FileConflictError": "errors",
    "SlurmConfigError": "errors",
    "write": "files",
    "PARTS": "fragments",
    "Options": "fragments",
    "render": "fragments",
}

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


def __getattr__(name: str) -> Any:
    """Resolved on first use: host lists are read from here by all, descriptions by few."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
