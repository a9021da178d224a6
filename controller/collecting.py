# SPDX-License-Identifier: GPL-2.0-or-later
"""Looking for garbage between decisions, not within them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Python looks for garbage after the block, not within it: with 20,000 jobs one such look at what plans
    have made, or at all that is kept, takes longer than a plan itself. (What nobody refers to any more is
    freed at once all the same.)"""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
