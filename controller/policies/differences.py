# SPDX-License-Identifier: GPL-2.0-or-later
"""Which jobs are not as they were, where a snapshot does not say: the daemon's never do."""

from __future__ import annotations

from controller.model import Job


def as_before(a: Job, b: Job) -> bool:
    """Whether all of a job that policies read is the same, but for its times and its profile, which grow
    while it runs.

    Written out, and each set is compared only where it is another object: this is done for every job at
    every look, half a microsecond each.
    """
    return (
        a.phase is b.phase
        and (a.binding is b.binding or a.binding == b.binding)
        and (a.running_on is b.running_on or a.running_on == b.running_on)
        and a.not_before == b.not_before
        and a.movable is b.movable
        and a.suspendable is b.suspendable
        and a.priority_class == b.priority_class
        and (a.request is b.request or a.request == b.request)
        and a.submit_time == b.submit_time
        and a.memory_per_node_bytes == b.memory_per_node_bytes
        and a.cpus_per_node == b.cpus_per_node
        and (a.excluded_nodes is b.excluded_nodes or a.excluded_nodes == b.excluded_nodes)
        and (a.required_nodes is b.required_nodes or a.required_nodes == b.required_nodes)
    )
