# SPDX-License-Identifier: GPL-2.0-or-later
"""The queries of docs/other-tools.md, on what both releases of Slurm answered."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "other-tools.md").read_text()
RECORDINGS = ROOT / "tests" / "contract" / "recordings"
ANSWERS = {"scontrol show nodes --json": "nodes.json", "squeue --json --states=all": "squeue.json"}
QUERIES = re.findall(r"^    \$ (.+?) \| jq -r '(.+?)'\n((?:    [^\n]+\n)+)", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
@pytest.mark.parametrize("number", range(3))
def test_a_query_answers_as_the_page_says(number: int, release: str) -> None:
    jq = shutil.which("jq")
    if jq is None:
        pytest.skip("no jq")
    assert len(QUERIES) == 3
    command, query, shown = QUERIES[number]
    answer = RECORDINGS / release / ANSWERS[command]
    done = subprocess.run(
        [jq, "-r", query, str(answer)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [line.strip() for line in shown.splitlines()]


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_what_the_page_shows_was_answered(release: str) -> None:
    recorded = "".join(path.read_text() for path in (RECORDINGS / release).glob("*.json"))
    shown = [
        "cpu=16,mem=8G,billing=16,gres/gpu=4,gres/shard=64",
        "cpu=2,mem=100M,gres/gpu=2,gres/shard=2",
        "gpu:a100_0:1(IDX:0)",
        "gpu:a100_2:0(IDX:N/A)",
        "shard:a100_2:1(1/16)",
        "gres/shard:a100_2:1,gres/shard:a100_3:1",
        "cpu=1,mem=50M,node=1,billing=1,gres/shard=2",
        "shard:a100_2:1(0/16,0/16,1/16,0/16)",
        "shard:a100_0:0(-/16)" if release == "26.05" else "shard:a100_0:0(0/16)",
    ]
    assert [text for text in shown if text not in recorded] == []
    assert [text for text in shown[:-1] if f"`{text}`" not in TEXT] == []
