# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemons of a mini cluster, one by one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Final, Literal

from container.execute import Completed
from container.spec import Role

Name = Literal["munge", "sshd", "mariadb", "slurmdbd", "slurmctld", "slurmd", "gandiva"]

SCRIPT: Final = "/usr/lib/gandiva-minicluster/service.sh"
TIMEOUT_SECONDS: Final = 60.0

DAEMONS: Final[Mapping[Role, tuple[Name, ...]]] = {
    "login": (),
    "ctl": ("slurmctld",),
    "db": ("mariadb", "slurmdbd"),
    "node": ("sshd", "slurmd"),
}
"""What a host runs besides munge, in the order of starting."""

Run = Callable[[list[str], bool], Completed]


class Service:
    """A daemon on one host. Every call returns when what it asks for has come about."""

    def __init__(self, run: Run, name: Name, nodes: tuple[str, ...] = ()) -> None:
        """Args:
        run: runs a command on the host; with False it does not raise for a status other than 0.
        name: of the daemon.
        nodes: for slurmd: of which nodes; none: all of the host.
        """
        self._run = run
        self._name = name
        self._nodes = nodes

    def start(self) -> None:
        """Start it; nothing happens where it runs."""
        self._run([SCRIPT, "start", self._name, *self._nodes], True)

    def stop(self) -> None:
        """End it as its administrator would (SIGTERM) and wait until it is gone."""
        self._run([SCRIPT, "stop", self._name, *self._nodes], True)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Send it a signal; SIGKILL and SIGTERM also wait until it is gone."""
        self._run([SCRIPT, "kill", self._name, str(int(signal_number)), *self._nodes], True)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def running(self) -> bool:
        """Whether its process is there (all of them, where it means several)."""
        return self._run([SCRIPT, "running", self._name, *self._nodes], False).exit_code == 0
