# SPDX-License-Identifier: GPL-2.0-or-later
"""What each job gets where no problem is solved: the yardsticks of the other allocations, and policies of
their own."""

import numpy as np

from controller.policies.allocations.allocation import Allocated, Given, Solve
from controller.policies.allocations.checked import fractions
from controller.policies.allocations.layout import Array, Layout


def equal_throughputs(layout: Layout) -> Array:
    """Throughput of each job if every type had the same part of its time as of the cluster's GPUs."""
    return summed(layout.best * parts(layout))


def isolated(layout: Layout) -> Array:
    """Each job's time by physical type on a part of the cluster of its own, by its weight."""
    gpus, weight = layout.of_jobs("gpus")[:, None], layout.of_jobs("weight")[:, None]
    rows = layout.limits * (weight / sum(job.weight for job in layout.jobs)) / gpus
    own: Array = rows / np.maximum(1.0, summed(rows))[:, None]
    return own


def isolated_throughputs(layout: Layout) -> Array:
    """Throughput of each job of the layout on its own part of the cluster."""
    return summed(layout.best * isolated(layout))


def fixed(layout: Layout, rows: Array, status: str = "optimal") -> Allocated:
    """Rows of the jobs by physical type as an allocation. Its objective is the number of GPUs in use."""
    table = np.zeros((len(layout.keys), len(layout.types)))
    own = [layout.types.index(name) for name in layout.physical]
    table[: len(layout.jobs), own] = rows
    x = table[layout.key_of, layout.type_of]
    return Allocated(fractions=fractions(layout, x), objective=float((x * layout.gpus).sum()), status=status)


class Isolated:
    """Every job has a part of the cluster to itself, by its weight."""

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = Layout(given)
        return fixed(layout, isolated(layout))


class Proportional:
    """Every job has the same part of its time on each type, in proportion to the type's GPUs."""

    def allocate(self, given: Given, solve: Solve) -> Allocated:
        layout = Layout(given)
        return fixed(layout, parts(layout) * min(1.0, layout.limits.sum() / max(1.0, layout.sizes.sum())))


def parts(layout: Layout) -> Array:
    """By physical type: its part of the GPUs, rounded on the way as in Gavel's code."""
    each = layout.limits / max(1, len(layout.jobs))
    return each / summed(each)


def summed(numbers: Array) -> Array:
    """Over the last axis, from left to right: the last bit counts for comparisons."""
    return np.add.accumulate(numbers, axis=-1)[..., -1]
