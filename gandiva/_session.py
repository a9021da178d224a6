# SPDX-License-Identifier: MIT
"""The session: a training process's end of the control block."""

import atexit
import fcntl
import mmap
import os
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, TypeVar, Union

from . import _environment, layout
from ._kept import Kept, Saved
from ._registry import Registry, RestoreError
from .layout import Command, State, Verb

Batch = TypeVar("Batch")

WARM_UP_STEPS = 5
WINDOW_STEPS = 20
PUBLISH_SECONDS = 0.5
"""How often the step time is worked out and published; never more than once a step."""

SHORTEST_SLEEP_SECONDS = 0.001
LONGEST_SLEEP_SECONDS = 0.05
SETTLED_SLEEP_SECONDS = 0.004
"""A rank that has blocked sleeps longer and longer. From this length on its target is no longer moving."""
SEQLOCK_TRIES = 1000


class Session:
    """What `gandiva.attach()` returns. This base does nothing: it is what a script gets outside Slurm.

    Call `step()` from one thread only, at the end of every mini-batch, the same number of times in
    every rank.
    """

    def register(self, *objects: Any, name: str = "") -> None:
        """Say what holds GPU memory: PyTorch modules, optimizers, tensors or containers of them, or objects
        with `offload()` and `restore()`, or with `to()`, `state_dict()` and `device`.

        Raises TypeError for an object that can be moved in none of these ways (never outside Slurm).
        """

    def register_store(self, store: Any, state: Any) -> int:
        """Say where the job's state is kept, so that the scheduler can move the job to other servers.

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
    """A session with a control block."""

    def __init__(self, directory: Path, place: _environment.Place) -> None:
        """Map the control block and announce this rank.

        Raises OSError or ValueError, with nothing left behind, when the block is unusable or another live
        process is this rank already.
        """
        self.rank = place.rank
        self.world_size = place.world_size
        self._directory = directory
        self._registry = Registry()
        self._attending = threading.Lock()
        self._open = True
        self.forked = False
        self._offloaded = False
        self._failed_sequence = -1
        self._answered = 0
        self._state = State.RUNNING
        self._left_bytes = 0
        self._offload_seconds = 0.0
        self._step_seconds = 0.0
        self._error = b""
        self._pid = os.getpid()
        self._start_time_ticks = _environment.start_time_ticks(self._pid)
        self._state_bytes = 0
        self._host_bytes = layout.HOST_BYTES_UNKNOWN
        self._largest_tensor_bytes = 0
        self._kept: Optional[Kept] = None
        self._saved = Saved(0, 0)
        self._on_resize: List[Callable[[int], object]] = []

        self._command_map = _map_command(directory / "command")
        self._rank_file, self._rank_map = _map_rank(directory / "ranks" / str(place.rank))
        # Native words: one aligned 8-byte store or load each. struct's "<Q" goes byte by byte and can tear.
        self._command = memoryview(self._command_map).cast("Q")
        self._words = memoryview(self._rank_map).cast("Q")
        self._doubles = memoryview(self._rank_map).cast("d")
        self._run = layout.head_word(Verb.RUN)
        command = self._read_command()
        self._gpus = command.gpus if command is not None else 0

        self._steps = 0
        self._samples = 0.0
        self._clock = time.perf_counter
        self._window: List[float] = [0.0] * WINDOW_STEPS
        self._boundary = self._clock()
        self._publish_at = 0.0
        self._warm = False
        self._registry.watch_torch(self.memory_limit_bytes)
        # What an earlier process left under this rank's number must not be read as this one's.
        self._words[layout.WORD_STEPS] = 0
        self._doubles[layout.WORD_SAMPLES] = 0.0
        self._publish()
        # A data-loader worker shares the mapping with its parent and must not speak for it.
        os.register_at_fork(after_in_child=_weak_call(self, LiveSession._become_inert))
        atexit.register(_weak_call(self, LiveSession.finish))

    @property
    def asked(self) -> bool:
        return self._open and self._command[0] != self._run

    @property
    def active(self) -> bool:
        return self._open

    @property
    def offloaded(self) -> bool:
        return self._offloaded

    @property
    def steps_done(self) -> int:
        return self._steps

    def visible_positions(self) -> Optional[Sequence[int]]:
        return _environment.visible_positions(self._directory)

    def on_resize(self, hook: Callable[[int], object]) -> None:
        if self._open:
            self._on_resize.append(hook)
            self._publish()

    @property
    def gpus(self) -> int:
        return self._gpus

    @property
    def memory_limit_bytes(self) -> int:
        return self._command[layout.WORD_MEMORY_LIMIT]

    def register(self, *objects: Any, name: str = "") -> None:
        if not self._open:
            return
        self._registry.watch_torch(self.memory_limit_bytes)
        for number, target in enumerate(objects):
            label = name or type(target).__name__
            self._registry.add(target, f"{label}[{number}]" if len(objects) > 1 else label)
        self._measure_state()
        self._publish()

    def register_store(self, store: Any, state: Any) -> int:
        step = super().register_store(store, state)
        if self._open:
            self._kept = Kept(store, state, step - self._steps)
            self._publish()
        return step

    def step(self, samples: float = 0) -> None:
        steps = self._steps = self._steps + 1
        total = self._samples = self._samples + samples
        self._words[3] = steps  # layout.WORD_STEPS
        self._doubles[4] = total  # layout.WORD_SAMPLES
        now = self._clock()
        self._window[steps % 20] = now - self._boundary  # WINDOW_STEPS
        self._boundary = now
        if now >= self._publish_at or self._command[0] != self._run:
            self._attend(now)

    def finish(self) -> None:
        if not self._open:
            return
        self._state = State.FINISHED
        self._publish()
        self._close()

    # -- off the fast path ---------------------------------------------------------------------------------

    def _attend(self, now: float) -> None:
        """Publish what is due and do what the agent asks; return when training may go on."""
        if not self._open or not self._attending.acquire(blocking=False):
            return  # a second thread, or a signal handler that calls step() while the first one waits here
        try:
            if now >= self._publish_at:
                self._publish_at = now + PUBLISH_SECONDS
                self._registry.watch_torch(self.memory_limit_bytes)
                if not self._warm and self._steps > WARM_UP_STEPS:
                    self._warm = True
                    self._measure_state()  # optimizers made their state in the first steps
                self._step_seconds = self._median()
                self._publish()
            if self._command[0] != self._run or self._state != State.RUNNING:
                self._obey()
        finally:
            self._attending.release()
            # Time off the GPU is no step time.
            self._boundary = self._clock()

    def _obey(self) -> None:
        sleep_seconds = SHORTEST_SLEEP_SECONDS
        last_sequence = -1
        while True:
            command = self._read_command()
            if command is None:
                # An agent that was killed in mid-write, or junk. The next agent writes the record anew.
                # Until then nothing changes: the owner of the GPU is not known.
                if self._state not in (State.BLOCKED, State.OFFLOADED):
                    return
                time.sleep(LONGEST_SLEEP_SECONDS)
                continue
            if command.sequence != last_sequence:
                last_sequence = command.sequence
                sleep_seconds = SHORTEST_SLEEP_SECONDS
            if command.verb == Verb.RUN:
                self._go_on(command)
                return
            if self._steps < command.target_step:
                # Blocked or not: other ranks are further on and may be waiting for this one.
                self._go_on(command)
                return
            if command.verb == Verb.OFFLOAD and not self._offloaded:
                if self._failed_sequence == command.sequence:
                    return  # could not; the data are still on the GPU, so training goes on
                if self._state == State.RUNNING:
                    self._set(State.BLOCKED, command)  # never seen as running while state is on the move
                self._measure_host_bytes()
                self._offload(command)
            elif command.verb == Verb.SAVE:
                if self._failed_sequence != command.sequence:
                    self._save(command)
                elif not self._offloaded:
                    return  # the agent is about to take it back
            elif not self._offloaded:
                self._set(State.BLOCKED, command)
                if sleep_seconds > SETTLED_SLEEP_SECONDS:
                    self._measure_host_bytes()
            elif self._give_up_save():
                self._set(State.OFFLOADED, command)
            # A stopped or frozen process simply sleeps longer. Nothing here measures time.
            time.sleep(sleep_seconds)
            sleep_seconds = min(sleep_seconds * 1.5, LONGEST_SLEEP_SECONDS)

    def _measure_host_bytes(self) -> None:
        """Say how much host memory the offload takes, once while blocked. The agent reads it beforehand."""
        if self._host_bytes == layout.HOST_BYTES_UNKNOWN:
            try:
                self._host_bytes = self._registry.host_bytes()
            except Exception:
                self._host_bytes = 0  # offload() fails the same way, and says why
            self._publish()

    def _offload(self, command: Command) -> None:
        begin = self._clock()
        try:
            self._left_bytes = self._registry.offload()
        except RestoreError as error:
            self._fail(str(error), command)
            raise
        except Exception as error:
            # Everything is on the GPU as before. Say so, and train on until the agent takes it back.
            self._fail(f"{type(error).__name__}: {error}", command)
            warnings.warn(
                f"{_environment.message_prefix()}rank {self.rank} cannot leave the GPU: {error!r}",
                RuntimeWarning,
                stacklevel=4,
            )
            return
        self._offload_seconds = self._clock() - begin
        self._offloaded = True
        self._host_bytes = 0
        self._error = b""
        self._set(State.OFFLOADED, command)

    def _save(self, command: Command) -> None:
        """Answer when the generation is published, or cannot be. Looked at again and again until then, so
        that the agent can take its request back."""
        kept = self._kept
        try:
            if kept is None:
                raise RuntimeError("no store is registered")
            with self._registry.reading():
                saved = kept.save(self._steps, command.sequence, self._registry.synchronize)
        except Exception as error:
            text = f"{type(error).__name__}: {error}" if kept is None else kept.explain(error)
            # Off its GPU it stays there, and waits.
            self._fail(text, command, State.OFFLOADED if self._offloaded else State.FAILED)
            warnings.warn(
                f"{_environment.message_prefix()}rank {self.rank} cannot save: {error!r}",
                RuntimeWarning,
                stacklevel=4,
            )
            return
        if saved is not None:
            self._saved = saved
            self._error = b""
            self._set(State.OFFLOADED if self._offloaded else State.BLOCKED, command)

    def _give_up_save(self) -> bool:
        return self._kept is None or self._kept.give_up()

    def _go_on(self, command: Command) -> None:
        self._host_bytes = layout.HOST_BYTES_UNKNOWN
        self._give_up_save()
        if self._offloaded:
            self._set(State.RESTORING, command)
            try:
                self._resize(command.gpus)
                self._registry.restore()
            except RestoreError as error:
                self._fail(str(error), command)
                raise
            self._offloaded = False
            self._left_bytes = 0
            self._measure_state()
        if self._state == State.FAILED and command.verb != Verb.RUN:
            return
        self._set(State.RUNNING, command)

    def _resize(self, gpus: int) -> None:
        """Tell the script where the number of GPUs is another one. Raises RestoreError."""
        if gpus in (0, self._gpus):
            return
        self._gpus = gpus
        for hook in self._on_resize:
            try:
                hook(gpus)
            except Exception as error:
                raise RestoreError(f"cannot go on with {gpus} GPUs: {error!r}") from error

    def _fail(self, error: str, command: Command, state: State = State.FAILED) -> None:
        self._failed_sequence = command.sequence
        self._host_bytes = layout.HOST_BYTES_UNKNOWN
        self._publish_at = 0.0  # look again at the next step: the agent is about to take its request back
        self._error = layout.encode_error(error)
        self._set(state, command)

    def _set(self, state: State, command: Command) -> None:
        if self._state != state or self._answered != command.sequence:
            self._state = state
            self._answered = command.sequence
            self._publish()

    def _read_command(self) -> Optional[Command]:
        """A consistent copy of the command; None where there is none to be had."""
        for _ in range(SEQLOCK_TRIES):
            before = self._command[layout.WORD_SEQUENCE]
            found = layout.parse_command(self._command_map[: layout.COMMAND.size])
            if found is not None and found.sequence == before == self._command[layout.WORD_SEQUENCE]:
                return found
            time.sleep(0)
        return None

    def _measure_state(self) -> None:
        size = self._registry.size()
        self._state_bytes, self._largest_tensor_bytes = size.total_bytes, size.largest_tensor_bytes

    @property
    def _saves_offloaded(self) -> bool:
        return self._kept is not None and self._registry.saves_offloaded

    def _median(self) -> float:
        count = min(self._steps - WARM_UP_STEPS, WINDOW_STEPS)
        if count <= 0:
            return 0.0
        last = [self._window[(self._steps - back) % WINDOW_STEPS] for back in range(count)]
        return sorted(last)[count // 2]

    def _publish(self) -> None:
        """Write everything but the two counters under the seqlock."""
        sequence = self._words[layout.WORD_SEQUENCE] | 1
        self._words[layout.WORD_SEQUENCE] = sequence
        record = layout.RANK.pack(
            layout.RANK_MAGIC,
            layout.VERSION,
            self._state,
            sequence,
            self._answered,
            self._steps,
            self._samples,
            self._step_seconds,
            self._left_bytes,
            self._offload_seconds,
            self._pid,
            self.world_size,
            self._start_time_ticks,
            self._state_bytes,
            self._largest_tensor_bytes,
            layout.FLAG_STATES_HOST_BYTES
            | (layout.FLAG_HAS_STORE if self._kept is not None else 0)
            | (layout.FLAG_SAVES_OFFLOADED if self._saves_offloaded else 0)
            | (layout.FLAG_RELEASES_CONTEXT if self._registry.releases_context else 0)
            | (layout.FLAG_RESIZES if self._on_resize else 0)
            | (layout.FLAG_STARTS_PROCESSES if self._registry.starts_processes else 0),
            self._error,
            self._host_bytes,
            self._saved.step,
            self._saved.generation,
        )
        self._rank_map[: len(record)] = record
        self._words[layout.WORD_SEQUENCE] = (sequence + 1) & (2**64 - 1)

    def _become_inert(self) -> None:
        """In a forked child: step() goes on working, on memory of its own."""
        self.forked = self._pid != os.getpid()
        self._open = False
        self._run = 0
        self._publish_at = float("inf")
        self._command = memoryview(bytes(layout.RECORD_BYTES)).cast("Q")
        self._words = memoryview(bytearray(layout.RECORD_BYTES)).cast("Q")
        self._doubles = memoryview(bytearray(layout.RECORD_BYTES)).cast("d")

    def _close(self) -> None:
        self._become_inert()
        self._rank_map.close()
        self._command_map.close()
        self._rank_file.close()  # and with it the lock on this rank's number


def _weak_call(session: LiveSession, method: Callable[[LiveSession], None]) -> Callable[[], None]:
    reference = weakref.ref(session)

    def call() -> None:
        found = reference()
        if found is not None:
            method(found)

    return call


def _map_command(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != layout.RECORD_BYTES:
            raise ValueError(f"{path} is no control block of version {layout.VERSION}: wrong size")
        mapped = mmap.mmap(file.fileno(), layout.RECORD_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
    magic, version, *_ = layout.COMMAND.unpack_from(mapped)
    if magic != layout.COMMAND_MAGIC or version != layout.VERSION:
        mapped.close()
        raise ValueError(
            f"{path} is no control block of version {layout.VERSION}: its head is {magic!r} {version}"
        )
    return mapped


def _map_rank(path: Path) -> "tuple[Any, mmap.mmap]":
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    try:
        # A POSIX lock, because it ends with the process and is not inherited by forked workers.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Reserve the page: on a full tmpfs a store into a hole would kill the process with SIGBUS.
        os.posix_fallocate(descriptor, 0, layout.RECORD_BYTES)
        os.ftruncate(descriptor, layout.RECORD_BYTES)
        return file, mmap.mmap(descriptor, layout.RECORD_BYTES)
    except BlockingIOError:
        file.close()
        raise OSError(f"another live process of this job is rank {path.name} already ({path})") from None
    except BaseException:
        file.close()
        raise
