# SPDX-License-Identifier: MIT
"""GPUs of one's own for a program that has many trainings: a pool, to which it submits trials.

    from gandiva import Pool

    with Pool("lr") as pool:
        trials = [pool.submit("python", "train.py", f"--lr={lr}", name=f"lr={lr}") for lr in (0.1, 0.01)]
        for trial in pool.as_completed(trials):
            print(trial.name, trial.state, trial.last("accuracy"))

The trials take turns on the GPUs of this machine, or of the allocation that this program runs in: they are
those of `gandiva run`, which the pool starts (pip install 'gandiva-slurm[run]'). They live on when this
program ends, and whoever submits a trial of the same name and command again has the same trial. Linux only;
standard library only.
"""

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from ._report_file import parse

_LEAST_SLEEP_SECONDS, _MOST_SLEEP_SECONDS = 0.001, 0.05
_LOOK_SECONDS = 0.5
_OTHER_SUPERVISOR = 3
"""Exit status of `gandiva run`."""


class PoolError(Exception):
    """A trial is refused, or nothing runs the trials; the text says why."""


class Trial:
    """One trial of a study, as its files say it is now."""

    def __init__(self, pool: "Pool", number: int) -> None:
        self.number = number
        self._pool, self._folder = pool, pool.folder / "trials"
        self._seen: Tuple[int, ...] = ()
        self._known: Dict[str, Any] = {}
        self._reports: List[Dict[str, float]] = []
        self._read_bytes = 0
        self._look()

    def __repr__(self) -> str:
        return f"<Trial {self.number} {self.name}: {self.state}>"

    @property
    def name(self) -> str:
        return str(self._look()["spec"]["name"])

    @property
    def state(self) -> str:
        """PENDING, CONFIGURING, RUNNING, SUSPENDED, COMPLETING, and at its end COMPLETED, FAILED or
        CANCELLED."""
        return str(self._look().get("state_name", "PENDING"))

    def done(self) -> bool:
        return bool(self._look().get("state") == "ENDED")

    @property
    def exit_code(self) -> Optional[int]:
        """None until it is done; 128 and the signal's number where a signal has ended it."""
        return int(self._known.get("exit_code", 0)) if self.done() else None

    @property
    def reason(self) -> str:
        """Why it was cancelled, or why it failed besides its exit status."""
        return str(self._look().get("reason", ""))

    @property
    def output(self) -> Path:
        """The file with what it prints."""
        return self._folder / f"{self.number}.out"

    @property
    def reports(self) -> List[Dict[str, float]]:
        """What it has said by `session.report()`, by `step`."""
        with suppress(FileNotFoundError), (self._folder / f"{self.number}.report").open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_bytes += len(whole)
            parse(whole, self._reports)
        return list(self._reports)

    def curve(self, name: str) -> List[Tuple[float, float]]:
        """What it has reported under a name: (step, number), as `gandiva.curves` takes it."""
        return [(said["step"], said[name]) for said in self.reports if name in said]

    def last(self, name: str) -> Optional[float]:
        """What it has reported last under a name; None: nothing."""
        return self.curve(name)[-1][1] if self.curve(name) else None

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Until it is done, or for so many seconds. Returns whether it is. Raises PoolError."""
        return self._pool.wait_until(self.done, timeout)

    def stop(self) -> None:
        """End it early: SIGTERM, and SIGKILL after 10 s. It is CANCELLED then."""
        self._pool.ask({"trial": self.number, "stop": True})

    def set_priority(self, priority: float) -> None:
        """From now on it has so many turns for each one of a trial with priority 1 (0.01 to 100)."""
        if not 0.01 <= priority <= 100:
            raise ValueError(f"priority {priority!r}: from 0.01 to 100")
        self._pool.ask({"trial": self.number, "priority": priority})

    def set_exclusive(self, exclusive: bool = True) -> None:
        """Whether it comes first among the trials."""
        self._pool.ask({"trial": self.number, "exclusive": exclusive})

    def _look(self) -> Dict[str, Any]:
        path = self._folder / f"{self.number}.json"
        found = path.stat()
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:  # it is renamed into place: always whole
            self._known, self._seen = json.loads(path.read_bytes()), seen
        return self._known


class Pool:
    """The GPUs of a study. Threads may share a pool."""

    def __init__(
        self,
        study: Union[str, "os.PathLike[str]"],
        *,
        file: Union[str, "os.PathLike[str]", None] = None,
        policy: Optional[str] = None,
        gpus: Union[str, Sequence[Union[int, str]], None] = None,
    ) -> None:
        """Join the `gandiva run` of a study on this host, or start one. Raises PoolError.

        `study`: its folder, which is made where it is not there. `file`: a study file, for `[policy]`, for
        `[trial]`, which holds for trials that are submitted too, and for trials of its own. `policy`, `gpus`
        (by index or UUID): as the options of `gandiva run`. All three count only where one is started.
        """
        self.folder = Path(study).absolute()
        self._command = ["run", "--open", "--study", str(self.folder)]
        self._command += [str(Path(file).absolute())] if file is not None else []
        self._command += ["--policy", policy] if policy is not None else []
        if gpus is not None:
            self._command += ["--gpus", gpus if isinstance(gpus, str) else ",".join(map(str, gpus))]
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._closed = False
        self._lock = threading.Lock()
        self._trials: List[Trial] = []
        self.keep()

    @property
    def trials(self) -> List[Trial]:
        """All that were submitted through this pool."""
        return list(self._trials)

    def submit(
        self,
        *command: Union[str, "os.PathLike[str]"],
        name: Optional[str] = None,
        gpus: Union[int, str, None] = None,
        directory: Union[str, "os.PathLike[str]", None] = None,
        **keys: Any,
    ) -> Trial:
        """A trial that runs this command; no shell sees it. Raises PoolError where it can never run.

        `name`: of this trial alone; the trial that has it already is returned, where its command is the same.
        `gpus`: a number, or a range such as "1-4"; default: 1. `directory`: default: the current one. `keys`:
        others of `[trial]` in study files, such as `memory="16GiB"`, `priority=2`, `environment={…}`.
        """
        if self._closed:
            raise PoolError("the pool is closed")
        fixed = {
            "name": name or f"trial-{secrets.token_hex(4)}",
            "command": [os.fspath(word) for word in command],
            "directory": os.path.abspath(directory or "."),  # noqa: PTH100
            **({} if gpus is None else {"gpus": gpus}),
        }
        request = self.ask({"submit": {**keys, **fixed}})
        answer = self.folder / "answers" / request
        known: Dict[str, Any] = {}

        def answered() -> bool:
            waits = (self.folder / "asked" / request).exists()
            with suppress(FileNotFoundError):
                known.update(json.loads(answer.read_bytes()))
            if not (known or waits):
                raise PoolError(f"the request was not understood: {self.folder / 'log'} says why")
            return bool(known)

        self.wait_until(answered)
        answer.unlink()
        if "refused" in known:
            raise PoolError(known["refused"])
        trial = Trial(self, known["trial"])
        self._trials.append(trial)
        return trial

    def as_completed(
        self, trials: Optional[Iterable[Trial]] = None, timeout: Optional[float] = None
    ) -> Iterator[Trial]:
        """Trials as they end, by default all that were submitted through this pool. Raises TimeoutError when
        so many seconds have passed, and PoolError."""
        left = self.trials if trials is None else list(trials)
        until = None if timeout is None else time.monotonic() + timeout

        def some_done() -> bool:
            return any(trial.done() for trial in left)

        while left:
            rest = None if until is None else until - time.monotonic()
            if not self.wait_until(some_done, rest):
                raise TimeoutError(f"{len(left)} trials are not done")
            ended = [trial for trial in left if trial.done()]
            left[:] = [trial for trial in left if trial not in ended]
            yield from ended

    def store(self, name: str) -> Path:
        """The checkpoint store of the trial of this name, for its command: `{store}` of study files."""
        return self.folder / "checkpoints" / name

    def close(self, wait: bool = True) -> None:
        """Submit no more. `wait`: until all trials are over; else `gandiva run` goes on until they are.
        Raises PoolError."""
        if wait and not self._closed:
            for _ in self.as_completed():
                pass
        self._closed = True
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            if wait:
                self._process.wait()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """After an exception trials go on to their end, and nobody waits for them. (Ctrl-C in a terminal
        reaches `gandiva run` too, which saves the trials and stops them.)"""
        self.close(wait=kind is None)

    # For the classes here.

    def ask(self, said: Dict[str, Any]) -> str:
        """Have `gandiva run` do something (docs/interfaces.md); the name of the request."""
        folder, request = self.folder / "asked", f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
        folder.mkdir(mode=0o700, exist_ok=True)
        new = folder / f".{request}.new"
        new.touch(mode=0o600)
        new.write_text(json.dumps(said) + "\n")
        new.rename(folder / request)
        pid = self._note().get("pid", 0)
        with suppress(OSError):
            if pid > 0:  # it looks at once; a process that has its number by now does not mind this signal
                os.kill(pid, signal.SIGCHLD)
        return request

    def wait_until(self, condition: Callable[[], bool], timeout: Optional[float] = None) -> bool:
        """Returns whether it holds, at the latest after so many seconds. Raises PoolError."""
        until = None if timeout is None else time.monotonic() + timeout
        sleep_seconds, began = _LEAST_SLEEP_SECONDS, time.monotonic()
        look_at = began + _LOOK_SECONDS
        while not condition():
            now = time.monotonic()
            if until is not None and now >= until:
                return False
            if now >= look_at:
                self.keep()
                look_at = time.monotonic() + _LOOK_SECONDS
            # To look at many trials takes its time.
            longest = max(_MOST_SLEEP_SECONDS, 20 * (now - began))
            sleep_seconds = min(2 * sleep_seconds, longest)
            time.sleep(sleep_seconds if until is None else max(0.0, min(sleep_seconds, until - now)))
            began = time.monotonic()
        return True

    def keep(self) -> None:
        """See that a `gandiva run` serves the study: after `kill -9` another goes on. Raises PoolError."""
        with self._lock:
            code = None if self._process is None else self._process.poll()
            if code is not None and code >= 0:
                where = self.folder / "supervisor.out"
                raise PoolError(
                    f"'gandiva run' has ended ({where} says why): a new pool goes on with the trials"
                )
            if (self._process is None or code is not None) and not self._served():
                self._start()

    def _note(self) -> Dict[str, Any]:
        """Who serves the study, or has before it was killed."""
        with suppress(OSError, ValueError):
            found: Dict[str, Any] = json.loads((self.folder / "supervisor.json").read_bytes())
            return found
        return {}

    def _served(self) -> bool:
        note = self._note()
        if note.get("host", os.uname().nodename) != os.uname().nodename:
            where = self.folder / "supervisor.json"
            raise PoolError(f"'gandiva run' of the study is on {note['host']}: remove {where} if it is not")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_LOOK_SECONDS)
            try:
                client.connect(note.get("socket", "/nonexistent"))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except OSError:  # it is stopped, or busy
                return True
        return True

    def _start(self) -> None:
        """Another `gandiva run`, until it serves the study. It ends when its standard input does, and that is
        when this process does, at the latest."""
        if importlib.util.find_spec("controller") is None:
            raise PoolError(f"{sys.executable} has no 'gandiva run': pip install 'gandiva-slurm[run]'")
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "controller.cli.main", *self._command]
        log = self.folder / "supervisor.out"
        with log.open("ab") as out:
            begin = out.tell()
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None and self._note().get("pid") != process.pid:
            time.sleep(_MOST_SLEEP_SECONDS / 5)
        if process.returncode is None:
            self._process = process
            return
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode < 0 or process.returncode == _OTHER_SUPERVISOR:
            self._process = None  # killed, or another one begins or ends: look again
        else:
            with log.open("rb") as said:
                said.seek(begin)
                why = said.read().decode("utf-8", "replace").strip()[-2000:]
            raise PoolError(f"'gandiva run' does not start: {why or f'exit status {process.returncode}'}")
