# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds: GPUs that the choice of a round leaves, and the jobs that wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from controller.model import Changes, Job, JobId, Memory, Node, Problem, ProblemKind, Snapshot, Solution
from controller.model.solving import SolutionStatus
from controller.policies.allocations.allocation import Allocated, Fractions, Given
from controller.policies.allocations.table import FractionTable, tabulated
from controller.policies.mechanisms.rounds import layout
from controller.policies.mechanisms.rounds.selection import Choice, Selection
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.protocol import Policy
from tests.unit.policies.ideal import GIB, gpu_set, make_job, make_node, running
from tests.unit.policies.presets import rounds

TYPE = "v100"


class Asking:
    """What is asked is solved outside: the same fraction of the type for each job."""

    def begin(self, given: Given) -> Problem | Allocated:
        self.jobs = [job.id for job in given.jobs]
        return Problem(ProblemKind.LINEAR, {"jobs": len(given.jobs)})

    def read(self, solution: Solution) -> FractionTable:
        return tabulated({(job_id,): {TYPE: 1.0 / len(self.jobs)} for job_id in self.jobs}, (TYPE,))


class InTurn:
    """The first job has the largest fraction of the type, and so on."""

    def begin(self, given: Given) -> Problem | Allocated:
        fractions: Fractions = {(job.id,): {TYPE: 1.0 / job.id} for job in given.jobs}
        return Allocated(fractions=fractions, objective=0.0, status="optimal")

    def read(self, solution: Solution) -> FractionTable:
        raise AssertionError("nothing was asked")


def looked_at(nodes: Sequence[Node], jobs: Sequence[Job], seconds: float = 0.0) -> Snapshot:
    return Snapshot(
        time=seconds, nodes={node.name: node for node in nodes}, jobs={job.id: job for job in jobs}
    )


def starts(policy: Policy, snapshot: Snapshot, memory: Memory | None = None) -> set[JobId]:
    return set(policy.plan(snapshot, memory or Memory()).targets)


def test_a_job_that_keeps_gpus_of_a_drained_node_takes_none_of_the_others() -> None:
    """Four of its GPUs are on a node where nothing starts: of those that are to be given it has two, and two
    are left for the job that waits."""
    nodes = [replace(make_node("n1", 4, model=TYPE), available=False), make_node("n2", 4, model=TYPE)]
    on = gpu_set("n1:0", "n1:1", "n1:2", "n1:3", "n2:0", "n2:1")
    jobs = [running(make_job(1, 6), on), make_job(2, 2, submit=1.0)]
    assert starts(rounds(InTurn(), RoundSettings()), looked_at(nodes, jobs)) == {2}


def test_a_choice_takes_the_gpus_that_its_job_has_on_this_kind_alone() -> None:
    order = [Choice((JobId(1),), "k80"), Choice((JobId(1),), TYPE), Choice((JobId(2),), TYPE)]
    gpus, own = {JobId(1): 4, JobId(2): 2}, {(JobId(1), TYPE): 1}
    selection = Selection(order, gpus, {TYPE: 3, "k80": 3}, own)
    assert selection.go_on() == order[1:]
    assert selection.cut({order[1]}) == order[1:]
    assert Selection(order, gpus, {TYPE: 3, "k80": 4}, own).go_on() == [order[0], order[2]]


def test_what_was_in_the_way_of_a_choice_may_be_gone_and_it_is_looked_at_again() -> None:
    """The gang of two is placed before the second job, on the only node that takes that job. The job is
    passed over, and the gang is placed anew, on the other node. The next plan is made at once, and starts the
    job."""
    nodes = [make_node("n1", 3, model=TYPE), make_node("n2", 2, model=TYPE)]
    jobs = [make_job(1, 1), make_job(2, 1, required_nodes=frozenset({"n2"})), make_job(3, 2, nodes=1)]
    policy, snapshot = rounds(InTurn(), RoundSettings()), looked_at(nodes, jobs)
    plan = policy.plan(snapshot, Memory())
    assert set(plan.targets) == {1, 3} and plan.wake_at == 0.0
    on: Mapping[JobId, Job] = {
        i: running(snapshot.jobs[i], target.placement.gpus) for i, target in plan.targets.items()
    }
    later = replace(snapshot, jobs={**snapshot.jobs, **on}, changed=Changes(frozenset(on), frozenset()))
    again = policy.plan(later, Memory())
    assert set(again.targets) == {2} and again.wake_at == pytest.approx(360.0)


def failed(snapshot: Snapshot, problem: Problem, seconds: float) -> Snapshot:
    """The solver says so, and nothing else changes."""
    solution = Solution(problem=problem.identity, status=SolutionStatus.FAILED, error="no answer")
    changed = Changes(frozenset(), frozenset(), frozenset({"allocation"}))
    return replace(snapshot, time=seconds, solutions={"allocation": solution}, changed=changed)


def test_jobs_that_wait_for_an_allocation_that_fails_start_at_once() -> None:
    nodes, first = [make_node("n1", 2, model=TYPE)], running(make_job(1), gpu_set("n1:0"))
    policy, snapshot = rounds(Asking(), RoundSettings()), looked_at(nodes, [first])
    problem = policy.plan(snapshot, Memory()).problems["allocation"]
    solution = Solution(problem=problem.identity, status=SolutionStatus.OPTIMAL)
    snapshot = replace(snapshot, solutions={"allocation": solution}, time=1.0)
    solved = Changes(frozenset(), frozenset(), frozenset({"allocation"}))
    policy.plan(replace(snapshot, changed=solved), Memory())
    second = make_job(2, submit=2.0)
    snapshot = replace(looked_at(nodes, [first, second], 2.0), solutions=snapshot.solutions)
    came = replace(snapshot, changed=Changes(frozenset({second.id}), frozenset()))
    plan = policy.plan(came, Memory())
    assert not plan.targets and plan.problems
    assert starts(policy, failed(snapshot, plan.problems["allocation"], 3.0)) == {2}


def test_an_allocation_that_fails_when_no_job_is_left_does_not_keep_the_next_from_being_asked() -> None:
    nodes, policy = [make_node("n1", 2, model=TYPE)], rounds(Asking(), RoundSettings())
    problem = policy.plan(looked_at(nodes, [make_job(1)]), Memory()).problems["allocation"]
    gone = Changes(frozenset({JobId(1)}), frozenset(), frozenset({"allocation"}))
    policy.plan(replace(failed(looked_at(nodes, []), problem, 1.0), changed=gone), Memory())
    came = replace(looked_at(nodes, [make_job(2), make_job(3)], 400.0), solutions={})
    came = replace(came, changed=Changes(frozenset(came.jobs), frozenset()))
    assert policy.plan(came, Memory()).problems


BLOCKED = 20
"""More than are laid out together before jobs are laid out one by one."""


def test_any_number_of_jobs_without_a_place_keep_no_gpu_from_the_job_behind_them() -> None:
    """The node has too little memory for all but the last one."""
    jobs = [make_job(number, memory_per_node_bytes=20 * GIB) for number in range(1, BLOCKED + 1)]
    node = make_node("n1", 1, model=TYPE, memory_free_bytes=16 * GIB)
    last = make_job(BLOCKED + 1)
    assert starts(rounds(InTurn(), RoundSettings()), looked_at([node], [*jobs, last])) == {last.id}


def test_jobs_without_a_place_do_not_stop_those_behind_them() -> None:
    """A round begins: the two that run are listed after all that have no place."""
    jobs = [make_job(number, memory_per_node_bytes=20 * GIB) for number in range(1, 3 * BLOCKED)]
    node = make_node("n1", 2, model=TYPE, memory_free_bytes=16 * GIB)
    on = [running(make_job(100 + number), gpu_set(f"n1:{number}")) for number in range(2)]
    assert starts(rounds(InTurn(), RoundSettings()), looked_at([node], [*jobs, *on])) == set()


def test_a_gang_takes_its_room_from_jobs_behind_it() -> None:
    """One job runs on each node of two GPUs. The gang needs a whole node."""
    nodes = [make_node(name, 2, model=TYPE) for name in ("n1", "n2")]
    on = [running(make_job(number), gpu_set(f"n{number - 1}:0")) for number in (2, 3)]
    plan = rounds(InTurn(), RoundSettings()).plan(looked_at(nodes, [make_job(1, 2, nodes=1), *on]), Memory())
    assert plan.targets[JobId(1)].placement.gpus in (gpu_set("n1:0", "n1:1"), gpu_set("n2:0", "n2:1"))


def test_what_was_sought_in_vain_is_found_once_others_are_taken_back() -> None:
    """Job 4 finds the node taken by job 3. Job 1 has no place at all: without it job 2 is chosen, and job 3,
    whose GPUs are taken back, is not. Job 5 seeks what job 4 sought, and finds it."""
    nodes = [make_node(f"n{number}", 2 if number == 1 else 1, model=TYPE) for number in range(1, 8)]
    nodes = [replace(node, memory_free_bytes=16 * GIB) for node in nodes]
    there = frozenset({"n1"})
    jobs = [
        make_job(1, 5, nodes=5, memory_per_node_bytes=20 * GIB),
        make_job(2, 7, nodes=7),
        make_job(3, 2, nodes=1),
        make_job(4, required_nodes=there),
        make_job(5, required_nodes=there),
    ]
    assert starts(rounds(InTurn(), RoundSettings()), looked_at(nodes, jobs)) == {2, 5}


class PairFirst(InTurn):
    """The first two jobs are a pair with a large fraction, and have none alone."""

    def begin(self, given: Given) -> Problem | Allocated:
        one, other, *others = [job.id for job in given.jobs]
        fractions: Fractions = {(one, other): {TYPE: 0.9}, (one,): {TYPE: 0.0}, (other,): {TYPE: 0.0}}
        fractions = {**fractions, **{(job_id,): {TYPE: 0.1} for job_id in others}}
        return Allocated(fractions=fractions, objective=0.0, status="optimal")


@pytest.mark.parametrize("tries", [1, 2, 16])
def test_no_job_of_a_pair_without_a_place_stays_on_its_gpus(
    monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """The first job runs. Its partner does not ask to share, so the GPU is the third job's in this round."""
    monkeypatch.setattr(layout, "_TRIES", tries)
    nodes, on = [make_node("n1", 1, model=TYPE)], gpu_set("n1:0")
    jobs = [running(make_job(1), on), make_job(2), make_job(3)]
    plan = rounds(PairFirst(), RoundSettings(), pairs=True).plan(looked_at(nodes, jobs), Memory())
    assert {i: target.placement.gpus for i, target in plan.targets.items()} == {1: frozenset(), 3: on}
    assert [i for i, note in plan.memory.jobs.items() if note and note[0]] == [3]
