# SPDX-License-Identifier: GPL-2.0-or-later
"""Free GPUs kept as bits are those that a count of every GPU's holders gives."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import GpuId, GpuSet
from controller.policies.placement.gangs import find
from controller.policies.placement.pool import GpuPool
from tests.unit.draws import draws
from tests.unit.policies.ideal import make_job, make_node


def room(sizes: dict[str, int], free: set[GpuId], gpus: int) -> GpuSet | None:
    """On the fullest node with room, the first by name of two: an aligned block on a small node if there is
    one, else the lowest."""
    fitting = []
    for name, size in sizes.items():
        there = sorted(gpu.ordinal for gpu in free if gpu.node == name)
        if len(there) >= gpus:
            blocks = [list(range(start, start + gpus)) for start in range(0, size - gpus + 1, gpus)]
            aligned = [block for block in blocks if size <= 16 and set(block) <= set(there)]
            fitting.append((len(there), name, (*aligned, there[:gpus])[0]))
    if not fitting:
        return None
    _, name, ordinals = min(fitting)
    return frozenset(GpuId(name, ordinal) for ordinal in ordinals)


@settings(max_examples=draws(40, 1000))
@given(seed=st.integers(0, 2**32), nodes=st.sampled_from([(4, 4, 8), (8,), (40,), (3, 24)]))
def test_gangs_that_come_and_go_and_share(seed: int, nodes: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    sizes = {f"n{number}": size for number, size in enumerate(nodes)}
    pool = GpuPool({name: make_node(name, size) for name, size in sizes.items()})
    every = [GpuId(name, ordinal) for name, size in sizes.items() for ordinal in range(size)]
    holders: Counter[GpuId] = Counter()
    held: list[GpuSet] = []
    for step in range(60):
        free = {gpu for gpu in every if not holders[gpu]}
        assert pool.free_count == len(free)
        assert all(pool.all_free([gpu]) == (gpu in free) == pool.all_idle([gpu]) for gpu in every)
        gpus = rng.randint(1, 9)
        found = find(pool, make_job(1, gpus, nodes=1), consolidated=False)
        assert found == room(sizes, free, gpus), step
        if held and rng.random() < 0.4:
            given_back = held.pop(rng.randrange(len(held)))
            pool.give(given_back)
            holders.subtract(given_back)
            continue
        if found is None or rng.random() < 0.3:
            # Some on GPUs that others hold, as where one is on its way off them.
            found = frozenset(rng.sample(every, min(gpus, len(every))))
            pool.take({GpuId("gone", 0)})
        pool.take(found)
        held.append(found)
        holders.update(found)
