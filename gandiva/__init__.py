# SPDX-License-Identifier: MIT
"""The job's side of Gandiva for Slurm: let the scheduler suspend this training at a mini-batch boundary.

    import gandiva

    with gandiva.attach() as session:
        session.register(model, optimizer)
        for batch in session.steps(loader):
            train(batch)

Outside a Gandiva job all of it does nothing. Standard library only; PyTorch is used when the script does.
"""

import importlib
import os
import threading
import warnings
from typing import TYPE_CHECKING, Any, Optional

from . import _environment, layout
from ._batch import Batch
from ._communicators import Communicators
from ._registry import RestoreError
from ._reporting import reporting_session
from ._session import LiveSession, Session

if TYPE_CHECKING:
    from .executor import Executor
    from .pool import Pool, PoolError

__all__ = [
    "Batch",
    "Communicators",
    "Executor",
    "Pool",
    "PoolError",
    "RestoreError",
    "Session",
    "attach",
]
_LATER = {"Executor": "executor", "Pool": "pool", "PoolError": "pool"}
"""For programs that have trainings, not for the trainings: imported when they are used."""
__version__ = "0.2.0"

_current: Optional[Session] = None
_lock = threading.Lock()


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def attach(*, rank: Optional[int] = None, world_size: Optional[int] = None) -> Session:
    """Connect this process to its job's control block; the same session when called again.

    `rank` and `world_size` are those of the job's training processes; they are taken from RANK/WORLD_SIZE
    (torchrun) or Slurm's step when not given. Outside a Gandiva job, or when the control block cannot be
    used (then with a RuntimeWarning), the session that is returned does nothing. Never raises.
    """
    global _current
    with _lock:
        # A forked worker keeps its parent's session, which is inert there.
        forked = isinstance(_current, LiveSession) and _current.forked
        if _current is None or not (_current.active or forked):
            _current = _attach(rank, world_size)
        return _current


def _attach(rank: Optional[int], world_size: Optional[int]) -> Session:
    directory = _environment.control_dir(os.environ)
    if directory is None:
        return reporting_session(os.environ) or Session()
    try:
        if not layout.LITTLE_ENDIAN:
            raise ValueError("big-endian machines are not supported")
        if (rank is None) != (world_size is None):
            raise ValueError("give attach() both rank and world_size, or neither")
        if rank is None or world_size is None:
            place = _environment.place(os.environ)
        else:
            place = _environment.checked_place(rank, world_size)
        return LiveSession(directory, place)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"{_environment.message_prefix()}session is inactive: {error}", RuntimeWarning, stacklevel=3
        )
        return Session()
