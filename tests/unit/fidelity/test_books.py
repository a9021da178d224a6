# SPDX-License-Identifier: GPL-2.0-or-later
"""The books of Gavel's simulator, way by way. Numbers worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.fidelity.gavel_ways.books import Books
from controller.model import JobId, Memory, Snapshot
from controller.policies.assemble import make_policy
from controller.policies.site import Guarded
from controller.simulation.configure import configure
from tests.unit.policies.ideal import Ideal, cluster, make_job

GAVEL = Path(__file__).resolve().parents[3] / "benchmarks/fidelity/gavel.toml"
TYPES = ("v100", "k80")


def books(
    fractions: Mapping[int, Mapping[str, float]],
    *,
    gpus: int = 1,
    steps: int = 10**6,
    rates: Mapping[str, float] | None = None,
    floor: float = 1920.0,
    seed: int | None = None,
    only_allocated: bool = False,
) -> Books:
    """At time 0, with these jobs and fractions."""
    made = Books(TYPES, 360.0, floor, seed, only_allocated=only_allocated)
    for job_id in fractions:
        made.add(JobId(job_id), gpus, rates or {"v100": 1.0, "k80": 0.5}, steps)
    made.reset(0.0)
    made.adopt({JobId(job_id): row for job_id, row in fractions.items()})
    return made


def chosen(made: Books, **workers: int) -> dict[int, str]:
    return {choice.jobs[0]: choice.gpu_type for choice in made.choose({**dict.fromkeys(TYPES, 0), **workers})}


def play(made: Books, now: float, **workers: int) -> tuple[dict[int, str], float]:
    """A round, and when it ends."""
    who = chosen(made, **workers)
    until = made.begin({JobId(i): t for i, t in who.items()}, now)
    made.end()
    assert until is not None
    return who, until


def test_types_are_gone_through_one_after_the_other() -> None:
    # In one list by priority job 1 would take the K80: there its part is larger.
    made = books({1: {"v100": 0.4, "k80": 0.6}, 2: {"v100": 0.3, "k80": 0.1}})
    assert chosen(made, v100=1, k80=1) == {1: "v100", 2: "k80"}


def test_only_allocated_leaves_gpus_idle() -> None:
    fractions = {1: {"v100": 1.0, "k80": 0.0}, 2: {"v100": 0.0, "k80": 0.0}}
    assert chosen(books(fractions), v100=1, k80=1) == {1: "v100", 2: "k80"}
    assert chosen(books(fractions, only_allocated=True), v100=1, k80=1) == {1: "v100"}


def test_the_order_of_types_is_drawn_each_round() -> None:
    drawn = random.Random(3 + 5)
    made = books({1: {"v100": 0.5, "k80": 0.5}}, seed=3)
    for _ in range(8):
        order = list(TYPES)
        drawn.shuffle(order)
        assert chosen(made, v100=1, k80=1) == {1: order[0]}


def test_priority_is_by_parts_of_time_with_half_a_round_for_all_to_begin_with() -> None:
    made = books({1: {"v100": 0.5, "k80": 0.0}, 2: {"v100": 0.25, "k80": 0.0}})
    # 0.5 / (180 / 360) and 0.25 / (180 / 360); then 0.5 / (540 / 720) and 0.25 / (180 / 720): job 2 is first.
    history = [play(made, 360.0 * number, v100=1)[0] for number in range(3)]
    assert history == [{1: "v100"}, {2: "v100"}, {1: "v100"}]


def test_a_gang_counts_as_one_job() -> None:
    made = books({1: {"v100": 0.5}})
    made.add(JobId(2), 4, {"v100": 1.0}, 10**6)
    made.reset(0.0)
    made.adopt({JobId(1): {"v100": 0.5}, JobId(2): {"v100": 0.5}})
    play(made, 0.0, v100=4)
    assert [chosen(made, v100=4)] == [{2: "v100"}]
    made.begin({JobId(2): "v100"}, 360.0)
    made.end()
    assert made.jobs[JobId(1)].seconds["v100"] == made.jobs[JobId(2)].seconds["v100"] == 540.0


def test_who_had_too_little_comes_first_among_equals() -> None:
    made = books({1: {"v100": 0.5, "k80": 0.0}, 2: {"v100": 0.5, "k80": 0.0}})
    assert play(made, 0.0, v100=1)[0] == {1: "v100"}
    made.add(JobId(3), 1, {"v100": 1.0}, 10)
    made.reset(1920.0)
    assert [made.jobs[JobId(i)].deficit["v100"] for i in (1, 2, 3)] == [600.0, 960.0, 0.0]
    made.adopt({JobId(i): {"v100": 1 / 3} for i in (1, 2, 3)})
    assert chosen(made, v100=2) == {1: "v100", 2: "v100"}
    assert chosen(made, v100=1) == {2: "v100"}


def test_a_gang_that_does_not_fit_is_passed_over() -> None:
    made = books({1: {"v100": 0.9}}, gpus=2)
    made.add(JobId(2), 1, {"v100": 1.0}, 10**6)
    made.adopt({JobId(1): {"v100": 0.9}, JobId(2): {"v100": 0.1}})
    assert chosen(made, v100=1) == {2: "v100"}


def test_a_job_without_an_allocation_does_not_run_but_keeps_gpus_from_those_behind_it() -> None:
    made = books({1: {"v100": 0.5, "k80": 0.0}})
    made.add(JobId(2), 1, {"v100": 1.0, "k80": 0.5}, 10)
    assert chosen(made, v100=2, k80=1) == {1: "v100"}
    # Job 1 had too much of the K80, on which it has no part.
    made.jobs[JobId(1)].deficit["k80"] = -1.0
    assert chosen(made, k80=1) == {}


def test_the_floor_between_two_resets_holds_once_one_was_after_time_0() -> None:
    made = books({1: {"v100": 1.0}})
    assert not made.may_reset(360.0)  # nothing is new
    made.add(JobId(2), 1, {"v100": 1.0}, 10)
    assert made.may_reset(360.0)  # though the last one was at 0
    made.reset(360.0)
    made.remove(JobId(2))
    assert not made.may_reset(2279.0)
    assert made.may_reset(2280.0)


def test_a_round_is_so_many_whole_steps_and_ends_with_the_longest() -> None:
    made = books({1: {"v100": 1.0}}, rates={"v100": 0.013})
    made.add(JobId(2), 1, {"v100": 1.0}, 7)
    made.adopt({JobId(1): {"v100": 0.5}, JobId(2): {"v100": 0.5}})
    who, until = play(made, 100.0, v100=2)
    assert len(who) == 2
    assert until == 100.0 + 4 / 0.013  # 4.68 fit in
    assert [made.jobs[JobId(i)].steps_left for i in (1, 2)] == [10**6 - 4, 0]
    # What a job received counts from the end of the round before.
    assert made.jobs[JobId(2)].seconds["v100"] == 180.0 + 107.0


def test_a_job_that_takes_longer_than_declared_goes_on_round_by_round() -> None:
    made = books({1: {"v100": 1.0}}, steps=10)
    now = 0.0
    for expected in (10.0, 370.0, 730.0):
        _, now = play(made, now, v100=1)
        assert now == expected
    assert made.jobs[JobId(1)].steps_left == 0


def test_a_gang_with_fewer_steps_left_than_gpus_gets_nothing_done() -> None:
    made = books({1: {"v100": 1.0}}, gpus=4, steps=3)
    assert play(made, 0.0, v100=4)[1] == 3.0
    assert made.jobs[JobId(1)].steps_left == 3
    assert made.jobs[JobId(1)].seconds["v100"] == 180.0
    assert made.may_reset(0.0)


def test_what_was_received_is_added_before_what_was_due_is() -> None:
    """The order of the sums: the last bit decides between jobs that had the same."""
    made = books({1: {"v100": 0.1}})
    made.jobs[JobId(1)].deficit["v100"] = 0.3
    made.jobs[JobId(1)].seconds["v100"] = 180.0 + 0.7
    made.reset(1.0)
    received = (180.0 + 0.7) - 180.0
    assert made.jobs[JobId(1)].deficit["v100"] == 0.3 + (0.1 * 1.0 - received)


def test_seconds_on_a_part_of_the_cluster_of_its_own() -> None:
    made = books({1: {"v100": 1.0}}, steps=1000)
    made.count_isolated({JobId(1): 2.0})
    play(made, 0.0, v100=1)
    made.count_isolated({JobId(1): 0.5})
    assert made.jobs[JobId(1)].isolated_seconds == 360 / 2.0


def paired(steps: tuple[int, int] = (10**6, 10**6), gpus: int = 1, pair: float = 0.5) -> Books:
    """Jobs 1 and 2 with 0.8 and 0.4 steps per second on the V100 together, and none on the K80."""
    made = Books(TYPES, 360.0, 1920.0, None)
    made.add(JobId(1), gpus, {"v100": 1.0, "k80": 0.5}, steps[0])
    made.add(JobId(2), gpus, {"v100": 0.5, "k80": 0.5}, steps[1], {JobId(1): {"v100": (0.8, 0.4)}})
    made.reset(0.0)
    alone = {JobId(number): {"v100": 0.1} for number in (1, 2)}
    made.adopt(alone, {(JobId(1), JobId(2)): {"v100": pair, "k80": 1.0}})
    return made


def run_pair(made: Books, now: float) -> float:
    until = made.begin({JobId(1): "v100", JobId(2): "v100"}, now, {JobId(1): JobId(2), JobId(2): JobId(1)})
    assert until is not None
    made.end()
    return until


def test_a_pair_stands_in_the_list_after_the_later_of_its_jobs() -> None:
    both = [(1, 2), "v100"]
    assert [[c.jobs, c.gpu_type] for c in paired().choose({"v100": 2, "k80": 2})] == [both]
    # The first reset counts the half round that a pair begins without as a deficit.
    made = paired(pair=0.1)
    assert made.pairs[JobId(1), JobId(2)].deficit["v100"] == 180.0
    assert [c.jobs for c in made.choose({"v100": 1, "k80": 0})] == [(1, 2)]
    # Equal rows stand in the order in which jobs came: job 2 came before its pair with job 1.
    made.pairs[JobId(1), JobId(2)].deficit["v100"] = 0.0
    assert [c.jobs for c in made.choose({"v100": 1, "k80": 0})] == [(1,)]
    made = paired(pair=0.0)
    assert [[c.jobs, c.gpu_type] for c in made.choose({"v100": 1, "k80": 1})] == [
        [(1,), "v100"],
        [(2,), "k80"],
    ]


def test_a_pair_does_not_run_on_a_type_where_one_makes_no_steps() -> None:
    assert [c.jobs for c in paired().choose({"v100": 0, "k80": 1})] == [(1,)]


def test_a_pair_is_done_when_the_later_one_is_and_its_time_is_its_own() -> None:
    made = paired(steps=(100, 100))
    assert run_pair(made, 0.0) == 100 / 0.4
    pair = made.pairs[JobId(1), JobId(2)]
    assert [made.jobs[JobId(number)].steps_left for number in (1, 2)] == [0, 0]
    # It begins with half a round from the first reset on, like all others.
    assert pair.seconds["v100"] == 180.0 + 250.0
    assert made.jobs[JobId(1)].seconds["v100"] == 180.0


def test_a_pair_that_came_after_the_last_reset_begins_with_nothing() -> None:
    made = paired()
    made.add(JobId(3), 1, {"v100": 1.0}, 100, {JobId(1): {"v100": (1.0, 1.0)}, JobId(2): {}})
    assert made.pairs[JobId(1), JobId(3)].seconds["v100"] == 0.0
    assert made.jobs[JobId(3)].seconds["v100"] == 180.0
    made.remove(JobId(1))
    assert list(made.pairs) == [(2, 3)]


def test_where_one_of_a_pair_gets_nothing_done_neither_does() -> None:
    made = paired(steps=(3, 1000), gpus=4)
    run_pair(made, 0.0)
    assert [made.jobs[JobId(number)].steps_left for number in (1, 2)] == [3, 1000]
    assert made.pairs[JobId(1), JobId(2)].seconds["v100"] == 180.0
    assert made.may_reset(0.0)


def test_fractions_of_a_job_that_ended_are_known_until_the_next_allocation() -> None:
    made = books({1: {"v100": 1.0}, 2: {"k80": 1.0}})
    made.remove(JobId(1))
    assert made.gone == {(JobId(1),): {"v100": 1.0, "k80": 0.0}}
    made.adopt({JobId(2): {"k80": 1.0}})
    assert not made.gone


@pytest.mark.parametrize(
    ("name", "settings", "drawn"),
    [
        ("gavel-las", ["throughputs=agnostic"], True),
        ("gavel-las", [], False),
        ("isolated", [], True),
        ("gavel-gandiva", [], False),
    ],
)
def test_types_are_drawn_where_neither_speeds_nor_pairs_are_known(
    name: str, settings: list[str], drawn: bool
) -> None:
    guarded = make_policy(configure(GAVEL, name, ["type_seed=1", *settings]).policy)
    assert isinstance(guarded, Guarded)
    guarded.plan(Snapshot(time=0.0, nodes={}, jobs={}), Memory())
    books: Books = guarded.policy._books  # type: ignore[attr-defined]
    assert (books._seed is not None) is drawn


def test_a_gang_does_not_keep_allox_from_the_other_jobs() -> None:
    """Of three jobs of one GPU each has its turn; the gang has the GPUs that they leave."""
    jobs = [make_job(1, 1, 720.0), make_job(2, 1, 360.0), make_job(3, 1, 600.0), make_job(4, 2, 600.0)]
    settings = configure(GAVEL, "allox", ["round_seconds=60.0"]).policy
    ideal = Ideal(lambda: make_policy(settings), cluster(1, 2), jobs)
    ideal.own_words = True
    ideal.run(until=300.0)
    assert len(ideal.running()) == 2 and 4 not in ideal.running()
    ideal.run(until=1500.0)
    assert {1, 2, 3} == set(ideal.timeline.ends) and ideal.running() == {4}
