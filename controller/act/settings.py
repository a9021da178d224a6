# SPDX-License-Identifier: GPL-2.0-or-later
"""How operations behave."""

from __future__ import annotations

from controller.model import SuspendMethod, Unsuspendable, value


@value(kw_only=True)
class ExecutorSettings:
    """How long things may take, and how jobs are suspended. All times in seconds."""

    suspend_in_slurm: bool = True
    default_method: SuspendMethod = SuspendMethod.COOPERATIVE
    transparent_fallback: bool = True
    step_deadline_seconds: float = 60.0
    offload_deadline_seconds: float = 60.0
    resume_deadline_seconds: float = 120.0
    start_deadline_seconds: float = 60.0
    residual_limit_bytes: int = 0
    residual_fraction: float = 0.1
    release_context: bool = True
    retry_after_seconds: float = 300.0
    unsuspendable: Unsuspendable = Unsuspendable.KEEP
    unsuspendable_tries: int = 3
    """So many suspends must fail in a row before `unsuspendable` counts."""
    place_retry_seconds: float = 10.0
    preempt_exempt_ratio: float = 10.0
    """A job keeps its GPUs for so many times what its last switch took, off its GPUs and back."""
    node_call_deadline_seconds: float = 15.0
