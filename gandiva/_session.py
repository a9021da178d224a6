# SPDX-License-Identifier: MIT
"""The session: a training process's end of the control block."""

import atexit
import os
import threading
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, TypeVar, Union

from . import _environment, layout
from ._control_block import RUN, ControlBlock
from ._progress import WARM_UP_STEPS, Progress
from ._registry import Registry
from ._report_file import Reporter
from ._stop import Stop
from ._store import JobStore
from .layout import State

Batch = TypeVar("Batch")


class Session:
    """What `gandiva.attach()` returns. This base does nothing: it is what a script gets outside Slurm.

    Call `step()` from one thread only, at the end of every mini-batch, the same number of times in
    every rank.
    """

    _rank: Optional[int] = None
    """None: as the environment says."""
    _reporter: Optional[Reporter] = None

    def register(self, *objects: Any, name: str = "") -> None:
        """Say what holds GPU memory: PyTorch modules, optimizers, tensors or containers of them, or objects
        with `offload()` and `restore()`, or with `to()`, `state_dict()` and `device`.

        Raises TypeError for an object that can be moved in none of these ways (never outside Slurm).
        """

    def register_store(self, store: Any, state: Any) -> int:
        """Say where the job's state is kept, so that the scheduler can move the job to other nodes.

        `store` and `state`: a `Store` and a `State` of `checkpointing.store`. Loads the newest valid
        generation, inside and outside Slurm, and returns the step to go on from: 0 where there is none. Call
        it in all ranks, when the objects of the state are made. From then on the job's step is that number
        and the boundaries passed since.

        Raises what the restore fails with: `StoreError`, `InvalidGeneration`.
        """
        return int(state.restore(store) or 0)

    def step(self, samples: float = 0) -> None:
        """Mark a mini-batch boundary; `samples` is the number of samples it held.

        Nothing of the mini-batch may be running, and nothing that is still needed may live on the GPU in a
        place the session cannot find. Returns at once (under 2 µs) unless the scheduler asked for the
        GPU; then it returns when the job has its GPU back. Raises RestoreError if that fails.
        """

    def steps(
        self, loader: Iterable[Batch], samples: Union[float, Callable[[Batch], float]] = 0
    ) -> Iterator[Batch]:
        """Iterate over a loader, with `step()` after each pass through the loop's body.

        `samples` is the size of a batch, or a function of the batch that gives it. Leaving the loop with
        `break` does not count the pass in which it happens.
        """
        for batch in loader:
            count = samples(batch) if callable(samples) else samples
            yield batch
            del batch  # so that this frame does not hold its memory while the job is off the GPU
            self.step(count)

    def report(self, step: float, **numbers: float) -> None:
        """Say how good the training is after so many steps, such as `report(step=100, accuracy=0.9)`.

        Rank 0's reports of a trial of `gandiva run` are in the study's folder, where `gandiva.Pool` reads
        them; elsewhere nothing is done, unless GANDIVA_REPORT names a file. Never raises.
        """
        if self._reporter is None:
            self._reporter = Reporter(os.environ, self._rank)
        self._reporter.write(step, numbers)

    def finish(self) -> None:
        """The training is over; the session answers no more requests. Harmless when repeated."""

    def visible_positions(self) -> Optional[Sequence[int]]:
        """Which of the devices in Slurm's CUDA_VISIBLE_DEVICES the job may use now; None: all.

        For hooks that destroy their CUDA context and can come back on another GPU.
        """
        return None

    def on_resize(self, hook: Callable[[int], object]) -> None:
        """Say that this process goes on with any number of GPUs, so that the scheduler may grow and shrink
        its job in place.

        `hook(gpus)` is called when the job goes on with another number of GPUs on this node, after its state
        was copied to host memory and before the registered objects restore it. Each of these must release
        its CUDA context, and comes back on the GPUs of `visible_positions()`. An exception of the hook is a
        RestoreError.
        """

    @property
    def gpus(self) -> int:
        """How many GPUs the job uses on this node now. 0: no scheduler says so, all that can be seen."""
        return 0

    @property
    def memory_limit_bytes(self) -> int:
        """The most memory that the job may take of each of its GPUs now, while another job shares them.
        0: no limit. PyTorch is kept to it."""
        return 0

    @property
    def asked(self) -> bool:
        """Whether the scheduler waits for this process at its next boundary."""
        return False

    @property
    def active(self) -> bool:
        """Whether a scheduler can suspend this process at `step()`."""
        return False

    @property
    def offloaded(self) -> bool:
        """Whether the state is in host memory now. Signal handlers must not touch the model while it is."""
        return False

    @property
    def steps_done(self) -> int:
        """Boundaries passed since attach()."""
        return 0

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


class LiveSession(Session):
    """A session with a control block: a count of the progress, the registered state, and the stops."""

    def __init__(self, directory: Path, place: _environment.Place) -> None:
        """Map the control block, which raises OSError or ValueError, and announce this rank."""
        self._block = ControlBlock(directory, place)
        self._rank = place.rank
        self._progress = Progress(self._block)
        self._registry = Registry()
        self._stop = Stop(self._block, self._progress, self._registry)
        self._attending = threading.Lock()
        self._warm = False
        self._registry.watch_torch(self.memory_limit_bytes)
        self._stop.publish()
        # A data-loader worker shares the mapping with its parent and must not speak for it.
        os.register_at_fork(after_in_child=self._block.detach)
        atexit.register(self.finish)

    @property
    def asked(self) -> bool:
        return self._block.command[0] != RUN

    @property
    def active(self) -> bool:
        return self._block.open

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process whose session it is."""
        return self._block.record.pid != os.getpid()

    @property
    def offloaded(self) -> bool:
        return self._stop.offloaded

    @property
    def steps_done(self) -> int:
        return self._progress.steps

    def visible_positions(self) -> Optional[Sequence[int]]:
        return _environment.visible_positions(self._block.directory)

    def on_resize(self, hook: Callable[[int], object]) -> None:
        if self.active:
            self._stop.size.hooks.append(hook)
            self._stop.publish()

    @property
    def gpus(self) -> int:
        return self._stop.size.gpus

    @property
    def memory_limit_bytes(self) -> int:
        return self._block.command[layout.WORD_MEMORY_LIMIT]

    def register(self, *objects: Any, name: str = "") -> None:
        if not self.active:
            return
        self._registry.watch_torch(self.memory_limit_bytes)
        for number, target in enumerate(objects):
            label = name or type(target).__name__
            self._registry.add(target, f"{label}[{number}]" if len(objects) > 1 else label)
        self._registry.measure()
        self._stop.publish()

    def register_store(self, store: Any, state: Any) -> int:
        step = super().register_store(store, state)
        if self.active:
            self._stop.store = JobStore(store, state, step - self._progress.steps)
            self._stop.publish()
        return step

    def step(self, samples: float = 0) -> None:
        if self._progress.passed(samples) or self._block.command[0] != RUN:
            self._attend()

    def finish(self) -> None:
        if self.active:
            self._block.note(state=State.FINISHED)
            self._stop.publish()
            self._block.close()
            atexit.unregister(self.finish)

    def _attend(self) -> None:
        """Publish what is due and do what the agent asks; return when training may go on."""
        if not self.active or not self._attending.acquire(blocking=False):
            return  # a second thread, or a signal handler that calls step() while the first one waits here
        try:
            if self._progress.measure():
                self._registry.watch_torch(self.memory_limit_bytes)
                if not self._warm and self._progress.steps > WARM_UP_STEPS:
                    self._warm = True
                    self._registry.measure()  # optimizers made their state in the first steps
                self._stop.publish()
            if self.asked or self._block.record.state != State.RUNNING:
                self._stop.obey()
        finally:
            self._attending.release()
            self._progress.go_on()
