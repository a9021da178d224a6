# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulator of Tiresias' authors on its own traces. What it imports and does not call with these options
(numpy, a linear solver) is replaced by empty modules."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.fidelity import policies
from benchmarks.peers.measure import (
    FIDELITY,
    REFERENCES,
    Case,
    Ours,
    Run,
    StopWatch,
    environment,
    program,
    runs,
)

CLONE = Path(os.environ.get("GANDIVA_TIRESIAS", "no clone"))
PYTHON = os.environ.get("GANDIVA_PYTHON2", "python2.7")
INPUTS = REFERENCES / "inputs/tiresias"
TRACES = {
    "60_job": ("shipped/60_job.csv", "1x2x4"),
    "xs": ("converted/xs_job.csv", "1x8x4"),
    "ee9e8c (1,511 jobs)": ("converted/philly_ee9e8c_job.csv", "1x18x8"),
}
"""The trace, and switches x nodes x GPUs, the name of their description of the cluster."""
WITH_PROMOTION = "ee9e8c (1,511 jobs)"
"""The one trace that the references have promotion for."""
STUBS = {
    "numpy.py": "def mean(values):\n    return float(sum(values)) / len(values)\n",
    "cplex/__init__.py": "class Cplex(object):\n    pass\n",
    "cplex/six/__init__.py": "",
    "cplex/six/moves/__init__.py": "range = range\n",
    "cplex/exceptions.py": "class CplexError(Exception):\n    pass\n",
}


def missing() -> str:
    """What is not there; empty: nothing."""
    if not (CLONE / "simulator" / "run_sim.py").is_file():
        return "GANDIVA_TIRESIAS names no clone of SymbioticLab/Tiresias"
    if not INPUTS.is_dir():
        return "GANDIVA_REFS names no folder of references"
    return "" if runs(PYTHON) else "GANDIVA_PYTHON2 names no Python 2.7 that runs"


def cases() -> Iterator[Case]:
    """Those of the references."""
    for name, (trace, shape) in TRACES.items():
        for schedule, (policy, changes) in policies.TIRESIAS.items():
            if schedule == "dlas-gpu-8" and name != WITH_PROMOTION:
                continue
            if schedule == "dlas-gpu-gittins":
                changes = (*changes, f'distribution="{INPUTS / "shipped/yarn-gput1000.csv"}"')
            switches, nodes, gpus = map(int, shape.split("x"))
            cluster = f"v100:{switches * nodes * gpus}"
            ours = Ours(INPUTS / trace, cluster, gpus, policy, FIDELITY / "tiresias.toml", changes)
            yield Case(name, schedule, partial(theirs, INPUTS / trace, shape, schedule), ours)


def theirs(trace: Path, shape: str, schedule: str) -> Run:
    """Their program, as its users start it."""
    words = [PYTHON, "run_sim.py", f"--cluster_spec={INPUTS}/cluster_specs/c{shape}.csv"]
    words += [f"--trace_file={trace}", "--scheme=count", f"--schedule={schedule}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for stub, text in STUBS.items():
            path = folder / "stubs" / stub
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        words.append(f"--log_path={folder}/log")
        with StopWatch() as spent:
            program(words, cwd=CLONE / "simulator", env=environment(PYTHONPATH=str(folder / "stubs")))
        with (folder / "log" / "job.csv").open() as file:
            jcts = [float(row["JCT"]) for row in csv.DictReader(file)]
    return Run(spent.cpu, spent.wall, spent.cpu, sum(jcts) / len(jcts))
