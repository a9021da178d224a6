# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known and what is wanted. Everything here is frozen; a policy is a function of these types
alone."""

from controller.model.cluster import (
    Gpu,
    GpuId,
    GpuSet,
    JobId,
    Node,
    by_node,
    gpu_type,
    natural_key,
    on_nodes,
)
from controller.model.job import (
    ALLOCATED,
    NOWHERE,
    ON_GPU,
    UNPROFILED,
    UNUSED,
    FailedSuspends,
    Job,
    Phase,
    Placement,
    Profile,
    Request,
    Size,
    SuspendMethod,
    Unsuspendable,
    Usage,
)
from controller.model.rates import Configuration, Rate
from controller.model.snapshot import ALL_CHANGED, Changes, Memory, Note, Plan, Snapshot, Target
from controller.model.solving import Cone, Problem, ProblemKind, Program, Solution, SolutionStatus
from controller.model.value import value

__all__ = [
    "ALLOCATED",
    "ALL_CHANGED",
    "NOWHERE",
    "ON_GPU",
    "UNPROFILED",
    "UNUSED",
    "Changes",
    "Cone",
    "Configuration",
    "FailedSuspends",
    "Gpu",
    "GpuId",
    "GpuSet",
    "Job",
    "JobId",
    "Memory",
    "Node",
    "Note",
    "Phase",
    "Placement",
    "Plan",
    "Problem",
    "ProblemKind",
    "Profile",
    "Program",
    "Rate",
    "Request",
    "Size",
    "Snapshot",
    "Solution",
    "SolutionStatus",
    "SuspendMethod",
    "Target",
    "Unsuspendable",
    "Usage",
    "by_node",
    "gpu_type",
    "natural_key",
    "on_nodes",
    "value",
]
