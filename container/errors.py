# SPDX-License-Identifier: GPL-2.0-or-later
"""What can go wrong with a mini cluster."""

from __future__ import annotations


class MiniClusterError(Exception):
    """Base of all errors of this package; the message says what to do where that is known."""


class EngineError(MiniClusterError):
    """No Docker engine is there, and none could be installed or started."""


class ImageError(MiniClusterError):
    """A step of the image failed; the message ends with the tail of its output."""


class UpError(MiniClusterError):
    """A part of the cluster did not become healthy in time; the message has the tails of its logs."""


class CommandError(MiniClusterError):
    """A command in a container ended with another status than 0."""

    def __init__(self, host: str, command: str, exit_code: int, stdout: str, stderr: str) -> None:
        tail = (stderr.strip() or stdout.strip())[-2000:]
        super().__init__(f"{host}: {command!r} ended with status {exit_code}: {tail}")
        self.host = host
        self.command = command
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class DeadlineError(MiniClusterError):
    """Something in a container or the Docker engine did not answer in its time."""
