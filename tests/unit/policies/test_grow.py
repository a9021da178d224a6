# SPDX-License-Identifier: GPL-2.0-or-later
"""Adaptive jobs take GPUs that no job needs, and give them back (SPEC 1.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.errors import SettingsError
from controller.model import (
    Configuration,
    Job,
    JobId,
    Moved,
    Placement,
    Plan,
    Provenance,
    Rate,
    Size,
    Snapshot,
    StateAt,
    Verdict,
)
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, gpu_set, make_job, make_node, running, suspended

IDLE_SECONDS = 300.0
MINUTE = 60.0
NAMES = ["fifo", "fifo-skip", "gandiva"]
EVERY = pytest.mark.parametrize("name", [*NAMES, "tiresias-las"])


def policy(name: str, **settings: Any) -> Callable[[], Policy]:
    return lambda: make_policy(
        PolicySettings.model_validate({"name": name, "moves": ["grow"], "grow": settings})
    )


def adaptive(number: int, gpus: int = 1, most: int = 4, **changes: Any) -> Job:
    """A job that may have up to `most` GPUs."""
    job = make_job(number, gpus, 1e6, nodes=1, **changes)
    return replace(job, request=replace(job.request, size=Size(gpus, gpus, most)), may_resize=True)


def ideal(name: str, *jobs: Job, nodes: int = 1, **settings: Any) -> Ideal:
    c = Ideal(policy(name, **settings), [make_node(f"s{i}", 4) for i in range(nodes)], [], bound=False)
    c.add(*jobs)
    return c


def said(c: Ideal) -> list[str]:
    """What is said of jobs that grow, shrink, or keep what they have, from now on."""
    found: list[str] = []
    c.on_plan = lambda _snapshot, plan: found.extend(
        why for why in plan.reasons.values() if why.startswith(("grows", "shrinks", "keeps its"))
    )
    return found


def moves(c: Ideal) -> list[Moved]:
    """What moves do from now on."""
    found: list[Moved] = []
    before = c.on_plan

    def on_plan(snapshot: Snapshot, plan: Plan) -> None:
        before(snapshot, plan)
        found.extend(plan.moved)

    c.on_plan = on_plan
    return found


def sizes(c: Ideal) -> dict[int, int]:
    return {int(i): len(job.placement.gpus) for i, job in c.jobs.items()}


def pass_time(c: Ideal, seconds: float) -> None:
    """From event to event."""
    end = c.now + seconds
    while True:
        c.events()
        wake = c.settle()
        if c.now >= end:
            return
        c.now = min(end, wake, *c.back.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_run(name: str) -> None:
    """1, 2, 4, 2, 1: neighbours leave at 25 and 45 min; a 2-GPU job comes at 75 min, then another one."""
    c = ideal(name, adaptive(1), make_job(2, 1, 1e6, nodes=1), make_job(3, 2, 1e6, nodes=1))
    pass_time(c, 25 * MINUTE)
    assert sizes(c) == {1: 1, 2: 1, 3: 2}
    c.remove(2)
    words = said(c)
    pass_time(c, IDLE_SECONDS - 1)
    assert sizes(c)[1] == 1, "not before the time-out"
    pass_time(c, 1)
    assert sizes(c)[1] == 2
    assert words == ["grows from 1 to 2 GPUs: GPUs of s0 are free that no job waits for"]
    assert c.reasons[JobId(1)] == "goes on with 2 GPUs of s0: it asked for 1"
    pass_time(c, 15 * MINUTE)
    c.remove(3)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4}
    pass_time(c, 25 * MINUTE)
    c.add(make_job(4, 2, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 2, 4: 2}, "at once"
    c.add(make_job(5, 1, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 1, 4: 2, 5: 1}


@EVERY
def test_a_growth_is_a_promise_that_a_restart_keeps(name: str) -> None:
    c = ideal(name, adaptive(1))
    c.migration_seconds = 30.0
    plans = []
    c.on_plan = lambda _snapshot, plan: plans.append(plan)
    pass_time(c, IDLE_SECONDS)
    (target,) = [plan.targets[JobId(1)] for plan in plans if plan.targets][1:]
    assert target.keep is StateAt.STORE and target.placement.gpus == target.placement.allocation
    assert sizes(c) == {1: 0} and c.jobs[JobId(1)].promised_size == 4
    c.restart()
    pass_time(c, 10)
    assert sizes(c) == {1: 0}
    c.now += 20
    pass_time(c, 0)
    assert sizes(c) == {1: 4}


@EVERY
def test_what_it_grows_to_is_its_own_while_it_is_on_its_way(name: str) -> None:
    """A job that comes meanwhile gets its GPUs when the other one is there. Slices let it run in between."""
    c = ideal(name, adaptive(1), make_job(2, 1, 1e6, nodes=1))
    c.migration_seconds = 30.0
    pass_time(c, 1)
    c.remove(2)
    pass_time(c, IDLE_SECONDS)
    promised = c.jobs[JobId(1)].promised
    assert len(promised) == 4
    c.add(make_job(3, 1, 1e6, submit=c.now, nodes=1))
    pass_time(c, 10)
    assert sizes(c) == {1: 0, 3: int(name == "gandiva")} and c.jobs[JobId(1)].promised == promised
    if name == "gandiva":
        assert len(c.jobs[JobId(3)].placement.allocation) == 4, "it floats: no GPU is free for it alone"
    pass_time(c, 20)
    assert sizes(c)[1] == {"gandiva": 1}.get(name, 0), "it is on its way to fewer, or as asked for"
    pass_time(c, 60)
    assert sizes(c) == {1: 1 if name == "gandiva" else 2, 3: 1}


def test_where_others_came_meanwhile_it_starts_as_it_was_asked_for() -> None:
    """With slices: what it grew for is not free any more as a whole, and one GPU is."""
    c = ideal("gandiva", adaptive(1), make_job(2, 1, 1e6, nodes=1), make_job(3, 2, 1e6, nodes=1))
    c.migration_seconds = 30.0
    pass_time(c, 1)
    c.remove(2)
    pass_time(c, IDLE_SECONDS)
    assert c.jobs[JobId(1)].promised_size == 2
    c.add(make_job(4, 1, 1e6, submit=c.now, nodes=1))
    pass_time(c, 35)
    assert sizes(c) == {1: 1, 3: 2, 4: 1}


@EVERY
def test_on_its_way_it_is_as_asked_for_where_its_node_is_lost(name: str) -> None:
    c = ideal(name, adaptive(1), nodes=2)
    c.migration_seconds = 30.0
    pass_time(c, IDLE_SECONDS)
    node = next(iter(c.jobs[JobId(1)].promised)).node
    c.change_node(replace(c.nodes[node], available=False, reason="drained"))
    c.now += 30
    pass_time(c, 0)
    assert sizes(c) == {1: 1}


@pytest.mark.parametrize("changes", [{"may_resize": False}, {"may_stop": False, "may_resize": False}])
def test_only_adaptive_jobs_grow(changes: dict[str, Any]) -> None:
    c = ideal("fifo")
    c.add(replace(running(adaptive(1), gpu_set("s0:0")), **changes))
    pass_time(c, 10 * IDLE_SECONDS)
    assert sizes(c) == {1: 1}


def test_the_most_that_it_can_use_and_all_of_one_node() -> None:
    """No power of two of GPUs fits beside a job that keeps one; a job that takes two takes no four."""
    c = ideal("fifo", adaptive(1, most=2), nodes=2)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2}
    c = ideal("fifo", adaptive(1, most=16), make_job(2, 4, 1e6, nodes=1), nodes=3)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4, 2: 4}
    assert len({gpu.node for gpu in c.jobs[JobId(1)].placement.gpus}) == 1


def test_no_job_grows_on_a_gpu_that_is_not_healthy_any_more() -> None:
    """It would start again there."""
    c = ideal("fifo", adaptive(1))
    c.settle()
    node = c.nodes["s0"]
    spoil(c, *(gpu.ordinal for gpu in c.jobs[JobId(1)].placement.gpus))
    pass_time(c, 3 * IDLE_SECONDS)
    assert sizes(c) == {1: 1}
    c.change_node(node)
    pass_time(c, 3 * IDLE_SECONDS)
    assert sizes(c) == {1: 4}


def test_nothing_grows_while_a_job_may_need_the_gpus() -> None:
    """A job waits for four GPUs on one node: it needs those of s0, not those of n1, which is too small."""
    c = ideal(
        "fifo-skip", running(adaptive(1), gpu_set("s0:0")), running(make_job(2, 2), gpu_set("s0:1", "s0:2"))
    )
    c.change_node(make_node("n1", 2))
    c.add(make_job(3, 4, 1e6, nodes=1), running(adaptive(4), gpu_set("n1:0")))
    pass_time(c, 10 * IDLE_SECONDS)
    assert sizes(c) == {1: 1, 2: 2, 3: 0, 4: 2}


def test_each_arrival_starts_the_time_out_anew() -> None:
    c = ideal("fifo", adaptive(1))
    for number in range(2, 8):
        pass_time(c, IDLE_SECONDS - 1)
        c.add(make_job(number, 1, 1e6, submit=c.now, nodes=1))
        pass_time(c, 1)
        c.remove(number)
    assert sizes(c) == {1: 1}


def declare(c: Ideal, model: str, **rates: float) -> None:
    c.rates[model] = {
        Configuration("a100", int(gpus[1:])): Rate(rate, provenance=Provenance.DECLARED)
        for gpus, rate in rates.items()
    }


def test_the_job_that_gains_most_for_each_gpu_grows_first() -> None:
    """Of two free GPUs and two jobs: `fast` gains 90 %, `slow` 20 %. Then the larger, then the older one."""
    jobs = [adaptive(1, model="slow"), adaptive(2, model="fast"), make_job(3, 1, 1e6, nodes=1)]
    c = ideal("fifo", *jobs)
    declare(c, "slow", g1=100.0, g2=120.0)
    declare(c, "fast", g1=10.0, g2=19.0)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 1, 2: 2, 3: 1}
    c = ideal("fifo", *jobs)
    declare(c, "slow", g1=100.0, g2=120.0)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2, 2: 1, 3: 1}, "what is known comes first"
    c = ideal("fifo", *jobs)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2, 2: 1, 3: 1}, "the older one"


def test_declared_rates_that_do_not_rise_keep_a_job_small() -> None:
    c = ideal("fifo", adaptive(1, model="flat"))
    declare(c, "flat", g1=100.0, g2=150.0, g4=152.0)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2}


@pytest.mark.parametrize(("exponent", "size"), [(1.0, 4), (0.5, 4), (0.0, 1)])
def test_a_growth_that_gains_too_little_is_undone(exponent: float, size: int) -> None:
    c = ideal("fifo", adaptive(1, model="m"))
    c.speed = lambda job, _beside: 10.0 * len(job.placement.gpus) ** exponent
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4}
    words = said(c)
    moved = moves(c)
    pass_time(c, 2 * MINUTE)
    assert sizes(c) == {1: size}
    verdict = Verdict.KEPT if exponent else Verdict.UNDONE
    assert moved == [Moved("grow", verdict, JobId(1), pytest.approx(4**exponent))]  # type: ignore[arg-type]
    if exponent:
        assert words == [f"keeps its 4 GPUs: it does {4**exponent:.2f} times what it did on 1 GPU"]
        return
    assert words == ["shrinks from 4 to 1 GPU: it does 1.00 times what it did on 1 GPU"]
    pass_time(c, 50 * MINUTE)
    assert sizes(c) == {1: 1}
    begun = [why.partition(":")[0] for why in words if why.startswith("grows")]
    assert begun == ["grows from 1 to 2 GPUs"], "another size may do; what failed is not tried again"
    c.speed = lambda job, _beside: 10.0 * len(job.placement.gpus)
    pass_time(c, 60 * MINUTE)
    assert sizes(c) == {1: 4}, "not before the cool-down is over; the file system was slow, say"


def spoil(c: Ideal, *ordinals: int) -> None:
    """These GPUs of s0 are not healthy any more."""
    node = c.nodes["s0"]
    cards = tuple(replace(gpu, healthy=gpu.id.ordinal not in ordinals) for gpu in node.gpus)
    c.change_node(replace(node, gpus=cards))


@pytest.mark.parametrize("here", [False, True], ids=["again", "in-place"])
@pytest.mark.parametrize(("ill", "kept"), [((), 0), ((0,), 1), ((0, 2), 1), ((0, 1), 2)])
def test_a_growth_is_undone_to_the_first_healthy_gpu(here: bool, ill: tuple[int, ...], kept: int) -> None:
    c = in_place("fifo", floating(1, model="m")) if here else ideal("fifo", adaptive(1, model="m"))
    c.speed = lambda _job, _beside: 10.0
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4}
    spoil(c, *ill)
    pass_time(c, 2 * MINUTE)
    assert c.jobs[JobId(1)].placement.gpus == gpu_set(f"s0:{kept}")


@pytest.mark.parametrize(
    ("ill", "wanted", "kept"),
    [((), 2, {0, 1}), ((3,), 2, {0}), ((0,), 1, {1, 2}), ((0,), 2, {1}), ((0,), 3, {0, 1, 2, 3})],
)
def test_it_shrinks_for_another_job_to_healthy_gpus(
    ill: tuple[int, ...], wanted: int, kept: set[int]
) -> None:
    """What it gives back counts for the other job only where that is healthy."""
    c = ideal("fifo", adaptive(1))
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4}
    spoil(c, *ill)
    c.add(make_job(2, wanted, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert {gpu.ordinal for gpu in c.jobs[JobId(1)].placement.gpus} == kept
    assert sizes(c)[2] == (0 if len(kept) == 4 else wanted)


def test_a_job_without_healthy_gpus_does_not_shrink_for_another() -> None:
    c = ideal("fifo", adaptive(1, most=2), adaptive(2, most=2))
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2, 2: 2}
    spoil(c, *(gpu.ordinal for gpu in c.jobs[JobId(2)].placement.gpus))
    c.add(make_job(3, 1, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 1, 2: 2, 3: 1}


def test_who_grew_last_shrinks_first() -> None:
    """Job 1 grew before job 2; a job that waits for one GPU takes it from job 2."""
    c = ideal("fifo", adaptive(1, most=2), make_job(2, 2, 1e6, nodes=1), make_job(3, 1, 1e6, nodes=1))
    pass_time(c, 0)
    c.remove(3)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2, 2: 2}
    c.remove(2)
    c.add(adaptive(4, most=2, submit=c.now))
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2, 4: 2}
    words = said(c)
    c.add(make_job(5, 1, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 2, 4: 1, 5: 1}
    assert words == ["shrinks from 2 to 1 GPU: job 5 waits for GPUs"]


def test_one_that_is_stopped_starts_again_as_it_was_asked_for() -> None:
    """Tiresias has a new job start before one that had much: also one that grew stops as a whole."""
    c = ideal("tiresias-las", adaptive(1))
    pass_time(c, 2 * 3600.0)
    assert sizes(c) == {1: 4}
    c.add(make_job(2, 2, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 1, 2: 2}


def test_a_trial_ends_where_its_job_shrinks_for_another() -> None:
    """It grows again as soon as any other, long before the trial would have been given up."""
    c = ideal("fifo", adaptive(1, model="m"))
    c.speed = lambda job, _beside: 10.0 * len(job.placement.gpus)
    pass_time(c, IDLE_SECONDS + 1)
    assert sizes(c) == {1: 4}
    c.add(make_job(2, 3, 1e6, submit=c.now, nodes=1))
    pass_time(c, 1)
    assert sizes(c) == {1: 1, 2: 3}
    c.remove(2)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4}


def test_nothing_shrinks_where_that_helps_no_job() -> None:
    c = ideal("fifo-skip", adaptive(1), nodes=1)
    pass_time(c, IDLE_SECONDS)
    c.add(make_job(2, 4, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 4, 2: 0}, "it keeps one of four whatever it does"
    c.add(make_job(3, 2, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 2, 2: 0, 3: 2}


def test_it_does_not_follow_allocations() -> None:
    with pytest.raises(SettingsError, match="gavel-las computes shares"):
        policy("gavel-las")()


def test_a_node_is_kept_for_what_its_jobs_asked_for() -> None:
    """Jobs of that size come to it, however large one of them is just now."""
    c = ideal("gandiva", adaptive(1))
    pass_time(c, IDLE_SECONDS + 60)
    assert sizes(c) == {1: 4}
    assert c.common["lanes"]["affinity"] == {"s0": 1}


WIDE = Placement(frozenset(), gpu_set("s0:0", "s0:1", "s0:2", "s0:3"))


# -- in place -------------------------------------------------------------------------------------------


def floating(number: int, gpus: int = 1, most: int = 4, **changes: Any) -> Job:
    """A job that may change its size within its allocation."""
    return replace(adaptive(number, gpus, most, **changes), may_resize=False, may_resize_here=True)


def in_place(name: str, *jobs: Job, nodes: int = 1, **settings: Any) -> Ideal:
    settings = {"in_place": True, **settings}
    c = Ideal(policy(name, **settings), [make_node(f"s{i}", 4) for i in range(nodes)], [], bound=True)
    c.add(*jobs)
    return c


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_run_in_place(name: str) -> None:
    """Bound to the whole node, on as many of its GPUs as it has just now."""
    c = in_place(name, floating(1), make_job(2, 1, 1e6, nodes=1), make_job(3, 2, 1e6, nodes=1))
    allocations: set[int] = set()
    c.on_plan = lambda _snapshot, plan: allocations.update(
        len(target.placement.allocation) for i, target in plan.targets.items() if i == 1
    )
    pass_time(c, 25 * MINUTE)
    assert sizes(c) == {1: 1, 2: 1, 3: 2}
    c.remove(2)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c)[1] == 2
    pass_time(c, 15 * MINUTE)
    c.remove(3)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4}
    pass_time(c, 25 * MINUTE)
    c.add(make_job(4, 2, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 2, 4: 2}, "at once"
    c.add(make_job(5, 1, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    assert sizes(c) == {1: 1, 4: 2, 5: 1}
    assert allocations == {4} and c.timeline.preemptions == 0


@EVERY
def test_it_grows_only_within_its_allocation(name: str) -> None:
    """The other GPUs of its node were not usable when it started."""
    node = make_node("s0", 4)
    gpus = tuple(replace(gpu, healthy=i < 2) for i, gpu in enumerate(node.gpus))
    c = in_place(name, floating(1), nodes=0)
    c.change_node(replace(node, gpus=gpus))
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 2}
    c.change_node(node)
    pass_time(c, 2 * IDLE_SECONDS)
    assert sizes(c) == {1: 2}


@EVERY
def test_where_it_cannot_be_kept_to_its_gpus_it_is_bound_to_no_others(name: str) -> None:
    c = in_place(name, floating(1), nodes=0)
    c.change_node(make_node("s0", 4, unconfined="the kernel has no device control groups"))
    pass_time(c, IDLE_SECONDS)
    assert c.jobs[JobId(1)].placement.allocation == gpu_set("s0:0")


@pytest.mark.parametrize(("shards", "among"), [(1, {0, 1, 2}), (2, {0, 1, 2, 3})])
def test_it_is_bound_to_no_gpu_that_has_no_shard_left(shards: int, among: set[int]) -> None:
    c = in_place("fifo", running(make_job(1, 1, 1e6), gpu_set("s0:3")), floating(2), nodes=0)
    c.change_node(make_node("s0", 4, shards=shards))
    pass_time(c, 0)
    assert {gpu.ordinal for gpu in c.jobs[JobId(2)].placement.allocation} == among


@pytest.mark.parametrize("enabled", [True, False])
def test_only_where_the_site_lets_it(enabled: bool) -> None:
    c = in_place("fifo", floating(1), in_place=enabled)
    pass_time(c, IDLE_SECONDS)
    assert sizes(c) == {1: 4 if enabled else 1}
    assert len(c.jobs[JobId(1)].placement.allocation) == (4 if enabled else 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_bound_to_just_its_gpus_it_starts_again_from_its_checkpoint(enabled: bool) -> None:
    job = replace(floating(1), may_resize=True)
    alone = running(job, gpu_set("s0:0"))
    c = in_place("fifo", alone, in_place=enabled)
    pass_time(c, IDLE_SECONDS)
    assert len(c.jobs[JobId(1)].promised | c.jobs[JobId(1)].placement.gpus) == 4


def test_a_floating_job_grows_only_where_the_site_lets_it() -> None:
    wide = gpu_set(*(f"s0:{i}" for i in range(4)))
    job = running(floating(1), gpu_set("s0:0"))
    c = in_place("fifo", replace(job, placement=replace(job.placement, allocation=wide)), in_place=False)
    pass_time(c, 2 * IDLE_SECONDS)
    assert sizes(c) == {1: 1}


def test_stopped_it_comes_back_as_it_was_asked_for_on_any_gpu_of_its_allocation() -> None:
    c = in_place("tiresias-las", floating(1))
    pass_time(c, 2 * 3600.0)
    assert sizes(c) == {1: 4}
    c.add(make_job(2, 2, 1e6, submit=c.now, nodes=1))
    pass_time(c, 0)
    pass_time(c, 1)
    assert sizes(c) == {1: 1, 2: 2} and c.jobs[JobId(1)].placement.gpus.isdisjoint(
        c.jobs[JobId(2)].placement.gpus
    )


def test_what_binds_it_to_its_gpus_brings_it_back_on_as_many() -> None:
    """It left a context on each of them: it waits until all four are free."""
    c = in_place("fifo-skip")
    grown = running(replace(floating(1), kept_size=4), gpu_set("s0:0", "s0:1", "s0:2", "s0:3"))
    c.add(suspended(grown, grown.placement.gpus), running(make_job(2), gpu_set("s0:0")))
    c.change(1, may_move=False, may_resize_here=False)
    pass_time(c, 0)
    assert sizes(c) == {1: 0, 2: 1}
    c.remove(2)
    pass_time(c, 0)
    assert sizes(c) == {1: 4}


def test_a_new_job_takes_gpus_that_nothing_runs_on() -> None:
    """The floating job need not move for it."""
    c = in_place("gandiva", running(replace(floating(1), placement=WIDE), gpu_set("s0:0", "s0:1")))
    c.add(make_job(2, 2, 1e6, nodes=1))
    pass_time(c, 0)
    assert c.jobs[JobId(1)].placement.gpus == gpu_set("s0:0", "s0:1")
    assert c.jobs[JobId(2)].placement.gpus == gpu_set("s0:2", "s0:3")
