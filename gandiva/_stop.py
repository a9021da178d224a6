# SPDX-License-Identifier: MIT
"""What a session does when the agent asks: stand still, save, leave the GPU, come back, go on.

All ranks of a job stand still at the boundary that the agent names, the target, and tell it how far they are.
"""

import time
import warnings

from . import _environment, layout
from ._control_block import ControlBlock
from ._progress import Progress
from ._registry import Registry, RestoreError
from ._resize import Size
from ._store import JobStore
from .layout import Command, State, Verb

SHORTEST_SLEEP_SECONDS = 0.001
LONGEST_SLEEP_SECONDS = 0.05
SETTLED_SLEEP_SECONDS = 0.004
"""A rank that has blocked sleeps longer and longer. From this length on its target is no longer moving."""


class Stop:
    """One rank's part in it."""

    def __init__(self, block: ControlBlock, progress: Progress, registry: Registry) -> None:
        self._block, self._progress, self._registry = block, progress, registry
        command = block.read()
        self.size = Size(command.gpus if command is not None else 0)
        self.store = JobStore()
        self.offloaded = False
        self._failed_sequence = -1

    def obey(self) -> None:
        """Return when training may go on. Raises RestoreError where it cannot."""
        sleep_seconds = SHORTEST_SLEEP_SECONDS
        last_sequence = -1
        while True:
            command = self._block.read()
            if command is None:
                # An agent that was killed in mid-write, or junk. The next agent writes the record anew.
                # Until then nothing changes: the owner of the GPU is not known.
                if self._block.record.state not in (State.BLOCKED, State.OFFLOADED):
                    return
                time.sleep(LONGEST_SLEEP_SECONDS)
                continue
            if command.sequence != last_sequence:
                last_sequence = command.sequence
                sleep_seconds = SHORTEST_SLEEP_SECONDS
            if command.verb == Verb.RUN or self._progress.steps < command.target_step:
                # Blocked or not: other ranks are further on and may be waiting for this one.
                self._go_on(command)
                return
            if command.verb == Verb.OFFLOAD and not self.offloaded:
                if self._failed_sequence == command.sequence:
                    return  # could not; the data are still on the GPU, so training goes on
                if self._block.record.state == State.RUNNING:
                    self._set(State.BLOCKED, command)  # never seen as running while state is on the move
                self._measure_host_bytes()
                self._offload(command)
            elif command.verb == Verb.SAVE:
                if self._failed_sequence != command.sequence:
                    self._save(command)
                elif not self.offloaded:
                    return  # the agent is about to take it back
            elif not self.offloaded:
                self._set(State.BLOCKED, command)
                if sleep_seconds > SETTLED_SLEEP_SECONDS:
                    self._measure_host_bytes()
            elif self.store.give_up():
                self._set(State.OFFLOADED, command)
            # A stopped or frozen process simply sleeps longer. Nothing here measures time.
            time.sleep(sleep_seconds)
            sleep_seconds = min(sleep_seconds * 1.5, LONGEST_SLEEP_SECONDS)

    def publish(self) -> None:
        """Write all that the agent reads of this rank."""
        flags = {
            layout.FLAG_STATES_HOST_BYTES: True,
            layout.FLAG_HAS_STORE: self.store.registered,
            layout.FLAG_SAVES_OFFLOADED: self.store.registered and self._registry.saves_offloaded,
            layout.FLAG_RELEASES_CONTEXT: self._registry.releases_context,
            layout.FLAG_RESIZES: bool(self.size.hooks),
            layout.FLAG_STARTS_PROCESSES: self._registry.starts_processes,
        }
        self._block.publish(
            steps_done=self._progress.steps,
            samples_done=self._progress.samples,
            step_seconds=self._progress.step_seconds,
            state_bytes=self._registry.size.total_bytes,
            largest_tensor_bytes=self._registry.size.largest_tensor_bytes,
            flags=sum(flag for flag, holds in flags.items() if holds),
        )

    def _measure_host_bytes(self) -> None:
        """Say how much host memory the offload takes, once while blocked. The agent reads it beforehand."""
        if self._block.record.host_bytes == layout.HOST_BYTES_UNKNOWN:
            try:
                host_bytes = self._registry.host_bytes()
            except Exception:
                host_bytes = 0  # offload() fails the same way, and says why
            self._block.note(host_bytes=host_bytes)
            self.publish()

    def _offload(self, command: Command) -> None:
        begin = time.perf_counter()
        try:
            left_bytes = self._registry.offload()
        except RestoreError as error:
            self._fail(str(error), command)
            raise
        except Exception as error:
            # Everything is on the GPU as before. Say so, and train on until the agent takes it back.
            self._fail(f"{type(error).__name__}: {error}", command)
            self._warn(f"leave the GPU: {error!r}")
            return
        self.offloaded = True
        seconds = time.perf_counter() - begin
        self._block.note(left_bytes=left_bytes, offload_seconds=seconds, host_bytes=0, error=b"")
        self._set(State.OFFLOADED, command)

    def _save(self, command: Command) -> None:
        """Answer when the generation is published, or cannot be. Looked at again and again until then, so
        that the agent can take its request back."""
        try:
            with self._registry.reading():
                saved = self.store.save(self._progress.steps, command.sequence, self._registry.synchronize)
        except Exception as error:
            # Off its GPU it stays there, and waits.
            state = State.OFFLOADED if self.offloaded else State.FAILED
            self._fail(self.store.explain(error), command, state)
            self._warn(f"save: {error!r}")
            return
        if saved is not None:
            self._block.note(saved_step=saved[0], saved_generation=saved[1], error=b"")
            self._set(State.OFFLOADED if self.offloaded else State.BLOCKED, command)

    def _go_on(self, command: Command) -> None:
        self._block.note(host_bytes=layout.HOST_BYTES_UNKNOWN)
        self.store.give_up()
        if self.offloaded:
            self._set(State.RESTORING, command)
            try:
                self.size.change(command.gpus)
                self._registry.restore()
            except RestoreError as error:
                self._fail(str(error), command)
                raise
            self.offloaded = False
            self._block.note(left_bytes=0)
            self._registry.measure()
        if self._block.record.state == State.FAILED and command.verb != Verb.RUN:
            return
        self._set(State.RUNNING, command)

    def _fail(self, error: str, command: Command, state: State = State.FAILED) -> None:
        self._failed_sequence = command.sequence
        self._progress.publish_at = 0.0  # look again at the next step: the agent is about to take it back
        self._block.note(host_bytes=layout.HOST_BYTES_UNKNOWN, error=layout.encode_error(error))
        self._set(state, command)

    def _warn(self, what: str) -> None:
        text = f"{_environment.message_prefix()}rank {self._block.rank} cannot {what}"
        warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _set(self, state: State, command: Command) -> None:
        if (self._block.record.state, self._block.record.answered_sequence) != (state, command.sequence):
            self._block.note(state=state, answered_sequence=command.sequence)
            self.publish()
