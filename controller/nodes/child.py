# SPDX-License-Identifier: GPL-2.0-or-later
"""Agents without SSH: child processes of our user, or of a program that brings them elsewhere."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from controller.nodes.connection import Channel, TransportError

FAREWELL_SECONDS = 1.0


class ChildTransport:
    """Starts agents. Each is in a session of its own: a Ctrl-C in our terminal is not meant for it."""

    def __init__(
        self,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        log: Path | None = None,
        before: Callable[[str], Sequence[str]] = lambda _node: (),
    ) -> None:
        """`arguments` for the agent, before the node name; `environ` instead of ours; `log`: the agents'
        standard error is appended to it, and goes where ours does without one; `before`: what goes before
        the command for a node, such as srun."""
        self._arguments = tuple(arguments)
        self._environ = dict(os.environ if environ is None else environ)
        self._log, self._before = log, before

    def connect(self, node: str, address: str) -> Channel:
        """The address does not matter. Raises TransportError."""
        agent = (sys.executable, "-m", "controller.agent.main", *self._arguments, node)
        command = [*self._before(node), *agent]
        root = str(Path(__file__).resolve().parents[2])
        environ = {key: value for key, value in self._environ.items() if key != "SSH_ORIGINAL_COMMAND"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
        try:
            with contextlib.ExitStack() as stack:
                log = None if self._log is None else stack.enter_context(self._log.open("ab"))
                return _ProcessChannel(command, environ, log)
        except OSError as error:
            raise TransportError(f"cannot start {command[0]}: {error}") from error


class _ProcessChannel:
    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: IO[bytes] | None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environ),
            cwd="/",
            start_new_session=True,
        )
        self.pid = self._process.pid

    def read(self) -> bytes:
        assert self._process.stdout is not None
        try:
            return os.read(self._process.stdout.fileno(), 1 << 16)
        except (OSError, ValueError) as error:
            raise TransportError(str(error)) from error

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise TransportError(str(error)) from error

    def close(self) -> None:
        # The agent ends when it sees this; its end ends the read().
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def farewell(self) -> str:
        try:
            return f"exit status {self._process.wait(timeout=FAREWELL_SECONDS)}"
        except subprocess.TimeoutExpired:
            return "it is still finishing"
