# SPDX-License-Identifier: MIT
"""What becomes of the batch when the number of ranks changes."""


class Batch:
    """Samples of one step, with one of two things kept when the number of ranks changes.

    `Batch(per_rank=32)`: each rank goes on with 32 samples, and the global batch grows with the ranks.
    `Batch(overall=256)`: all ranks together go on with 256 samples, and each takes its part. Steps then mean
    what they meant, and learning rate and schedule need no change.
    """

    def __init__(self, *, per_rank: int = 0, overall: int = 0) -> None:
        """Raises ValueError unless just one of the two is given, and is positive."""
        if (per_rank > 0) == (overall > 0) or per_rank < 0 or overall < 0:
            raise ValueError("give Batch() either per_rank or overall, a positive number of samples")
        self._per_rank, self._overall = per_rank, overall

    def of_rank(self, world_size: int, rank: int = 0) -> int:
        """Samples that this rank of so many takes. Those that do not divide evenly go to the first ranks.

        Raises ValueError where a rank would have no sample.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}: need 0 <= rank < world size")
        if self._per_rank:
            return self._per_rank
        if self._overall < world_size:
            raise ValueError(f"{self._overall} samples are too few for {world_size} ranks")
        return self._overall // world_size + (rank < self._overall % world_size)

    def of_all(self, world_size: int) -> int:
        """Samples of all ranks together."""
        return self._overall or self._per_rank * world_size
