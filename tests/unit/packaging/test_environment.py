# SPDX-License-Identifier: GPL-2.0-or-later
"""`scripts/environment.sh`: what apt-get and pip say is in a log file, and shown only when they fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOG = "build/logs/environment.log"
NOISE = "WARNING: Location 'file:///mirror/simple/rich/' is ignored"
FAKE = f"""#!/bin/sh
echo "$0 $*" >> calls
echo "{NOISE}" >&2
echo "Requirement already satisfied"
[ ! -e broken ]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script, with a pip and an apt-get of its own. A program is missing."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/environment.sh", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    programs = {"bin/apt-get": FAKE, ".venv/bin/pip": FAKE, "bin/id": "#!/bin/sh\necho 0\n"}
    programs |= dict.fromkeys(("bin/python3", "bin/make", ".venv/bin/python"), "#!/bin/sh\n")
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name in ("sh", "cat", "cut", "dirname", "mkdir", "sha256sum", "tail"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    return tmp_path


def make(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(checkout / "scripts/environment.sh"), *words]
    return subprocess.run(
        command, env={"PATH": str(checkout / "bin")}, capture_output=True, text=True, timeout=60
    )


def calls(checkout: Path) -> list[str]:
    path = checkout / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def test_noise_is_in_the_log_and_the_terminal_shows_the_steps(checkout: Path) -> None:
    done = make(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line[:4] for line in lines] == ["==> "] * 2 and "lua5.4" in lines[0]
    assert (checkout / LOG).read_text().count(NOISE) == 3
    update, install, pip = calls(checkout)
    assert "apt-get update" in update and "lua5.4" in install and ",dev]" in pip
    assert make(checkout).stdout == "" and calls(checkout) == [], "all is there"
    assert make(checkout, "demo").stdout == "" and calls(checkout) == []


def test_the_demo_does_not_wait_for_what_only_tests_need(checkout: Path) -> None:
    done = make(checkout, "demo")
    (pip,) = calls(checkout)
    assert done.returncode == 0 and pip.endswith(".[cluster]")
    assert make(checkout, "demo").stdout == "" and calls(checkout) == []
    make(checkout)
    assert ",dev]" in calls(checkout)[-1], "the rest, when it is asked for"


def test_a_failure_shows_the_end_of_the_log_and_where_it_is(checkout: Path) -> None:
    (checkout / "broken").touch()
    done = make(checkout, "demo")
    assert done.returncode == 1
    assert NOISE in done.stderr and f"pip failed; the whole of what it said is in {LOG}" in done.stderr
    (checkout / "broken").unlink()
    assert make(checkout, "demo").returncode == 0 and len(calls(checkout)) == 2, "it is tried again"
