# SPDX-License-Identifier: MIT
"""What can go wrong with a checkpoint store. Each message names the place and what was found there."""

from __future__ import annotations


class StoreError(Exception):
    """Base of the errors here. The generations that were there before are unharmed."""


class SpaceError(StoreError):
    """The file system or the user's quota has no room. Nothing of the attempt is left."""


class NotPublished(StoreError):
    """The generation is not complete: another rank failed, was too late or said something else."""


class InvalidGeneration(StoreError):
    """A generation is not what its manifest says, or has no manifest that can be read."""
