# SPDX-License-Identifier: MIT
"""The memory of NCCL's communicators, off the GPU and back, with PyTorch 2.12 and NCCL 2.29.7 or later."""

import atexit
import contextlib
import sys
import threading
import time
from typing import Any, List

AGREE_SECONDS = 20.0
WAIT_SHARE = 0.8
"""Of AGREE_SECONDS, how long a rank waits for others. In the rest it says that it waits no longer."""
POLL_SECONDS = 0.01
EXIT_SECONDS = 1.0
"""How long the end of the process waits for a store that does not answer."""

GO = "go"
STAY = "stay"


class Communicators:
    """All NCCL communicators of this process, to be registered with the session of every rank.

    Suspending a communicator waits for all of its ranks, without a deadline. So the ranks agree first, over
    the store of the process group: all of them come within AGREE_SECONDS and name the same number of
    communicators, or these stay on the GPU until the end of the process. They stay as well where the store
    does not answer, and where PyTorch or NCCL cannot suspend them.
    """

    saves_offloaded = True

    def __init__(self) -> None:
        self._suspended: List[Any] = []
        self._round = 0
        self._staying = False

    def state_bytes(self) -> int:
        """What suspend() copies to host memory."""
        return sum(int(backend.memory_stats().get("suspend", 0)) for backend in self._backends())

    def offload(self) -> None:
        backends = [] if self._staying else self._backends()
        if not backends:
            return
        if not self._agree(sys.modules["torch"].distributed, len(backends)):
            self._staying = True
            return
        try:
            for backend in backends:
                backend.suspend()
                self._suspended.append(backend)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        for backend in self._suspended:
            backend.resume()
        if self._suspended:
            self._round += 1
        self._suspended = []

    def _backends(self) -> List[Any]:
        """NCCL's backends that can be suspended, in the order in which all ranks made their groups."""
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if torch is None or distributed is None or not distributed.is_available():
            return []
        if not distributed.is_initialized() or not torch.cuda.is_initialized():
            return []
        device = torch.device("cuda", torch.cuda.current_device())
        found = []
        for group in list(distributed.distributed_c10d._world.pg_map):
            try:
                backend = group._get_backend(device)
                if "nccl" in backend.name() and hasattr(backend, "suspend") and hasattr(backend, "resume"):
                    # It fails where suspend() would: no communicator yet, or an NCCL that is too old.
                    backend.memory_stats()
                    found.append(backend)
            except (RuntimeError, AttributeError):
                continue
        return found

    def _agree(self, distributed: Any, count: int) -> bool:
        """Whether all ranks are about to suspend, within AGREE_SECONDS, also where the store does not answer.

        All get the same answer, whenever they come. Where the process with the store stands still, the calls
        of all others wait with it, whatever their timeout: this rank then stays. So the ranks meet twice. The
        first time may take long, and a rank that has given up meanwhile does not come to the second, which
        takes milliseconds. A store that stands still just then, and only there, can part them.
        """
        store = distributed.distributed_c10d._get_default_store()
        prefix = f"gandiva/{self._round}/{count}"
        ranks = distributed.get_world_size()
        until = time.monotonic() + AGREE_SECONDS * WAIT_SHARE
        answers: List[bool] = []

        def ask() -> None:
            # No answer is an answer: without their store the ranks cannot agree.
            with contextlib.suppress(Exception):
                answers.append(
                    _meet(store, f"{prefix}/here", ranks, until)
                    and time.monotonic() < until
                    and _meet(store, f"{prefix}/ready", ranks, until)
                )

        thread = threading.Thread(target=ask, name="gandiva-agree", daemon=True)
        thread.start()
        thread.join(AGREE_SECONDS)
        if thread.is_alive():
            # Where its call comes back while Python ends, the process would be aborted.
            atexit.register(thread.join, EXIT_SECONDS)
        return answers == [True]


def _meet(store: Any, name: str, ranks: int, until: float) -> bool:
    """Whether all ranks have come here before any of them waited no longer."""
    arrived, decision = f"{name}/arrived", f"{name}/decision"
    if int(store.add(arrived, 1)) == ranks:
        store.compare_set(decision, "", GO)
    while not store.check([decision]):
        if time.monotonic() >= until:
            store.compare_set(decision, "", STAY)
            break
        time.sleep(POLL_SECONDS)
    return bool(store.get(decision) == GO.encode())
