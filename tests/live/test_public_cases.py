# SPDX-License-Identifier: GPL-2.0-or-later
"""Scripts as people have them, on a real Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controller.observe.requests import parse_request
from tests.live.support import Site

pytestmark = [pytest.mark.live, pytest.mark.public]
PUBLIC = Path(__file__).parents[1] / "public"


def test_a_job_submitted_in_a_job_has_the_flags_that_it_is_given(site: Site) -> None:
    """Slurm's environment of the parent has them as variables, which sbatch takes for options."""
    site.cluster.write_file(
        "login", "/home/alice/child-jobs.sbatch", (PUBLIC / "child-jobs.sbatch").read_text()
    )
    done = site.cluster.exec("login", ["sbatch", "--parsable", "child-jobs.sbatch"], user="alice")
    parent = int(done.stdout)
    site.wait_ended([parent])
    said = site.cluster.read_file("login", f"/home/alice/child-jobs-{parent}.out")
    children = [int(job) for job in re.findall(r"Submitted batch job (\d+)", said)]
    assert len(children) == 5, said
    comments = [site.job(job).get("AdminComment", "") for job in children]
    site.wait_ended(children)  # `grep -c` fails where it counts nothing
    ordinary, not_ours, heavy, cpus, driven = comments
    assert (ordinary, not_ours, cpus) == ("", "", "")
    assert parse_request(heavy).weight == 3 and parse_request(driven).weight == 1
    suspends = [getattr(parse_request(text).suspend, "value", None) for text in (heavy, driven)]
    assert suspends == [None, "transparent"]
    counts = [site.cluster.read_file("login", f"/home/alice/c-{name}.out") for name in ("ord", "no", "cpu")]
    assert all(text.startswith("0\n") for text in counts), counts
