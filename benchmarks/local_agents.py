# SPDX-License-Identifier: GPL-2.0-or-later
"""Agents on this host without SSH, for tests and measurements on the GPU node itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from controller.nodes.connection import Channel, TransportError


class LocalTransport:
    """Agents as child processes of ours."""

    def __init__(self, arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> None:
        """`arguments` for the agent, before the node name; `environ` instead of ours."""
        self._arguments = tuple(arguments)
        self._environ = dict(os.environ if environ is None else environ)

    def connect(self, node: str, address: str) -> Channel:
        """The address does not matter."""
        command = [sys.executable, "-m", "controller.agent.main", *self._arguments, node]
        root = str(Path(__file__).resolve().parents[1])
        environ = {key: value for key, value in self._environ.items() if key != "SSH_ORIGINAL_COMMAND"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH", ""))))
        try:
            return _ProcessChannel(command, environ)
        except OSError as error:
            raise TransportError(f"cannot start {command[0]}: {error}") from error


class _ProcessChannel:
    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
            return f"exit status {self._process.wait(timeout=1.0)}"
        except subprocess.TimeoutExpired:
            return "it is still finishing"
