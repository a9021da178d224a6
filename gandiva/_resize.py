# SPDX-License-Identifier: MIT
"""The size of a job that grows and shrinks in place."""

from typing import Callable, List

from ._registry import RestoreError


class Size:
    """How many GPUs the job uses on this node; 0: no scheduler says so. And whom to tell of a change."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.hooks: List[Callable[[int], object]] = []

    def change(self, gpus: int) -> None:
        """Tell the script where it is another number. Raises RestoreError."""
        if gpus in (0, self.gpus):
            return
        self.gpus = gpus
        for hook in self.hooks:
            try:
                hook(gpus)
            except Exception as error:
                raise RestoreError(f"cannot go on with {gpus} GPUs: {error!r}") from error
