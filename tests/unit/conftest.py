# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for all of these tests, and which of them start processes on mock GPUs: the node agent, jobs,
the driver.

The latter need a compiler and no Docker, and take longer than all others together: `make unit` leaves them
out, `make processes` runs them.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: by default an example that takes more than 200 ms does. In CI each
# property is tried with the same values in every run, so that a failure belongs to the change; elsewhere new
# ones are drawn.
settings.register_profile(
    "gandiva",
    deadline=None,
    derandomize=os.environ.get("CI") == "true",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gandiva")

_BUILDS = frozenset({"mock_gpu", "mock_gpu_build", "libraries"})
"""Fixtures that build the mock GPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by what they ask for, so that nobody has to remember."""
    for item in items:
        if not _BUILDS.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.processes)
