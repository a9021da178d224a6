# SPDX-License-Identifier: GPL-2.0-or-later
"""All fuzz targets."""

from __future__ import annotations

from tests.fuzz import files, wire
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (*files.TARGETS, *wire.TARGETS)
