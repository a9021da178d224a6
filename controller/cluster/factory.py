# SPDX-License-Identifier: GPL-2.0-or-later
"""Opening the cluster port that the settings name."""

from __future__ import annotations

from typing import Literal

from controller.cluster.command import CommandTransport
from controller.cluster.port import ClusterPort
from controller.cluster.pyslurm import PyslurmTransport, require_pyslurm
from controller.cluster.slurm import SlurmCluster


def open_cluster(adapter: Literal["pyslurm", "command"], *, deadline_seconds: float) -> ClusterPort:
    """The cluster port of the Slurm that this host belongs to. Talks to nobody before its first call.

    Args:
        adapter: how to talk to Slurm.
        deadline_seconds: how long one call may take.

    Raises:
        SettingsError: pyslurm is asked for and not installed.
    """
    if adapter == "pyslurm":
        require_pyslurm()
        return SlurmCluster(PyslurmTransport(), deadline_seconds=deadline_seconds)
    return SlurmCluster(CommandTransport(), deadline_seconds=deadline_seconds)
