# SPDX-License-Identifier: GPL-2.0-or-later
"""Opening the cluster port that the settings name."""

from __future__ import annotations

from typing import Literal

from controller.model.measures import Measures
from controller.slurm.adapter import SlurmCluster
from controller.slurm.command import CommandTransport
from controller.slurm.measured import measured
from controller.slurm.port import ClusterPort
from controller.slurm.pyslurm import PyslurmTransport, require_pyslurm
from controller.slurm.transport import Transport


def open_cluster(
    adapter: Literal["pyslurm", "command"], *, deadline_seconds: float, measures: Measures | None = None
) -> ClusterPort:
    """The cluster port of the Slurm that this host belongs to. Makes no connection before its first call.
    `measures` is told how long each call took. Raises SettingsError: pyslurm is not installed."""
    if adapter == "pyslurm":
        require_pyslurm()
    transport: Transport = PyslurmTransport() if adapter == "pyslurm" else CommandTransport()
    if measures is not None:
        transport = measured(transport, measures)
    return SlurmCluster(transport, deadline_seconds=deadline_seconds)
