# SPDX-License-Identifier: GPL-2.0-or-later
"""The first process of a trial: `python -I -S first.py FILE COMMAND…` runs the command and writes its exit
status into FILE; `-`: nowhere.

It adopts all that the trial starts, however that detaches itself (setsid, a double fork, an empty
environment): what a process of the trial is, is known from its ancestors. When the command has ended, what is
left is ended too, as Slurm does with a step.

A start takes 8 ms: `os`, `signal` and `ctypes` would take 11 more, most of it for modules that they import.
"""

import _ctypes
import _signal as signal  # type: ignore[import-not-found]
import posix as os
import sys
import time

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL for what outlives the command."""
NOT_FOUND, NOT_RUN = 127, 126
NOWHERE = "-"
"""In place of the file: srun tells the status of a step's task."""
_SET_CHILD_SUBREAPER = 36  # prctl(2)
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_DEFAULT = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
"""What Python ignores, or nohup, or a shell for what it runs in the background, the command does not."""


def main() -> int:
    """The exit status of the command, as a shell tells it."""
    exit_file, *command = sys.argv[1:]
    try:
        _put(exit_file, b"    \n")  # a disk that is full at the end has room for the status
    except OSError as error:
        _say(f"cannot write {exit_file}: {error.strerror}")
    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    if _ctypes.call_function(prctl, (_SET_CHILD_SUBREAPER, 1, 0, 0, 0)):
        _say("prctl(PR_SET_CHILD_SUBREAPER) is refused here")
        return _write(exit_file, NOT_RUN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # a signal at this moment waits for the handlers
    try:
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=[], setsigdef=_DEFAULT)
    except OSError as error:
        _say(f"cannot run {command[0]}: {error.strerror}")
        return _write(exit_file, NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUN)
    for each in _PASSED_ON:
        signal.signal(each, lambda number, _frame: _send(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while (ended := os.wait())[0] != child:
        pass  # one that it has adopted
    for each in _PASSED_ON:
        signal.signal(each, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(ended[1])
    _end_rest(ask=code != -signal.SIGTERM)
    return _write(exit_file, code if code >= 0 else 128 - code)


def _end_rest(*, ask: bool) -> None:
    """`ask`: by a SIGTERM. Where one has ended the command, the rest has had it too, and may be saving."""
    until = time.monotonic() + GRACE_SECONDS
    asked: set[int] = set()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _children():
            if time.monotonic() > until:
                _send(pid, signal.SIGKILL)
            elif ask and pid not in asked:
                asked.add(pid)
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)
        time.sleep(0.02)


def _children() -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                parent = file.read().rpartition(b")")[2].split()[1]  # its name may have any bytes
        except OSError:
            continue
        if int(parent) == os.getpid():
            found.append(int(name))
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # sudo's are not ours
        return


def _say(text: str) -> None:
    try:
        print(f"gandiva: {text}", file=sys.stderr, flush=True)
    except OSError:
        return


def _write(exit_file: str, code: int) -> int:
    if exit_file == NOWHERE:
        return code
    try:
        _put(exit_file, b"%-4d\n" % code)
        os.replace(f"{exit_file}.new", exit_file)
    except OSError as error:
        _say(f"exit status {code} cannot be written to {exit_file}: {error.strerror}")
    return code


def _put(exit_file: str, text: bytes) -> None:
    """Always the same number of bytes, over those that are there."""
    if exit_file == NOWHERE:
        return
    file = os.open(f"{exit_file}.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(file, text)
    finally:
        os.close(file)


if __name__ == "__main__":
    os._exit(main())
