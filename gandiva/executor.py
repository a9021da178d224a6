# SPDX-License-Identifier: MIT
"""Functions as trials of a pool, in the way of `concurrent.futures`.

    from gandiva import Executor, Pool

    with Pool("lr") as pool, Executor(pool, gpus=1) as executor:
        for accuracy in executor.map(train, rates):
            print(accuracy)

A trial imports the function by its name, from a module: that of the program itself is not one.
"""

import concurrent.futures
import pickle
import secrets
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, List, Optional

from .pool import Pool, PoolError, Trial


class TrialFuture(concurrent.futures.Future[Any]):
    """The call of a function, and the trial that carries it out."""

    def __init__(self, trial: Trial, call: Path) -> None:
        super().__init__()
        self.trial = trial
        self._call = call

    def cancel(self) -> bool:
        """Stop the trial, also when it has begun."""
        if not super().cancel():
            return False
        self.trial.stop()
        return True

    def settle(self) -> None:
        """The trial is over: take over what has become of it."""
        result = self._call.with_suffix(".result")
        trial, returned = self.trial, False
        why = trial.reason or f"exit status {trial.exit_code}"
        outcome: Any = PoolError(f"trial {trial.name}: {trial.state}, {why}: see {trial.output}")
        try:
            returned, outcome = pickle.loads(result.read_bytes())
        except FileNotFoundError:
            if trial.state == "CANCELLED":
                super().cancel()
        except Exception as error:
            outcome = PoolError(f"trial {trial.name}: its result cannot be read: {error!r}")
        if self.set_running_or_notify_cancel():
            if returned:
                self.set_result(outcome)
            else:
                self.set_exception(outcome)
        for file in (result, self._call):
            with suppress(OSError):  # it is gone, or stays
                file.unlink()


class Executor(concurrent.futures.Executor):
    """Each call is a trial of its own. A call that raises an exception is a failed trial."""

    def __init__(self, pool: Pool, **keys: Any) -> None:
        """`keys`: of each trial, as of `Pool.submit`."""
        self._pool, self._keys = pool, keys
        self._pending: List[TrialFuture] = []
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TrialFuture:
        """Raises TypeError where another process cannot call it, and PoolError."""
        if self._closed:
            raise RuntimeError("the executor is shut down")
        name = getattr(function, "__name__", type(function).__name__)
        try:
            if getattr(function, "__module__", None) == "__main__":
                raise pickle.PicklingError("it is of the program itself")
            call = pickle.dumps((function, args, kwargs))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"{name} cannot be called in a trial, which imports functions from modules: {error}"
            ) from error
        name = f"{name}-{secrets.token_hex(4)}"
        path = self._pool.folder / "calls" / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(pickle.dumps((sys.path, call)))
        command = (sys.executable, "-m", "gandiva._call", str(path))
        future = TrialFuture(self._pool.submit(*command, **{"name": name, **self._keys}), path)
        with self._lock:
            self._pending.append(future)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="gandiva-executor", daemon=True)
                self._thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        with self._lock:
            left = list(self._pending)
        for future in left if cancel_futures else ():
            future.cancel()
        if wait:
            concurrent.futures.wait(left)

    def _watch(self) -> None:
        try:
            self._pool.wait_until(self._settle)
        except Exception as error:
            with self._lock:
                left, self._pending, self._thread = self._pending, [], None
            for future in left:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _settle(self) -> bool:
        """Those that are over. Returns whether there are no others."""
        with self._lock:
            over = [future for future in self._pending if future.trial.done()]
            self._pending = [future for future in self._pending if future not in over]
            last = not self._pending
            if last:
                self._thread = None
        for future in over:
            try:
                future.settle()
            except OSError as error:
                future.set_exception(error)
        return last
