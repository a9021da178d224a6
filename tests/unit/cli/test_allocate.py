# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva allocate`: what it prints, and what it says of files that make no sense."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.policies.allocations.presets import ALLOCATIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "allocations.md"

PROBLEM: dict[str, Any] = {
    "types": ["v100", "k80"],
    "workers": {"v100": 1, "k80": 1},
    "prices": {"v100": 3.1, "k80": 0.8},
    "jobs": [
        {"id": 4, "throughput": {"v100": 4, "k80": 1}, "steps_left": 400},
        {"id": 2, "throughput": {"v100": 2, "k80": 1}, "steps_left": 400, "weight": 1},
    ],
    "pairs": [{"jobs": [4, 2], "throughput": {"v100": [3, 1.5]}}],
    "options": {},
}


def write(folder: Path, problem: Any) -> str:
    path = folder / "problem.json"
    path.write_text(problem if isinstance(problem, str) else json.dumps(problem))
    return str(path)


def run(folder: Path, problem: Any, policy: str = "gavel-las", *more: str) -> int:
    return main(["allocate", "--policy", policy, "--problem", write(folder, problem), *more])


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, PROBLEM, "gavel-las", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"allocation", "objective", "throughput", "status", "seconds"}
    assert [row["jobs"] for row in answer["allocation"]] == [[4], [2]]
    for row in answer["allocation"]:
        assert row["fractions"] == pytest.approx({"v100": 0.5, "k80": 0.5}, abs=1e-6)
    assert answer["objective"] == pytest.approx(1)
    assert answer["throughput"] == pytest.approx([2.5, 1.5], abs=1e-5)
    assert answer["status"] == "optimal" and 0 < answer["seconds"] < 60


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, PROBLEM) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["JOB", "GPUS", "v100", "k80", "STEPS/S"]
    assert lines[1].split() == ["4", "1", "0.5000", "0.5000", "2.5000"]
    assert re.fullmatch(r"objective 1, optimal, \d+\.\d{3} s", lines[-1])


def test_pairs_have_rows_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = PROBLEM | {"options": {"space_sharing": True}, "workers": {"v100": 1, "k80": 0}}
    assert run(tmp_path, shared) == 0
    assert "4+2" in capsys.readouterr().out
    assert run(tmp_path, shared, "gavel-las", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [4, 2] in [row["jobs"] for row in answer["allocation"]]


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(PROBLEM).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["allocate", "--policy", "isolated", "--problem", "-"]) == 0
    assert "optimal" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ALLOCATIONS)
def test_every_policy(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, PROBLEM, policy, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["throughput"]) == 2


def changed(place: str, value: Any) -> dict[str, Any]:
    """The problem with another value at `jobs.0.gpus` and the like."""
    problem = json.loads(json.dumps(PROBLEM))
    *path, last = place.split(".")
    at = problem
    for part in path:
        at = at[int(part) if isinstance(at, list) else part]
    at[int(last) if isinstance(at, list) else last] = value
    assert isinstance(problem, dict)
    return problem


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        (changed("jobs.0.throughput.v100", math.nan), "jobs[0].throughput.v100: must be a finite number"),
        (changed("jobs.0.arrival", -math.inf), "jobs[0].arrival: must be a finite number"),
        (changed("options.assumed_seconds", math.inf), "options.assumed_seconds: must be "),
        ("[]", "problem.json: must be an object in braces"),
        (changed("workers", []), "workers: must be an object in braces"),
        ('{"types": ["a"], "jobs": [], "types": ["b"]}', "problem.json: the key 'types' is there twice"),
        (
            json.dumps(PROBLEM).replace('"steps_left": 400', '"gpus": 1, "gpus": 2', 1),
            "jobs[0]: the key 'gpus' is there twice",
        ),
        (
            json.dumps(PROBLEM).replace('"options": {}', '"options": {"solver": "highs", "solver": "ecos"}'),
            "options: the key 'solver' is there twice",
        ),
        (changed("types.0", ""), "types[0]: must have at least 1 character"),
        ({}, "types: is missing"),
        (changed("types", []), "types: "),
        (changed("types", ["v100", "v100", "k80"]), "types: 'v100' is there twice"),
        (changed("workers", {"v100": 0, "k80": 0}), "workers: no type has any"),
        (changed("workers.v100", -1), "workers.v100: must be greater than or equal to 0"),
        (changed("workers.v100", 1.5), "workers.v100: must be a valid integer"),
        (changed("workers.a100", 1), "workers: 'a100' is none of the types k80, v100"),
        (changed("jobs.0.gpus", 0), "jobs[0].gpus: must be greater than or equal to 1"),
        (changed("jobs.0.id", 2), "jobs: 2 is there twice"),
        (changed("jobs.0.throughput.a100", 1), "job 4: throughput: 'a100' is none"),
        (changed("jobs.0.throughput.v100", -1), "jobs[0].throughput.v100: must be greater than or equal"),
        (changed("jobs.0.throughput.v100", "4"), "jobs[0].throughput.v100: must be a valid number"),
        (changed("jobs.0.throughput.v100", 1e300), "jobs[0].throughput.v100: must be less than"),
        (changed("jobs.0.colour", "red"), "jobs[0].colour: there is no such key"),
        (changed("jobs.0.weight", 0), "jobs[0].weight: must be greater than 0"),
        (changed("pairs.0.jobs", [4, 5]), "pair 4, 5: jobs: must be the ids of two of the jobs"),
        (changed("pairs.0.throughput.v100", [1]), "pairs[0].throughput.v100: "),
        (changed("entities", [{"name": "a", "policy": "lottery"}]), "entities[0].policy: must be 'fairness'"),
        (changed("jobs.0.entity", "a"), "job 4: entity: there are no entities"),
        (changed("jobs.0.gpus", 2), "pair 4, 2: jobs: must be two of equal gpus, not of 2 and 1"),
        (
            changed("draws_on", {"k80": "v100"}),
            "workers.k80: must be left out: k80 draws on the GPUs of v100",
        ),
        (
            changed("draws_on", {"k80": "v100"}) | {"workers": {"v100": 1}},
            "prices.k80: must be left out: k80 draws on the GPUs of v100",
        ),
        (
            changed("jobs.0", {"id": 4, "throughput": {"v100": 4}, "slo_seconds_left": 60}),
            "job 4: slo_seconds_left: needs steps_left",
        ),
        (changed("entities", [{"name": "a"}]), "job 4: entity: '' is none of a"),
        (changed("options.solver", "magic"), "options.solver: must be 'clarabel' or 'highs'"),
        (
            changed("options.agnostic_type", "a100"),
            "options.agnostic_type: 'a100' is none of the types k80, v100",
        ),
        (changed("options.speed", 1), "options.speed: there is no such key"),
        (
            changed("options", {"space_sharing": True, "throughputs": "agnostic"}),
            'options: space_sharing needs throughputs = "aware"',
        ),
    ],
)
def test_wrong_problems(
    problem: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, problem, "gavel-makespan") == 1
    error = capsys.readouterr().err
    assert error.startswith("gandiva: ") and "problem.json: " in error and error.count("\n") == 1
    assert message in error


def test_what_goes_wrong_while_solving_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, changed("prices", {"v100": 3.1}), "gavel-cost") == 1
    error = f"gandiva: {tmp_path}/problem.json: prices.k80: a price above 0 is needed\n"
    assert capsys.readouterr().err == error


def test_other_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, PROBLEM, "gavel-lottery") == 1
    assert "--policy gavel-lottery: must be one of allox, gavel-cost" in capsys.readouterr().err
    assert main(["allocate", "--policy", "isolated", "--problem", str(tmp_path / "none.json")]) == 1
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert main(["allocate", "--policy", "isolated", "--problem", str(tmp_path / "binary.json")]) == 1
    assert "not UTF-8 text" in capsys.readouterr().err


def test_the_examples_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each problem in docs/allocations.md gives the answer printed there."""
    text = PAGE.read_text(encoding="utf-8")
    command = re.compile(r"\$ gandiva allocate --policy ([a-z-]+) --problem \S+\n(.*)", re.DOTALL)
    problem, examples = "", []
    for kind, block in re.findall(r"^```(json)?\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE):
        problem = block if kind else problem
        if not kind and (found := command.fullmatch(block)):
            examples.append((problem, found[1], found[2]))
    assert len(examples) == text.count("$ gandiva allocate") >= 10
    for problem, policy, shown in examples:
        assert run(tmp_path, problem, policy) == 0
        printed = capsys.readouterr().out.strip()
        assert re.sub(r"\d\.\d+ s$", "", printed) == re.sub(r"\d\.\d+ s$", "", shown.strip()), policy
