# SPDX-License-Identifier: GPL-2.0-or-later
"""Problems as data, and what HiGHS and Clarabel make of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.model import Cone, Problem, ProblemKind, Solution, SolutionStatus
from controller.solver import ImmediateSolver, conic, linear
from controller.solver.frames import InvalidAnswer, decode
from controller.solver.problem_data import Found, matrix_of
from controller.solver.solve import find
from tests.unit.allocations.problems import answer, everyday
from tests.unit.draws import draws
from tests.unit.solver.rows import Rows

BOTH = [kind for kind in ProblemKind if kind is not ProblemKind.ALLOCATION]


def solved(problem: Problem) -> Solution:
    solver = ImmediateSolver()
    solver.submit("x", problem, lambda: None)
    return solver.take()["x"]


def max_min(rates: list[list[float]], gpus: list[float]) -> Rows:
    """Variables: the least rate, then the fraction of time of each job on each GPU type, job by job."""
    program = Rows()
    (least,) = program.variables(1, cost=-1.0)
    fractions = [program.variables(len(gpus)) for _ in rates]
    for of_job, rate in zip(fractions, rates, strict=True):
        for fraction in of_job:
            program.at_most([(fraction, -1.0)], 0.0)
        program.at_most([(fraction, 1.0) for fraction in of_job], 1.0)
        program.at_most([(least, 1.0), *((f, -r) for f, r in zip(of_job, rate, strict=True))], 0.0)
    for number, count in enumerate(gpus):
        program.at_most([(of_job[number], 1.0) for of_job in fractions], count)
    return program


@pytest.mark.parametrize("kind", BOTH)
def test_max_min_fairness_of_the_gavel_paper(kind: ProblemKind) -> None:
    """Vector A of the specification: three jobs, one V100 and one K80, rates of 40/10, 12/4 and 100/50,
    normalised by what an equal split gives."""
    table = [[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]]
    rates = [[rate / sum(row) * 2 for rate in row] for row in table]
    found = solved(Problem(kind, max_min(rates, [1.0, 1.0]).data()))
    assert found.status is SolutionStatus.OPTIMAL
    expected = (8 / 11, 5 / 11, 0, 5 / 11, 1 / 11, 1 / 11, 10 / 11)
    assert found.values == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", BOTH)
def test_what_has_no_solution_says_so(kind: ProblemKind) -> None:
    program = Rows()
    (x,) = program.variables(1, cost=1.0)
    program.at_most([(x, 1.0)], 1.0)
    assert solved(Problem(kind, program.data())).status is SolutionStatus.UNBOUNDED
    program.at_most([(x, -1.0)], -2.0)
    found = solved(Problem(kind, program.data()))
    assert found.status is SolutionStatus.INFEASIBLE
    assert found.values == () and found.error == ""


@pytest.mark.parametrize("kind", BOTH)
def test_equal_is_equal(kind: ProblemKind) -> None:
    program = Rows()
    x, y = program.variables(2, cost=1.0)
    program.equal([(x, 1.0), (y, 2.0)], 4.0)
    program.at_most([(x, -1.0)], -1.0)
    program.at_most([(y, -1.0)], 0.0)
    assert solved(Problem(kind, program.data())).values == pytest.approx((1.0, 1.5), abs=1e-6)


def test_a_second_order_cone() -> None:
    """The point of a disc of radius 2 that is farthest along (-1, -1)."""
    program = Rows()
    x, y = program.variables(2, cost=1.0)
    program.cone(Cone.SECOND_ORDER, [([], 2.0), ([(x, 1.0)], 0.0), ([(y, 1.0)], 0.0)])
    found = solved(Problem(ProblemKind.CONIC, program.data()))
    assert found.values == pytest.approx((-math.sqrt(2), -math.sqrt(2)), abs=1e-6)


def test_an_exponential_cone() -> None:
    """The largest logarithm: x <= log 5."""
    program = Rows()
    (x,) = program.variables(1, cost=-1.0)
    program.cone(Cone.EXPONENTIAL, [([(x, -1.0)], 0.0), ([], 1.0), ([], 5.0)])
    assert solved(Problem(ProblemKind.CONIC, program.data())).values == pytest.approx(
        (math.log(5),), abs=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (ProblemKind.LINEAR, {"cones": [["second-order", 1]]}, "no cone"),
        (ProblemKind.CONIC, {"cones": [["cube", 1]]}, "cube"),
        (ProblemKind.CONIC, {"cones": [["nonnegative", 7]]}, ""),
        (ProblemKind.LINEAR, {"rows": [9]}, ""),
        (ProblemKind.LINEAR, {"values": ["many"]}, ""),
        (ProblemKind.LINEAR, {"limits": None}, ""),
    ],
)
def test_a_problem_that_is_stated_wrongly_fails_alone(
    kind: ProblemKind, change: dict[str, Any], said: str
) -> None:
    program = Rows()
    (x,) = program.variables(1, cost=-1.0)
    program.at_most([(x, 1.0)], 1.0)
    assert solved(Problem(kind, program.data())).values == pytest.approx((1.0,), abs=1e-6)
    found = solved(Problem(kind, {**program.data(), **change}))
    assert found.status is SolutionStatus.FAILED
    assert found.error and said in found.error


def test_interior_points_are_no_corners() -> None:
    """All of x + y + z = 1.5 within 0…1 are equal, and both solvers find the middle."""
    program = Rows()
    each = program.variables(3)
    for x in each:
        program.at_most([(x, -1.0)], 0.0)
        program.at_most([(x, 1.0)], 1.0)
    program.equal([(x, 1.0) for x in each], 1.5)
    for kind in (ProblemKind.LINEAR, ProblemKind.CONIC):
        assert solved(Problem(kind, program.data())).values == pytest.approx([0.5] * 3, abs=1e-6)


def test_a_small_problem_that_presolve_cannot_take_back() -> None:
    """The largest sum of throughputs of two jobs on two types."""
    program, rates = Rows(), [0.0, 5.0, 3.0, 3.0]
    each = [program.variables(1, cost=-rate)[0] for rate in rates]
    for x in each:
        program.at_most([(x, -1.0)], 0.0)
    for some in ([0, 2], [1, 3], [0, 1], [2, 3]):
        program.at_most([(each[number], 1.0) for number in some], 1.0)
    status, values, _ = linear.solve_linear(program.data())
    assert status is SolutionStatus.OPTIMAL and values == pytest.approx([0.0, 1.0, 1.0, 0.0], abs=1e-6)


def test_an_interior_point_that_came_to_a_halt_is_not_exact() -> None:
    """HiGHS calls it optimal: its objective is smaller by 3e-6. Clarabel is asked."""
    problem = everyday(535)
    found = [
        answer("gavel-max-throughput", problem, normalised=True, solver=s) for s in ("clarabel", "highs")
    ]
    assert found[1].objective == pytest.approx(found[0].objective, rel=1e-7)


def test_a_limit_that_is_none_beside_small_ones() -> None:
    """Clarabel calls it unbounded, and HiGHS is asked."""
    program = Rows()
    x, y = program.variables(2, cost=-1.0)
    for each, most in ((x, 1.0), (y, 2.0)):
        program.at_most([(each, -1.0)], 0.0)
        program.at_most([(each, 1.0)], most)
    program.at_most([(x, 1.0), (y, 1.0)], 1e14)
    assert conic.solve_conic(program.arrays())[0] is SolutionStatus.UNBOUNDED
    assert solved(Problem(ProblemKind.CONIC, program.data())).values == pytest.approx((1, 2), abs=1e-6)


def test_an_interior_point_that_goes_on_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS 1.15 does not stop by itself where numbers are far apart. Another solver is asked."""
    program = Rows()
    x, y = program.variables(2, cost=-1.0)
    for each, most in ((x, 1.0), (y, 2.0)):
        program.at_most([(each, -1.0)], 0.0)
        program.at_most([(each, 1.0)], most)
    program.at_most([(x, 1.0), (y, 2.0)], 4.0)
    assert linear.solve_linear(program.arrays())[0] is SolutionStatus.OPTIMAL
    monkeypatch.setattr(linear, "ITERATIONS", 1)
    assert linear.solve_linear(program.arrays())[0] is SolutionStatus.UNSOLVED
    assert find(ProblemKind.LINEAR, program.arrays())[0] is SolutionStatus.OPTIMAL


FEW: dict[str, Any] = {"cost": [1.0], "rows": [0], "columns": [0], "values": [1.0], "limits": [1.0]}


@pytest.mark.parametrize(
    ("answers", "status", "error"),
    [
        (["unsolved", "optimal"], "optimal", ""),
        (["inaccurate", "optimal"], "optimal", ""),
        (["inaccurate", "unsolved", "failed"], "inaccurate", ""),
        (["unbounded", "unsolved", "unbounded"], "unbounded", ""),
        (["unsolved", "failed", "infeasible"], "infeasible", ""),
        (["unsolved", "failed", "failed"], "unsolved", "first"),
        (["infeasible"], "infeasible", ""),
        (["unsolved", "infeasible"], "infeasible", ""),
        (["failed"], "failed", "first"),
    ],
)
@pytest.mark.parametrize("kind", [ProblemKind.LINEAR, ProblemKind.CONIC])
def test_a_solver_that_finds_nothing_is_not_the_last_that_is_asked(
    kind: ProblemKind, answers: list[str], status: str, error: str
) -> None:
    """The best of the answers counts. That there is no solution is final, though the next would find one. A
    solver that is not there is named, and none takes its place."""
    left = chain(answers, repeat("optimal"))
    asked: list[str] = []

    def solve(_data: Mapping[str, Any]) -> Found:
        word = next(left)
        asked.append(word)
        values = [1.0] if word in ("optimal", "inaccurate") else []
        said = "first" if word == answers[0] else word
        return SolutionStatus(word), values, said if word in ("unsolved", "failed") else ""

    kinds = (ProblemKind.LINEAR, ProblemKind.CONIC, ProblemKind.VERTEX)
    found = find(kind, {**FEW, "cones": [["nonnegative", 1]]}, dict.fromkeys(kinds, solve))
    assert (found[0].value, found[2]) == (status, error)
    assert asked == answers


RATES = st.lists(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=2), min_size=1, max_size=8)


@settings(max_examples=draws(15, 400))
@given(RATES, st.lists(st.integers(1, 4), min_size=2, max_size=2))
def test_both_solvers_find_the_same_optimum(rates: list[list[float]], gpus: list[int]) -> None:
    program = max_min(rates, [float(count) for count in gpus])
    best = []
    for kind in BOTH:
        values = solved(Problem(kind, program.data())).values
        fractions = [values[1 + 2 * job : 3 + 2 * job] for job in range(len(rates))]
        assert all(fraction > -1e-6 for of_job in fractions for fraction in of_job)
        assert all(sum(of_job) < 1 + 1e-6 for of_job in fractions)
        for number, count in enumerate(gpus):
            assert sum(of_job[number] for of_job in fractions) < count + 1e-5
        best.append(values[0])
    assert best[0] == pytest.approx(best[1], rel=1e-5, abs=1e-6)


def test_rows_that_follow_each_other_make_one_block() -> None:
    program = Rows()
    x, y = program.variables(2)
    program.at_most([(x, 1.0)], 1.0)
    program.at_most([(y, 1.0)], 2.0)
    program.equal([(x, 1.0)], 0.5)
    program.cone(Cone.SECOND_ORDER, [([], 1.0), ([(x, 1.0)], 0.0)])
    program.cone(Cone.SECOND_ORDER, [([], 1.0), ([(y, 1.0)], 0.0)])
    data = program.data()
    assert data["cones"] == [["nonnegative", 2], ["zero", 1], ["second-order", 2], ["second-order", 2]]
    assert data["limits"] == [1.0, 2.0, 0.5, 1.0, 0.0, 1.0, 0.0]
    assert (data["rows"], data["columns"]) == ([0, 1, 2, 4, 6], [0, 1, 0, 0, 1])


def test_blocks_are_rows_in_whole_arrays() -> None:
    """Numbers stand for as many as are needed; parts of one block are added."""
    blocks, rows = Rows(), Rows()
    blocks.variables(2, [1.0, 2.0])
    blocks.block(Cone.NONNEGATIVE, [3.0, 4.0], ([0, 1], [0, 1], -1.0), (1, 0, 5.0))
    blocks.block(Cone.NONNEGATIVE, 0.0, (0, [0, 1], 1.0))
    blocks.block(Cone.SECOND_ORDER, [1.0, 0.0, 2.0, 0.0], ([1, 3], [0, 1], 1.0), rows_each=2)
    for cost in (1.0, 2.0):
        rows.variables(1, cost)
    rows.at_most([(0, -1.0)], 3.0)
    rows.at_most([(1, -1.0), (0, 5.0)], 4.0)
    rows.at_most([(0, 1.0), (1, 1.0)], 0.0)
    rows.cone(Cone.SECOND_ORDER, [([], 1.0), ([(0, 1.0)], 0.0)])
    rows.cone(Cone.SECOND_ORDER, [([], 2.0), ([(1, 1.0)], 0.0)])
    for name in ("cost", "limits", "cones"):
        assert blocks.data()[name] == rows.data()[name]
    assert blocks.data()["cones"] == [["nonnegative", 3], ["second-order", 2], ["second-order", 2]]
    assert (matrix_of(blocks.data()) != matrix_of(rows.data())).nnz == 0
    assert matrix_of(blocks.arrays()).nnz == 7


def test_the_identity_says_what_a_solution_depends_on() -> None:
    data = max_min([[1.0, 2.0]], [1.0, 1.0]).data()
    problem = Problem(ProblemKind.LINEAR, data, subject={"jobs": [1]})
    assert problem.identity == "f376120f70c7b35c"  # in every run
    assert problem.identity == Problem(ProblemKind.LINEAR, data, 5.0, {"jobs": [1]}).identity
    others = [
        Problem(ProblemKind.CONIC, data, subject={"jobs": [1]}),
        Problem(ProblemKind.LINEAR, data, subject={"jobs": [2]}),
        Problem(ProblemKind.LINEAR, {**data, "cost": [1.0, 0.0, 0.0]}, subject={"jobs": [1]}),
    ]
    assert len({problem.identity, *(other.identity for other in others)}) == 4
    with pytest.raises(ValueError):
        Problem(ProblemKind.LINEAR, {"cost": [object()]})


def test_the_same_problem_is_solved_once_unless_it_failed() -> None:
    solver, calls = ImmediateSolver(), []
    good = Problem(ProblemKind.LINEAR, max_min([[1.0, 2.0]], [1.0, 1.0]).data())
    bad = Problem(ProblemKind.LINEAR, {**good.data, "limits": None})
    for problem, expected in ((good, 1), (good, 1), (bad, 2), (bad, 3), (good, 4)):
        solver.submit("x", problem, lambda: calls.append(1))
        assert len(calls) == expected
    assert solver.take()["x"].status is SolutionStatus.OPTIMAL
    assert solver.take() == {}


@pytest.mark.parametrize("body", [b"", b"word", b"\x00" * 40])
def test_an_answer_that_is_none_is_told(body: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        decode(Problem(ProblemKind.LINEAR, {"cost": [1.0]}), body)
