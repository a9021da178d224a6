# SPDX-License-Identifier: GPL-2.0-or-later
"""Looking for garbage seldom. Most objects of a command that runs once live to its end: its modules, and what
a simulation makes. Looking through them again and again is waste."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Until the end of the block; what is there at its begin is not looked at at all."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
