#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A linear problem for Clarabel in which one limit is so large that it never binds.
#
# Guess: it costs digits, the more the larger it is. To 1e9 it costs nothing. From 1e10 to 1e19 the answer after one
# iteration is DualInfeasible, that is unbounded, of a problem whose variables have limits of 1 and 2. From 1e20 on
# presolve drops the row ("infinite"), and the answer is right again; without presolve it is wrong there too.
# Seen with clarabel 0.11.1. Tolerances are relative to the largest number of the right-hand side.

set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf -- "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install -q clarabel==0.11.1 numpy scipy
"$here/venv/bin/python" - <<'PYTHON'
import sys

import clarabel
import numpy as np
from scipy import sparse

print(f"clarabel {clarabel.__version__}")
ROWS = sparse.csc_matrix(np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [1, 1]], float))


def status(limit, presolve=True):
    """Maximise x + y with 0 <= x <= 1, 0 <= y <= 2 and x + y <= limit."""
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.presolve_enable = False, presolve
    limits = np.array([0, 1, 0, 2, limit])
    cones = [clarabel.NonnegativeConeT(len(limits))]
    none = sparse.csc_matrix((2, 2))
    return str(clarabel.DefaultSolver(none, np.array([-1.0, -1.0]), ROWS, limits, cones, settings).solve().status)


def expect(words, found, truth):
    print(f"x + y <= {words:22} guess: Solved    found: {found}")
    if found != truth:
        sys.exit(f"this has changed: {truth} was expected")


for limit in (1e2, 1e6, 1e9):
    expect(f"{limit:g}", status(limit), "Solved")
for limit in (1e10, 1e12, 1e15, 1e19):
    expect(f"{limit:g}", status(limit), "DualInfeasible")
expect("1e20", status(1e20), "Solved")
expect("1e20, without presolve", status(1e20, presolve=False), "DualInfeasible")
PYTHON
