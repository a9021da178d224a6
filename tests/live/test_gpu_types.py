# SPDX-License-Identifier: GPL-2.0-or-later
"""Three GPU types of different speed in one cluster: where jobs may be, how fast they are there, and that
everything that tells of types agrees. These tests have a cluster of their own."""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from container.cluster import MiniCluster
from container.images import REPOSITORY_ROOT
from container.spec import load
from tests.live.conftest import own_name, running
from tests.live.support import PYTHON, QUICK, Site
from tests.live.test_operators import PATIENT, bad, check

pytestmark = pytest.mark.live

TYPES = {"n1": "v100", "n2": "p100", "n3": "k80"}
"""By node. A v100 is twice as fast as a p100, and that twice as fast as a k80."""
MINIBATCH_MS = 15.0
"""On a GPU of speed 1: 37 ms on a v100, 150 ms on a k80."""
SAMPLES_PER_STEP = 32
READ_RATES = """\
import json, sqlite3
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True, timeout=10)
row = journal.execute("SELECT value FROM state WHERE key = 'models'").fetchone()
print(json.dumps(json.loads(row[0])["rates"] if row else []))
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Three nodes of two GPUs each: v100, p100, k80."""
    request.getfixturevalue("engine_ready")
    spec = load(REPOSITORY_ROOT / "container" / "types.toml")
    assert {group.names: group.gpu_model for group in spec.nodes} == TYPES
    release = os.environ.get("RELEASE") or spec.release
    changes = {"name": own_name("-types"), "release": release}
    with running(spec.model_copy(update=changes), request.session) as mini:
        yield mini


def nodes_of(site: Site, job_id: int) -> set[str]:
    """Where the job ever had memory on a GPU, as the mock GPUs saw it."""
    return {hold.node for hold in site.holds() if hold.job_id == job_id}


def seen_by_nvml(site: Site, node: str) -> list[dict[str, Any]]:
    """The mock GPUs of a node."""
    return list(json.loads(site.cluster.exec(node, ["mockgpu", "show", "--json"]).stdout)["gpus"])


def step_times(site: Site, user: str, name: str) -> list[float]:
    """When each step ended, as the job itself wrote it."""
    text = site.cluster.read_file("login", f"/home/{user}/{name}")
    lines = text[: text.rfind("\n") + 1].splitlines()  # it may be writing
    return [json.loads(line)["time"] for line in lines]


def test_slurm_nvml_and_the_controller_name_the_same_types(site: Site) -> None:
    for node, model in TYPES.items():
        shown = site.cluster.exec("ctl", ["scontrol", "-o", "show", "node", node]).stdout
        gres = re.search(r" Gres=(\S+)", shown)
        assert gres is not None and re.findall(r"gpu:(\w+):1", gres[1]) == [f"{model}_0", f"{model}_1"]
        assert {model.upper() in gpu["model"] for gpu in seen_by_nvml(site, node)} == {True}
    v100, p100, k80 = (seen_by_nvml(site, node)[0]["total_bytes"] for node in TYPES)
    assert v100 > p100 > k80
    status, findings = check(site.cluster, *PATIENT)
    assert (status, bad(findings)) == (0, []), bad(findings)


def test_an_ordinary_job_gets_the_type_that_it_names(site: Site) -> None:
    for node, model in TYPES.items():
        job = site.train("bob", "--no-gandiva", f"--gres=gpu:{model}:1", steps=10, minibatch_ms=MINIBATCH_MS)
        assert site.wait_ended([job], 60) == {job: "COMPLETED"}
        assert nodes_of(site, job) == {node}


def test_jobs_limited_to_a_type_are_never_elsewhere(site: Site) -> None:
    """Five jobs for the two p100, while four faster and slower GPUs are idle."""
    site.cluster.stop_controller()
    policy: dict[str, Any] = {**QUICK["policy"], "moves": ["pack"]}
    site.start_controller(policy=policy)
    work: dict[str, Any] = {"steps": 120, "minibatch_ms": MINIBATCH_MS}
    p100 = ("--gandiva", "--gandiva-gpu-types=p100", "--gres=gpu:1")
    limited = [site.train("alice", *p100, **work) for _ in range(4)]
    limited.append(site.train("bob", "--gandiva", "--gres=gpu:p100:1", **work))
    others = ("--gandiva", "--gandiva-gpu-types=v100,k80", "--gres=gpu:2")
    either = site.train("bob", *others, gpus=2, **work)
    states = site.wait_ended([*limited, either], 240)
    assert set(states.values()) == {"COMPLETED"}, states
    for job in limited:
        assert nodes_of(site, job) == {"n2"}, f"job {job}"
    assert nodes_of(site, either) <= {"n1", "n3"} and nodes_of(site, either)
    assert sum(row["suspends"] for row in site.report() if row["job_id"] in limited) > 0, "they took turns"


def test_a_type_without_room_for_the_job_says_so(site: Site) -> None:
    done = site.cluster.exec(
        "login",
        ["sbatch", "--gandiva", "--gandiva-gpu-types=h100", "--gres=gpu:1", "--wrap", "true"],
        user="alice",
        check=False,
    )
    assert done.exit_code != 0 and "different GPU models of this cluster (" in done.stderr
    assert all(model in done.stderr for model in TYPES.values())
    job = site.train("alice", "--gandiva", "--gandiva-gpu-types=k80", "--gres=gpu:1", "-w", "n1")
    site.wait("the reason why it waits", lambda: "no server can take its GPU" in site.explained(job))
    assert nodes_of(site, job) == set()


def test_steps_and_rates_follow_the_speed_of_the_type(site: Site) -> None:
    jobs = {}
    for model in TYPES.values():
        log = f"steps-{model}"
        site.cluster.exec("login", ["rm", "-f", log], user="alice")
        jobs[model] = site.train(
            "alice",
            "--gandiva",
            f"--gandiva-gpu-types={model}",
            "--gandiva-model=lstm",
            "--gres=gpu:1",
            minibatch_ms=MINIBATCH_MS,
            utilisation=100,
            log=log,
        )
    site.wait_on_gpu(*jobs.values())

    def rates() -> dict[str, float]:
        rows = json.loads(site.cluster.exec("ctl", [PYTHON, "-c", READ_RATES], user="gandiva").stdout)
        assert all(row[0] == "lstm" and row[2:5] == [1, 1, []] for row in rows), rows
        return {row[1]: row[5] for row in rows}

    site.wait("a rate for each type", lambda: set(rates()) == set(TYPES.values()))
    site.wait("a hundred steps on the slowest", lambda: len(step_times(site, "alice", "steps-k80")) > 100)
    speed, undisturbed = {}, {}
    for model in TYPES.values():
        times = step_times(site, "alice", f"steps-{model}")[10:]
        speed[model] = (len(times) - 1) / (times[-1] - times[0])
        # What else this machine does adds to the time of some steps.
        undisturbed[model] = statistics.quantiles([b - a for a, b in itertools.pairwise(times)], n=4)[0]
    assert undisturbed["p100"] / undisturbed["v100"] == pytest.approx(2, rel=0.2), undisturbed
    assert undisturbed["k80"] / undisturbed["p100"] == pytest.approx(2, rel=0.2), undisturbed
    for model, rate in rates().items():
        assert rate == pytest.approx(speed[model] * SAMPLES_PER_STEP, rel=0.25), (model, rate, speed)
