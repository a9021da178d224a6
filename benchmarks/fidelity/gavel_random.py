# SPDX-License-Identifier: GPL-2.0-or-later
"""Compares Gavel's policies that draw types or pairs with its own simulator, over several seeds of each.

    python benchmarks/fidelity/gavel_random.py --rows rows.jsonl [--refs DIR] [--only REGEX] [--seeds 5]
    python benchmarks/fidelity/gavel_random.py --rows rows.jsonl --write docs/fidelity.md

GANDIVA_GAVEL and GANDIVA_GAVEL_PYTHON name a clone of Gavel and a Python for it (benchmarks/allocations.py).
Cases are those of the references with the default time between two allocations.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fidelity.gavel import Row, draws  # noqa: E402
from benchmarks.pages import put_table  # noqa: E402
from benchmarks.peers.measure import REFERENCES  # noqa: E402

CLONE = os.environ.get("GANDIVA_GAVEL", "no clone")
PYTHON = os.environ.get("GANDIVA_GAVEL_PYTHON", "python3")
SCRIPT = ROOT / "benchmarks" / "peers" / "gavel_simulated.py"
BEGIN, END = "<!-- table: fidelity/gavel_random.py -->", "<!-- end of gavel's random table -->"
MOST_SECONDS = 1500.0


def cases(refs: Path) -> Iterator[Row]:
    """Their results that depend on a seed, those of seed 0."""
    for row in json.loads((refs / "results_public.json").read_text())["gavel"]:
        if draws(row) and row.get("avg_jct_s") and row["case"].count("_") < 2 and row["seed"] == 0:
            yield Row(refs, row, "ecos")


def theirs(row: Row) -> tuple[float, float]:
    """Average completion time and makespan, by Gavel's own simulator."""
    given = row.reference
    inputs = [str((row.refs / given[key]).resolve()) for key in ("trace", "throughputs")]
    told = [given["policy"], given["cluster_v100_p100_k80"], str(given["seed"])]
    done = subprocess.run(
        [PYTHON, str(SCRIPT), CLONE, *inputs, *told], capture_output=True, timeout=MOST_SECONDS, check=True
    )
    found = json.loads(done.stdout)
    return fmean(found["jct"].values()), found["end"]


def ours(row: Row) -> tuple[float, float]:
    """The same by ours."""
    outcome = row.run()
    return fmean(job.jct_seconds for job in outcome.jobs), max(job.end_seconds for job in outcome.jobs)


def markdown(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of docs/fidelity.md: means, and half of the range over the seeds."""
    lines = [
        "| case | Gavel's policy | seeds | average JCT theirs / ours (s) | off "
        "| makespan theirs / ours (s) | off |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case, policy in dict.fromkeys((row["case"], row["policy"]) for row in found):
        mine = [row for row in found if (row["case"], row["policy"]) == (case, policy)]
        cells = [case, policy, str(len(mine))]
        for number in (0, 1):
            means: list[float] = []
            texts: list[str] = []
            for whose in ("theirs", "ours"):
                values = [row[whose][number] for row in mine]
                means.append(fmean(values))
                half = (max(values) - min(values)) / 2 / means[-1]
                texts.append(f"{means[-1]:,.0f} ±{half:.1%}")
            cells += [" / ".join(texts), f"{means[1] / means[0] - 1:+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Run cases, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refs", type=Path, default=REFERENCES, metavar="DIR")
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE", help="results, JSON lines")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases `case/policy` that match")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="make its table anew; nothing is run")
    args = parser.parse_args()
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    if args.write is not None:
        put_table(args.write, BEGIN, END, markdown(found))
        return 0
    known = [(row["case"], row["policy"], row["seed"]) for row in found]
    for row in cases(args.refs):
        for seed in range(args.seeds):
            key = row.reference["case"], row.reference["policy"], seed
            if key in known or not re.search(args.only, "/".join(key[:2])):
                continue
            drawn = replace(row, reference={**row.reference, "seed": seed})
            result = {"case": key[0], "policy": key[1], "seed": seed}
            line = json.dumps({**result, "theirs": theirs(drawn), "ours": ours(drawn)})
            print(line, flush=True)
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
