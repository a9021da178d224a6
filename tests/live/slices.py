# SPDX-License-Identifier: GPL-2.0-or-later
"""Slices of a second, and what part of them each job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.live.gpu_history import held_seconds, until_told
from tests.live.support import QUICK, Site

SLICE_SECONDS = 1.0
POLICY: Mapping[str, Any] = {
    **QUICK["policy"],
    "gandiva": {**QUICK["policy"]["gandiva"], "slice_seconds": SLICE_SECONDS},
}


def parts_of(site: Site, jobs: Sequence[int], turns: int) -> list[float]:
    """Wait until these jobs have come onto a GPU so often, all together. The part of the time of all of them
    that each could use it: what switches take does not count, so a busy machine makes no difference."""
    begin = site.clock()
    site.wait(
        f"{turns} turns of jobs {jobs}",
        lambda: sum(hold.job_id in jobs and hold.start > begin for hold in site.holds()) > turns,
        150,
    )
    found = until_told(site.holds(), site.operations())
    end = max(hold.start for hold in found if hold.job_id in jobs)
    had = [held_seconds(found, job, begin, end) for job in jobs]
    return [seconds / sum(had) for seconds in had]
