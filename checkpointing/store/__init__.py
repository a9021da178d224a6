# SPDX-License-Identifier: MIT
"""A checkpoint store on a parallel file system: atomic, checksummed generations. See docs/checkpoints.md."""

from .errors import InvalidGeneration, NotPublished, SpaceError, StoreError
from .store import Restored, Store

__all__ = ["InvalidGeneration", "NotPublished", "Restored", "SpaceError", "Store", "StoreError"]
