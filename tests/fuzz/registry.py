# SPDX-License-Identifier: GPL-2.0-or-later
"""All fuzz targets."""

from __future__ import annotations

from tests.fuzz import files, job_side, plugin, wire
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *plugin.TARGETS,
    *files.TARGETS,
    *wire.TARGETS,
    *job_side.TARGETS,
)
