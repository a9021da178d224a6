# SPDX-License-Identifier: MIT
"""Which samples each rank trains on at each step, whatever the number of ranks.

    batches = Batches(len(dataset), global_batch=256)        # or per_rank=64
    loader = DataLoader(dataset, batch_sampler=batches)
    ...
    for images, labels in session.steps(batches.counted(loader), samples=batches.per_rank):
        train(images, labels)

The order follows from the seed alone. Ranks of a job that has grown or shrunk go on in it where the ranks
before have stopped: nothing is left out, and nothing comes twice. Standard library only.
"""

import os
import random
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, TypeVar

from . import _environment

Batch = TypeVar("Batch")


class Batches:
    """A batch sampler for a data set of `samples` samples, without an end, with a position.

    Give one of two sizes. `global_batch`: samples of one step in all ranks together. It stays when the number
    of ranks changes, so the training does the same steps with it. `per_rank`: samples of one step in each
    rank. It stays, and the global batch grows and shrinks with the number of ranks: the learning rate is then
    for the script to adapt. After `samples` samples a new epoch begins, in another order; a batch may have
    the end of one and the beginning of the next. `seed`: the same in all ranks.

    `done`, the samples that all ranks together have trained on, is what state_dict() has: name these batches
    in `replicated` of the job's state. It counts what `counted()` has given, at once.

    Raises ValueError where a size is no positive number, and where the global batch cannot be shared
    alike by the ranks.
    """

    def __init__(
        self,
        samples: int,
        *,
        global_batch: Optional[int] = None,
        per_rank: Optional[int] = None,
        seed: int = 0,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
    ) -> None:
        """`rank`, `world_size`: of this process, by default as for `gandiva.attach()`."""
        if rank is None or world_size is None:
            place = _environment.place(os.environ)
        else:
            place = _environment.checked_place(rank, world_size, "Batches()")
        if (global_batch is None) == (per_rank is None):
            raise ValueError("give Batches() either global_batch or per_rank")
        whole = global_batch if global_batch is not None else (per_rank or 0) * place.world_size
        if samples < 1 or whole < 1:
            raise ValueError(f"{samples} samples in batches of {whole}: both must be 1 or more")
        if whole % place.world_size:
            raise ValueError(
                f"a global batch of {whole} samples cannot be shared alike by {place.world_size} ranks"
            )
        self.samples = samples
        self.global_batch = whole
        self.per_rank = whole // place.world_size
        self.done = 0
        self._rank = place.rank
        self._seed = seed
        self._order: Tuple[int, List[int]] = (-1, [])

    @property
    def epoch(self) -> int:
        """How often the whole data set has been trained on."""
        return self.done // self.samples

    def __iter__(self) -> Iterator[List[int]]:
        """This rank's samples of one step after the other, from the position on, as indices. It does not
        count: a data loader reads ahead."""
        begin = self.done
        while True:
            own = begin + self._rank * self.per_rank
            yield [self._index(at) for at in range(own, own + self.per_rank)]
            begin += self.global_batch

    def counted(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches; each is counted when it is given out. Begin once the state is restored."""
        for batch in loader:
            self.done += self.global_batch
            yield batch

    def state_dict(self) -> Dict[str, Any]:
        """The position, and what it is a position in."""
        return {"done": self.done, "samples": self.samples, "seed": self._seed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on there. Raises ValueError where it was another data set, or another order."""
        if (state["samples"], state["seed"]) != (self.samples, self._seed):
            raise ValueError(
                f"the position is one in {state['samples']} samples with seed {state['seed']}, not in "
                f"{self.samples} with seed {self._seed}"
            )
        self.done = int(state["done"])

    def _index(self, at: int) -> int:
        epoch, place = divmod(at, self.samples)
        if self._order[0] != epoch:
            order = list(range(self.samples))
            # A text, as of any type it means the same in all versions of Python.
            random.Random(f"{self._seed} {epoch}").shuffle(order)
            self._order = (epoch, order)
        return self._order[1][place]
