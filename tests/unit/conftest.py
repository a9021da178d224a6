# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of these tests start the node agent, jobs and the driver as processes, on mock GPUs.

They need a compiler and no Docker, and take longer than all others together: `make unit` leaves them out,
`make processes` runs them.
"""

from __future__ import annotations

import pytest

_BUILDS = frozenset({"mock_gpu", "mock_gpu_build", "libraries"})
"""Fixtures that build the mock GPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by what they ask for, so that nobody has to remember."""
    for item in items:
        if not _BUILDS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)
