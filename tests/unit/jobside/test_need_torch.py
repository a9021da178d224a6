# SPDX-License-Identifier: GPL-2.0-or-later
"""`make torch` fails, and does not skip, where PyTorch is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .need_torch import REQUIRED

ROOT = Path(__file__).resolve().parents[3]
SKIPPED, FAILED = int(pytest.ExitCode.NO_TESTS_COLLECTED), int(pytest.ExitCode.INTERRUPTED)


@pytest.mark.parametrize(("required", "status"), [("", SKIPPED), ("1", FAILED)])
def test_a_missing_torch_is_an_error_only_where_it_is_required(
    tmp_path: Path, required: str, status: int
) -> None:
    # A torch that cannot be imported hides the one that this Python may have.
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch here')\n")
    test = tmp_path / "test_it.py"
    test.write_text(
        "from tests.unit.jobside.need_torch import need_torch\n"
        "torch = need_torch()\n"
        "def test_nothing() -> None: ...\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(test)],
        cwd=tmp_path,
        env={**os.environ, REQUIRED: required, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stdout + done.stderr
