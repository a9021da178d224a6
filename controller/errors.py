# SPDX-License-Identifier: GPL-2.0-or-later
"""One base for every error this package raises on purpose.

A message says what failed, where, and what to do next; the class says how the caller may react.
"""


class GandivaError(Exception):
    """Base of all expected errors; the command line prints them without a traceback."""


class SettingsError(GandivaError):
    """The settings file is unusable; nothing was changed."""


class ClusterError(GandivaError):
    """Slurm did not do what was asked."""


class ClusterUnavailable(ClusterError):
    """Slurm did not answer in time, or answered that it cannot now. Worth trying again.

    The call may have taken effect all the same: look before acting on it.
    """


class ClusterRefused(ClusterError):
    """Slurm answered, and said no. Trying the same again is pointless until something changes."""


class UnknownJob(ClusterRefused):
    """Slurm does not know this job (any more)."""


class NodeError(GandivaError):
    """A node agent did not do what was asked.

    `kind` is one of the error kinds of the agent protocol, or `unreachable`.
    """

    def __init__(self, node: str, kind: str, message: str) -> None:
        super().__init__(f"node {node}: {message}")
        self.node = node
        self.kind = kind
        self.message = message


class NodeUnreachable(NodeError):
    """No answer from the agent: what its GPUs hold is unknown."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(node, "unreachable", message)


class NotLeading(GandivaError):
    """This controller must not act now; the message says who leads, or why it cannot tell."""


class JournalError(GandivaError):
    """The journal cannot be read or written."""
