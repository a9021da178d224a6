# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for all of these tests, and which of them start processes on mock GPUs: the node agent, jobs,
the driver.

The latter need a compiler and no Docker, and take longer than all others together: `make unit` leaves them
out, `make processes` runs them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.unit.draws import NIGHTLY, draws

# A busy machine is no reason to fail: by default an example that takes more than 200 ms does. Each property
# is tried with the same values in every run, so that a failure belongs to the change; at night with new ones.
settings.register_profile(
    "gandiva",
    deadline=None,
    derandomize=not NIGHTLY,
    max_examples=draws(50, 500),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gandiva")

MOCK_GPU = Path(__file__).resolve().parents[2] / "container" / "mock_gpu"


@pytest.fixture(scope="session")
def mock_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libcuda.so.1, libnvidia-ml.so.1 and the commands of the mock GPU, compiled once for all
    workers of a run."""
    if not (MOCK_GPU / "Makefile").exists() or shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("needs container/mock_gpu and a C compiler (cc, make)")
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with (folder / "mock_gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ["make", "-s", "-j4", "-C", str(MOCK_GPU), f"BUILD={folder}/mock_gpu", "CFLAGS=-O1", "all"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "mock_gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them by what they ask for, so that nobody has to remember."""
    for item in items:
        if "mock_gpu" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.processes)
