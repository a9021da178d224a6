# SPDX-License-Identifier: MIT
"""What a session writes into its checkpoint store when the agent asks for it."""

from typing import Any, Callable, Optional, Tuple


class JobStore:
    """A store, and the state that goes there: `Store` and `State` of `checkpointing.store`, or alike.

    None: the script has registered none.
    """

    def __init__(self, store: Any = None, state: Any = None, first_step: int = 0) -> None:
        """`first_step`: the job's step when the session has counted none."""
        self._store = store
        self._state = state
        self._first_step = first_step
        self._saving: Any = None
        self._step = 0
        self._sequence = -1
        self.registered = state is not None

    def save(self, steps_done: int, sequence: int, settle: Callable[[], None]) -> Optional[Tuple[int, int]]:
        """Begin the save that a command asks for, or look after it. Returns step and number of the generation
        that is published, the same in all ranks; None: it is still being written.

        `steps_done`: boundaries of the session, the same in all ranks. `settle`: called before the state is
        read. Raises what the save failed with.
        """
        if not self.registered:
            raise RuntimeError("no store is registered")
        if sequence != self._sequence:
            if not self.give_up():
                return None
            self._sequence = sequence
            self._step = self._first_step + steps_done
            self._saving = None
            settle()
            # Not by the number of saves: a rank that did not hear of an earlier request has fewer.
            self._saving = self._state.save(self._store, self._step, attempt=f"at{steps_done}")
        if self._saving is None or not self._saving.done():
            return None
        return self._step, int(self._saving.result())

    def give_up(self) -> bool:
        """Nothing waits for a save any more that is still being written. True: none is."""
        if self._saving is None or self._saving.done():
            return True
        self._store.give_up()
        return False

    def explain(self, error: BaseException) -> str:
        """In few words, without folder and step: a rank file has room for 60 bytes."""
        text = str(error)
        for known in (f"{getattr(self._store, 'folder', '')}: ", f"step {self._step}: "):
            text = text.replace(known, "", 1)
        return f"{type(error).__name__}: {text}"
