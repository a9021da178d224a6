# SPDX-License-Identifier: GPL-2.0-or-later
"""`make test` runs its parts in order, says what each took, and names what failed last."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import parts

ROOT = Path(__file__).resolve().parents[2]
PASSES = "@echo '===== 3 passed, 1 skipped in 0.10s ====='"
FAILS = "@echo 'FAILED tests/a.py::test_b[c d] - assert 1 == 2'; echo '1 failed, 2 passed in 3.00s'; exit 1"


def ran(tmp_path: Path, depth: str = "test", **recipes: str) -> tuple[int, str]:
    """Status and output, with a Makefile where all parts pass but for these."""
    rules = dict.fromkeys(parts.PARTS[depth], PASSES) | {k.replace("_", "-"): v for k, v in recipes.items()}
    (tmp_path / "Makefile").write_text("".join(f"{name}:\n\t{recipe}\n" for name, recipe in rules.items()))
    (tmp_path / "tests").mkdir()
    shutil.copy(parts.__file__, tmp_path / "tests/parts.py")
    words = [sys.executable, "-m", "tests.parts", depth]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.parametrize("depth", parts.PARTS)
def test_all_parts_and_what_each_took(tmp_path: Path, depth: str) -> None:
    status, said = ran(tmp_path, depth, roles="@echo $$DEPTH $$GANDIVA_TEST_DEPTH")
    assert status == 0 and f"\n{depth}" in said
    for name in parts.PARTS[depth]:
        assert re.search(rf"^{name} +0:0\d  (3 passed, 1 skipped|passed)", said, re.MULTILINE), said
    assert said.endswith(f"\nparts: {len(parts.PARTS[depth])} passed, 0 failed\n")


def test_quick_parts_all_run_and_nothing_after_them(tmp_path: Path) -> None:
    status, said = ran(tmp_path, lint="@echo 'error: run ruff format'; exit 1", unit=FAILS)
    assert status == 1 and len(re.findall("-  not run", said)) == len(parts.PARTS["test"]) - 2
    assert said.endswith(
        "failed: make lint\n  error: run ruff format\n"
        "failed: make unit\n  FAILED tests/a.py::test_b[c d] - assert 1 == 2\nparts: 0 passed, 2 failed\n"
    )


def test_it_stops_at_the_first_part_that_fails_after_them(tmp_path: Path) -> None:
    status, said = ran(tmp_path, torch=f"@echo 'SUBFAILED[pyslurm: test_e] tests/a.py::test_d'; {FAILS[1:]}")
    assert status == 1
    assert re.search(r"^torch +0:0\d  FAILED 1 failed, 2 passed$", said, re.MULTILINE), said
    assert re.search(r"^live +-  not run$", said, re.MULTILINE)
    assert "\nfailed: make torch\n  SUBFAILED[pyslurm: test_e] tests/a.py::test_d\n  FAILED " in said
    assert said.endswith("::test_b[c d] - assert 1 == 2\nparts: 3 passed, 1 failed\n")


def test_all_parts_run_at_night(tmp_path: Path) -> None:
    status, said = ran(tmp_path, "nightly", unit=FAILS, live=FAILS)
    assert status == 1 and "not run" not in said
    assert said.endswith(f"\nparts: {len(parts.PARTS['nightly']) - 2} passed, 2 failed\n")


def test_every_part_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {name for names in parts.PARTS.values() for name in names} <= targets
    assert set(parts.PARTS["test"]) < set(parts.PARTS["nightly"])


@pytest.mark.parametrize("name", ["unit", "processes", "live", "smoke"])
def test_what_is_nightly_is_left_out_of_make_test_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for inherited in ("MAKEFLAGS", "MAKEOVERRIDES", "DEPTH"):  # of the make that runs the tests
        monkeypatch.delenv(inherited, raising=False)

    def recipe(*words: str) -> str:
        command = ["make", "-n", "-o", "env", name, *words]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert "and not nightly" in recipe() and "and not nightly" not in recipe("DEPTH=nightly")
