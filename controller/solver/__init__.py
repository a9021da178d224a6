# SPDX-License-Identifier: GPL-2.0-or-later
"""Optimisation problems, solved outside the loop: in a worker process, or at once on virtual time."""

from controller.solver.immediate import ImmediateSolver
from controller.solver.port import SolverPort
from controller.solver.worker_solver import WorkerSolver

__all__ = ["ImmediateSolver", "SolverPort", "WorkerSolver"]
