# SPDX-License-Identifier: GPL-2.0-or-later
"""Tiresias on a real Slurm: long jobs make room for short ones, finish later, and do not starve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.gpu_history import Hold
from tests.live.support import Site

pytestmark = [pytest.mark.live, pytest.mark.nightly]

LIMIT_GPU_SECONDS = 8.0
WHOLE_NODE = ("--gandiva", "--gres=gpu:4", "-w", "n2")


def tiresias(promote_knob_ratio: float) -> pytest.MarkDecorator:
    """The controller with Tiresias-L; a job on four GPUs leaves queue 1 after two seconds."""
    settings = {"queue_limits": [LIMIT_GPU_SECONDS], "promote_knob_ratio": promote_knob_ratio}
    return pytest.mark.settings(policy={"name": "tiresias-las", "tiresias": settings})


def times(site: Site, job_id: int) -> list[Hold]:
    """Its times on GPU 0 of n2, in order (all four GPUs of the gang go together)."""
    return sorted(
        (h for h in site.holds() if h.job_id == job_id and h.node == "n2" and h.gpu == 0),
        key=lambda h: h.start,
    )


@tiresias(promote_knob_ratio=0.0)
@pytest.mark.parametrize("method", ["cooperative", "requeue"])
def test_a_long_job_is_preempted_by_short_ones_and_finishes_later(site: Site, method: str) -> None:
    extra: dict[str, object] = {"checkpoint_dir": f"long-{method}", "checkpoint_every": 10}
    long = site.train(
        "alice", *WHOLE_NODE, f"--gandiva-suspend={method}", steps=240, gpus=4, memory_mb=512, **extra
    )
    site.wait_on_gpu(long)
    site.wait("the long job's demotion", lambda: run_seconds(site, long) > 4.0)
    shorts = [site.train("bob", *WHOLE_NODE, steps=20, gpus=4, memory_mb=512) for _ in range(2)]

    assert set(site.wait_ended(shorts, 90).values()) == {"COMPLETED"}
    assert site.state(long) != "COMPLETED", "the short jobs came after the long one"
    assert site.wait_ended([long], 120) == {long: "COMPLETED"}

    before, *_, after = times(site, long)
    for short in shorts:
        (held,) = times(site, short)
        assert before.end <= held.start and held.end <= after.start


def test_an_order_of_the_site_with_settings_as_the_page_prints_it(site: Site) -> None:
    """The daemon, which is not root, loads root's file from beside its settings, and their values count."""
    page = (Path(__file__).resolve().parents[2] / "docs/own-policies.md").read_text(encoding="utf-8")
    site.cluster.write_file("ctl", "/etc/gandiva/mine.py", page.split("```python\n")[1].split("```")[0])
    own = {"short_gpu_hours": LIMIT_GPU_SECONDS / 3600}
    parts = {"short-first": "mine.py:ShortFirst"}
    site.lead(policy={"name": "short-first", "parts": parts, "own": own})
    long = site.train("alice", *WHOLE_NODE, steps=240, gpus=4, memory_mb=512)
    site.wait_on_gpu(long)
    site.wait("its GPU-hours to be over", lambda: run_seconds(site, long) > 4.0)
    short = site.train("bob", *WHOLE_NODE, steps=20, gpus=4, memory_mb=512)
    assert site.wait_ended([short], 90) == {short: "COMPLETED"}
    assert site.state(long) != "COMPLETED", "the short job came after the long one"
    assert site.wait_ended([long], 120) == {long: "COMPLETED"}


@tiresias(promote_knob_ratio=1.0)
def test_a_starving_job_is_promoted(site: Site) -> None:
    long = site.train("alice", *WHOLE_NODE, steps=400, gpus=4, memory_mb=512)
    site.wait_on_gpu(long)
    site.wait("the long job's demotion", lambda: run_seconds(site, long) > 4.0)
    # Half a minute of short jobs, each of them before the long one as long as it is in queue 2.
    shorts = [site.train("bob", *WHOLE_NODE, steps=20, gpus=4, memory_mb=512) for _ in range(14)]

    site.wait("the long job's second turn", lambda: len(times(site, long)) > 1, timeout_seconds=120)
    second = times(site, long)[1]
    begins = [held[0].start for short in shorts if (held := times(site, short))]
    assert any(begin < second.start for begin in begins), "no short job ran before it"
    assert len([b for b in begins if b < second.start]) < len(shorts), "it waited for all short jobs"
    assert set(site.wait_ended([long, *shorts], 240).values()) == {"COMPLETED"}


def run_seconds(site: Site, job_id: int) -> float:
    """Time on GPUs so far, as the report says it."""
    return next((float(row["run_seconds"]) for row in site.report() if row["job_id"] == job_id), 0.0)
