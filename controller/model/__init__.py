# SPDX-License-Identifier: GPL-2.0-or-later
"""What is known and what is wanted. Everything here is frozen; a policy is a function of these types
alone."""

from controller.model.cluster import (
    GPU_MODEL,
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
    IN_HOST_MEMORY,
    MAX_WEIGHT,
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
    Search,
    Size,
    StateAt,
    SuspendMethod,
    Trespass,
    Unsaved,
    Unsuspendable,
    Usage,
)
from controller.model.rates import (
    UNMEASURED,
    Configuration,
    Costs,
    Provenance,
    Rate,
    key_of_job,
    of_one_job,
    rate_key,
)
from controller.model.reasons import Reason, Why, reason_of
from controller.model.snapshot import (
    ALL_CHANGED,
    Changes,
    Memory,
    Moved,
    Note,
    Plan,
    Share,
    Snapshot,
    Target,
    Verdict,
)
from controller.model.solving import Cone, Problem, ProblemKind, Solution, SolutionStatus
from controller.model.value import value
