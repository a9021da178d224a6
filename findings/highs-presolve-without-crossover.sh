#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Linear problems for HiGHS's interior point method, with run_crossover=off and all else as it comes.
#
# Guess: an interior point of the optimal face, status Optimal. Presolve finds a corner where it solves the problem by
# itself; and what it has reduced it cannot always take back without a basis: the status of a problem of 4 variables is
# "Unknown", run() answers kWarning, and the values are right. With presolve=off both are as guessed.
# Guess, then: where nothing tells two jobs apart, they have the same. They have not, with presolve=off either: after a
# few iterations the method works with a basis, which takes one of them before the other.
# Seen with highspy 1.15.1, on 2 % of random allocations of jobs to GPU types.

set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q highspy==1.15.1 numpy
"$here/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

import highspy
import numpy as np

print(f"highspy {version('highspy')}")


def solved(cost, rows, lower, upper, **options):
    """Free variables; bounds are rows, as a program writes them that has no others."""
    rows = np.array(rows, float)
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = rows.shape
    lp.col_cost_ = np.array(cost, float)
    lp.col_lower_, lp.col_upper_ = (np.full(len(cost), bound) for bound in (-np.inf, np.inf))
    lp.row_lower_, lp.row_upper_ = np.array(lower, float), np.array(upper, float)
    entries = [np.flatnonzero(column) for column in rows.T]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.cumsum([0, *map(len, entries)])
    lp.a_matrix_.index_ = np.concatenate(entries)
    lp.a_matrix_.value_ = np.concatenate([column[at] for column, at in zip(rows.T, entries)])
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "solver": "ipm", "run_crossover": "off", **options}.items():
        assert highs.setOptionValue(name, value) == highspy.HighsStatus.kOk
    highs.passModel(lp)
    highs.run()
    status = highs.modelStatusToString(highs.getModelStatus())
    return status, [round(value, 4) + 0.0 for value in highs.getSolution().col_value]


def expect(words, guess, found, truth):
    print(f"{words:44} guess: {guess}\n{'':44} found: {found}")
    if found != truth:
        sys.exit(f"this has changed: {truth} was expected")


INF = np.inf
# All of x + y + z = 1.5 with 0 <= x, y, z <= 1 are equally good.
equal = ([0, 0, 0], [*np.eye(3), [1, 1, 1]], [0, 0, 0, 1.5], [1, 1, 1, 1.5])
middle = ("Optimal", [0.5, 0.5, 0.5])
expect("three equal ones", middle, solved(*equal), ("Optimal", [0.0, 0.5, 1.0]))
expect("three equal ones, presolve=off", middle, solved(*equal, presolve="off"), middle)
# Two jobs on two machines, with these throughputs: at most all of its time for each job and each machine.
pairs = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]
jobs = ([0, -5, -3, -3], [*-np.eye(4), *pairs], [-INF] * 8, [0] * 4 + [1] * 4)
best = ("Optimal", [0.0, 1.0, 1.0, 0.0])
expect("two jobs on two machines", best, solved(*jobs), ("Unknown", best[1]))
expect("two jobs on two machines, presolve=off", best, solved(*jobs, presolve="off"), best)
# Two jobs that are alike, on 1, 2 and 3 machines of three types with throughputs of 8, 4 and 2.
types, each = np.hstack([np.eye(3)] * 2), [[1] * 3 + [0] * 3, [0] * 3 + [1] * 3]
alike = ([-8, -4, -2] * 2, [*-np.eye(6), *types, *each], [-INF] * 11, [0] * 6 + [1, 2, 3] + [1] * 2)
status, values = solved(*alike, presolve="off")
expect("two jobs that are alike, presolve=off", ("Optimal", True), (status, values[:3] == values[3:]), ("Optimal", False))
print(f"{'':44} {values}")
PYTHON
