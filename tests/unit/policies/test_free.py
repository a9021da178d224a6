# SPDX-License-Identifier: GPL-2.0-or-later
"""The index of free GPUs gives what a look at every GPU and every job would, also as a draft keeps it."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import NOWHERE, GpuId, GpuSet, JobId, Placement, Snapshot
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import Free
from controller.policies.placement.gangs import find
from tests.unit.draws import draws
from tests.unit.policies.ideal import gpu_set, make_job, make_node, running, suspended
from tests.unit.policies.test_pack_trials import Nothing


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
    index = Free({name: make_node(name, size) for name, size in sizes.items()})
    every = [GpuId(name, ordinal) for name, size in sizes.items() for ordinal in range(size)]
    held: dict[JobId, GpuSet] = {}
    for step in range(60):
        holders = Counter(gpu for gpus in held.values() for gpu in gpus)
        free = {gpu for gpu in every if not holders[gpu]}
        assert index.count.total() == len(free)
        assert all(index.all_free([gpu]) == (gpu in free) == index.all_idle([gpu]) for gpu in every)
        assert all(len(index.holders(gpu)) == holders[gpu] for gpu in every)
        ordered(index, {name: [gpu for gpu in every if gpu in free and gpu.node == name] for name in sizes})
        gpus = rng.randint(1, 9)
        found = find(index, make_job(1, gpus, nodes=1))
        assert found == room(sizes, free, gpus), step
        if held and rng.random() < 0.4:
            job_id = rng.choice(sorted(held))
            index.hold(job_id, frozenset())
            del held[job_id]
            continue
        if found is None or rng.random() < 0.3:
            # Some on GPUs that others hold, as where one is on its way off them.
            found = frozenset(rng.sample(every, min(gpus, len(every)))) | {GpuId("gone", 0)}
        job_id = JobId(rng.randint(1, 20))
        held[job_id] = found
        index.hold(job_id, found)
    again = Free({name: make_node(name, size) for name, size in sizes.items()}, held)
    assert all(again.all_free([gpu]) == index.all_free([gpu]) for gpu in every)


def ordered(index: Free, free: dict[str, list[GpuId]]) -> None:
    """The fewest first, and the most first, then by name."""
    for least, most in ((1, None), (2, 3), (4, 4)):
        fits = [name for name, gpus in free.items() if least <= len(gpus) <= (most or 100)]
        assert list(index.fitting(least, most)) == sorted(fits, key=lambda n: (len(free[n]), n))
        by_most = sorted(fits, key=lambda n: (-len(free[n]), n))
        assert list(index.fitting(least, most, emptiest=True)) == by_most
    assert all(index.on(name) == gpus and index.count_on(name) == len(gpus) for name, gpus in free.items())


def test_what_a_draft_frees_is_free_at_the_next_look_and_what_it_gives_at_once() -> None:
    here, there = gpu_set("n1:0", "n1:1"), gpu_set("n2:0", "n2:1")
    nodes = {name: make_node(name, 2, shards=1) for name in ("n1", "n2", "n3")}
    bound = suspended(make_job(2, 1), gpu_set("n3:0"))
    snapshot = Snapshot(time=0.0, nodes=nodes, jobs={bound.id: bound})
    draft = Draft(Nothing())
    draft.hold(JobId(1), Placement(here, here))

    def free() -> list[int]:
        return [index.count_on(name) for name in nodes]

    index = draft.free(snapshot)
    assert free() == [0, 2, 1], "Slurm binds no second job to n3:0"
    mark = draft.mark()
    draft.put(JobId(1), Placement(there, there))
    assert free() == [0, 0, 1], "what it leaves is for the mechanism"
    assert draft.free(snapshot) is index and free() == [2, 0, 1]
    draft.put(JobId(1), NOWHERE)
    assert free() == [2, 0, 1]
    draft.rollback(mark)
    assert free() == [0, 2, 1]
    draft.put(JobId(1), Placement(frozenset(), here | there))
    assert free() == [0, 0, 1], "of a job that is on none all that it is bound to"


def test_a_draft_counts_the_jobs_that_slurm_has_bound_to_a_gpu() -> None:
    here, there = gpu_set("n1:0", "n1:1"), gpu_set("n1:1", "n1:2")
    one, two, three = map(JobId, (1, 2, 3))
    jobs = {one: suspended(make_job(1, 2), here), two: suspended(make_job(2, 2), there)}
    nodes, draft = {"n1": make_node("n1", 3)}, Draft(Nothing())

    def bound() -> list[int]:
        found = draft.bound(Snapshot(time=0.0, nodes=nodes, jobs=dict(jobs)))
        return [found[gpu] for gpu in sorted(here | there)]

    assert bound() == bound() == [1, 2, 1]
    jobs[one], jobs[three] = running(make_job(1, 2), there), suspended(make_job(3, 2), here)
    for job_id in (one, three):
        draft.hold(job_id, jobs[job_id].placement)
    assert bound() == [1, 3, 2]
    del jobs[two]
    draft.hold(two, NOWHERE)
    jobs[three] = make_job(3, 2)
    draft.hold(three, NOWHERE)
    assert bound() == [0, 1, 1]
