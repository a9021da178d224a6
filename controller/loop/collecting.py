# SPDX-License-Identifier: GPL-2.0-or-later
"""Looking for garbage between decisions, not within them."""

from __future__ import annotations

import gc


class CollectedLater:
    """Python looks for garbage after the block, not within it: with 20,000 jobs one such look at what plans
    have made takes longer than a plan itself."""

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._enabled:
            gc.enable()
