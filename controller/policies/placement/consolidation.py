# SPDX-License-Identifier: GPL-2.0-or-later
"""Which gangs must be on as few nodes as possible: the skew of tensor sizes against PACKLIMIT (SPEC 2.5).

Source: Tiresias (NSDI'19), table 6: models dominated by one large tensor suffer when they are spread. The
paper measures messages to parameter servers; here the session reports the sizes of the registered model's
tensors, which is what those messages were made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from controller.model import Configuration, Job, Profile, Rate, Usage, value

SLOWER = 0.95
"""A job that keeps less than this part of its consolidated speed when spread is sensitive to placement."""


@value
class Consolidation:
    """Pure; all it knows of models is in the snapshot."""

    which: Literal["skewed", "always", "never"] = "never"
    pack_limit_fraction: float = 0.38
    """PACKLIMIT until enough models were seen in both placements."""
    fit: bool = True
    wait_seconds: float = 3600.0
    """A gang that has waited so long takes any place. 0: it waits for ever."""

    def fitted(
        self, models: Mapping[str, Profile], rates: Mapping[str, Mapping[Configuration, Rate]]
    ) -> Consolidation:
        """The same with PACKLIMIT fitted to the speeds that were measured spread and consolidated."""
        if self.which != "skewed" or not self.fit:
            return self
        samples: list[tuple[float, float]] = []
        for model, table in rates.items():
            skew = skew_fraction(models[model]) if model in models else None
            if skew is not None:
                samples += [(skew, ratio) for ratio in _spread_ratios(table)]
        return replace(self, pack_limit_fraction=fit_pack_limit(samples, self.pack_limit_fraction))

    def until(self, job: Job, usage: Usage) -> float:
        """Until when a gang that must be consolidated waits for that."""
        since = job.submit_time if usage.idle_since is None else usage.idle_since
        return since + self.wait_seconds if self.wait_seconds else math.inf

    def demands(self, job: Job, usage: Usage, profile: Profile, now: float) -> bool:
        """Whether this gang must be consolidated. `profile`: its own, else that of its model."""
        if job.gpus == 1 or self.which == "never" or now >= self.until(job, usage):
            return False
        if self.which == "always":
            return True
        skew = skew_fraction(profile)
        return skew is not None and skew > self.pack_limit_fraction


def _spread_ratios(table: Mapping[Configuration, Rate]) -> list[float]:
    """Speed spread over speed consolidated, for each type and size that was measured both ways."""
    found: list[float] = []
    alone = {key: rate.samples_per_second for key, rate in table.items() if not key.models_beside}
    for key, rate in alone.items():
        fewest = min(k.nodes for k in alone if (k.gpu_type, k.gpus) == (key.gpu_type, key.gpus))
        together = alone.get(Configuration(key.gpu_type, key.gpus, fewest))
        if key.nodes > fewest and together:
            found.append(rate / together)
    return found


def skew_fraction(profile: Profile) -> float | None:
    """Largest tensor / model size; None when the session has not reported them."""
    if profile.state_bytes <= 0 or profile.largest_tensor_bytes <= 0:
        return None
    return min(1.0, profile.largest_tensor_bytes / profile.state_bytes)


def fit_pack_limit(samples: Iterable[tuple[float, float]], default: float) -> float:
    """The threshold on skew that best separates models that suffer when spread from those that do not.

    `samples`: (skew, speed spread / speed consolidated) of one model each. A linear classifier of one
    dimension: the boundary with the fewest errors, in the middle of its gap, nearest to `default` among
    equals. `default` when only one of the two kinds was seen.
    """
    labelled = sorted((skew, speed < SLOWER) for skew, speed in samples)
    suffering = sum(suffers for _, suffers in labelled)
    if suffering in (0, len(labelled)):
        return default
    best = (len(labelled) + 1, 0.0, default)
    # Everything above the boundary is called sensitive.
    errors = len(labelled) - suffering
    for i in range(len(labelled) + 1):
        low = labelled[i - 1][0] if i else 0.0
        high = labelled[i][0] if i < len(labelled) else 1.0
        if i:
            errors += 1 if labelled[i - 1][1] else -1
        if low < high:
            boundary = (low + high) / 2
            best = min(best, (errors, abs(boundary - default), boundary))
    return best[2]
