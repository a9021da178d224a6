# SPDX-License-Identifier: MIT
"""State of a job as files of a checkpoint store, and back.

    state = State(model=model, optimizer=optimizer, loader=sampler)
    store = Store(folder, run=run_word())
    step = state.restore(store)                 # None: begin at the beginning
    ...
    saving = state.save(store, step)            # copies to host memory, writes while training goes on

Anything with state_dict() and load_state_dict() can be part of it. State dicts may have tensors and plain
data: numbers, texts, bytes, lists, tuples, dicts; nothing is pickled. Of tensors that are spread over ranks
(DTensor, as fully_shard() makes them) each rank writes its block. Random number generators of Python, NumPy
and PyTorch are always part of it, each rank's own, and go on as in a job whose data loader was not begun
again. PyTorch is used in a process that has imported it.
"""

from __future__ import annotations

import functools
import json
import random
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from . import loaders
from .blocks import joined, live_state, spread_only
from .errors import InvalidGeneration
from .store import Store
from .tensor_file import Packer, tensors_of, unpack

VALUES = "state.json"
TENSORS = "tensors.safetensors"
_RANDOM = "$random"
_LOADERS = "batches_left"


def run_word() -> str:
    """A word that all ranks have in common and no other start has. Called by all ranks together."""
    words = [uuid.uuid4().hex]
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(words, src=0)
    return words[0]


class State:
    """Named parts of a job's state.

    `replicated`: names of parts that all ranks have in common, as a model and its optimizer are under
    DistributedDataParallel and fully_shard(). Rank 0 writes them, and all ranks read them from there; of
    tensors that are spread over the ranks each rank writes its block, and reads what its own part needs. So
    there may be more ranks than before, or fewer. All other parts are each rank's own, and need the same
    number of ranks. Random number generators of ranks that were not there stay as they are.
    """

    def __init__(self, replicated: Iterable[str] = (), **parts: Any) -> None:
        for name, part in parts.items():
            if not (callable(getattr(part, "state_dict", None)) and hasattr(part, "load_state_dict")):
                raise TypeError(f"{name} ({type(part).__name__}) has no state_dict() and load_state_dict()")
        self._parts = parts
        self._replicated = frozenset(replicated)
        unknown = sorted(self._replicated - set(parts))
        if unknown:
            raise ValueError(f"replicated: {unknown} are not among the parts {sorted(parts)}")
        loaders.watch()

    def save(self, store: Store, step: int, attempt: str = "") -> Future[int]:
        """Copy the state to host memory now, and write it while training goes on. See Store.save_async()."""
        return store.save_async(step, self.capture(store), copy=False, attempt=attempt)

    def capture(self, store: Store) -> dict[str, bytes | memoryview]:
        """The files of this rank. The tensors are copied, into the store's staging where it has room.

        Raises TypeError for a value that cannot be written, naming its place.
        """
        torch = sys.modules.get("torch")
        packer = Packer(torch)
        packed = {}
        for name, part in self._parts.items():
            state = part.state_dict()  # Also where it is rank 0's: ranks may have to make it together.
            if name in self._replicated and store.rank != 0:
                state = spread_only(state)
            if state is not None:
                packed[name] = packer.pack(state, name)
        random_state = {**_random_state(torch), _LOADERS: loaders.open_now()}
        packed[_RANDOM] = packer.pack(random_state, "random")
        return {VALUES: json.dumps(packed).encode(), TENSORS: packer.file(store.buffer)}

    def restore(self, store: Store) -> int | None:
        """Load the newest generation that all ranks can read. Returns its step; None where there is none.

        Called by all ranks together where torch.distributed is initialised.

        Raises InvalidGeneration where it is whole, but does not fit the parts or the number of ranks: nothing
        was loaded then, in any rank.
        """
        torch = sys.modules.get("torch")
        agree = _agreement(torch)
        found = store.restore(
            ranks=lambda size: {0, store.rank} if size == store.world_size else range(size), agree=agree
        )
        if found is None:
            return None
        place = f"{store.folder}: generation {found.number} of {found.world_size} ranks"
        error = None
        try:
            states = {rank: _unpacked(torch, rank, files) for rank, files in found.files.items()}
            chosen = {
                name: self._chosen(torch, name, states, store, found.world_size) for name in self._parts
            }
        except (ValueError, TypeError, RecursionError) as caught:
            error = caught
        # All ranks load it, or none: one that went on alone would wait for the others in vain.
        if agree is not None and not agree(error is None) and error is None:
            error = ValueError("another rank cannot load it, and says why")
        if error is not None:
            raise InvalidGeneration(f"{place}: {error}") from error
        for name, part in self._parts.items():
            part.load_state_dict(chosen[name])
        own = states.get(store.rank, {})
        if _RANDOM in own:
            _set_random_state(torch, own[_RANDOM])
            # As they are now: what was read holds the memory of whole files.
            now = _random_state(torch)
            put_back = functools.partial(_set_random_state, torch, now)
            loaders.go_on(own[_RANDOM].get(_LOADERS, []), put_back, now.get("torch"))
        return found.step

    def _chosen(
        self, torch: Any, name: str, states: Mapping[int, dict[str, Any]], store: Store, world_size: int
    ) -> Any:
        """What a part is to load. `states`: by rank, of the ranks of the generation. Raises ValueError."""
        common = name in self._replicated
        ranks = sorted(states) if common else [store.rank]
        if not (common or world_size == store.world_size) or name not in states[ranks[0]]:
            raise ValueError(
                f"no part {name} for rank {store.rank} of {store.world_size}; parts that all ranks have in "
                "common are to be named in `replicated`"
            )
        held = [states[rank][name] for rank in ranks if name in states[rank]]
        if spread_only(held[0]) is None:
            return held[0]
        return joined(torch, held, live_state(self._parts[name]), name)


def _unpacked(torch: Any, rank: int, files: Mapping[str, memoryview]) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        found = unpack(json.loads(bytes(files[VALUES])), tensors_of(torch, files[TENSORS]))
        if not isinstance(found, dict):
            raise ValueError("not an object")  # noqa: TRY004
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"files of rank {rank} are not a job's state: {error}") from error
    return found


def _agreement(torch: Any) -> Any:
    """What `Store.restore()` takes as `agree`; None where this process is in no process group."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None

    def agree(value: int) -> int:
        device = "cuda" if re.search("nccl", distributed.get_backend()) else "cpu"
        least = torch.tensor([value], dtype=torch.int64, device=device)
        distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
        return int(least.item())

    return agree


def _random_state(torch: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate()}
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (kind, keys.tolist(), *rest)
    return state


def _set_random_state(torch: Any, state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])
