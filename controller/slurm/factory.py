# SPDX-License-Identifier: GPL-2.0-or-later
"""Opening the cluster port that the settings name, and telling how long each call to Slurm took."""

from __future__ import annotations

import asyncio
import logging
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, cast

from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model.measures import Measures
from controller.slurm.adapter import SlurmCluster
from controller.slurm.command import CommandTransport
from controller.slurm.port import ClusterPort
from controller.slurm.pyslurm import PyslurmTransport, require_pyslurm

log = logging.getLogger(__name__)

CALLS: Final = (
    "load", "job", "bind", "unbind", "release", "hold", "split", "suspend", "resume", "requeue_hold", "end",
)  # fmt: skip
OUTCOMES: Final = ("ok", "unknown_job", "refused", "unavailable", "cut_off", "error")
"""`cut_off`: ended at the deadline (or when the controller stopped), without an answer."""
_OUTCOME_OF: Final = {
    UnknownJob: "unknown_job",
    ClusterRefused: "refused",
    ClusterUnavailable: "unavailable",
    asyncio.CancelledError: "cut_off",
}


def open_cluster(
    adapter: Literal["pyslurm", "command"], *, deadline_seconds: float, measures: Measures | None = None
) -> ClusterPort:
    """The cluster port of the Slurm that this host belongs to. Makes no connection before its first call.
    `measures` is told how long each call took. Raises SettingsError: pyslurm is not installed."""
    if adapter == "pyslurm":
        require_pyslurm()
    transport = PyslurmTransport() if adapter == "pyslurm" else CommandTransport()
    if measures is not None:
        transport = measured(transport, measures)
    return SlurmCluster(transport, deadline_seconds=deadline_seconds)


def measured(transport: CommandTransport, measures: Measures) -> CommandTransport:
    """The transport, which tells of its CALLS."""

    def timed(name: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(transport, name)

        async def measured_call(*arguments: Any) -> Any:
            began = time.perf_counter()
            outcome = "ok"
            try:
                return await call(*arguments)
            except BaseException as error:
                outcome = _OUTCOME_OF.get(type(error), "error")
                raise
            finally:
                seconds = time.perf_counter() - began
                measures.slurm_call(name, outcome, seconds)
                job_id = arguments[0] if arguments else None
                log.debug("%s: %s after %.1f ms", name, outcome, seconds * 1000, extra={"job": job_id})

        return measured_call

    calls = {name: timed(name) for name in CALLS}
    return cast(CommandTransport, types.SimpleNamespace(close=transport.close, **calls))
