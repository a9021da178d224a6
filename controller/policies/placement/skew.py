# SPDX-License-Identifier: GPL-2.0-or-later
"""Which models need consolidation: the skew of their tensor sizes against PACKLIMIT (SPEC 2.5).

The paper measures messages to parameter servers; here the session reports the sizes of the registered
model's tensors, which is what those messages were made of.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.model import Profile

SLOWER = 0.95
"""A job that keeps less than this part of its consolidated speed when spread is sensitive to placement."""


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
