# SPDX-License-Identifier: GPL-2.0-or-later
"""Each role has an extra of its own (`pyproject.toml`), which programs name where it is not installed.

Imports the standard library only: it must work where the dependencies are missing.
"""

from __future__ import annotations

PROJECT = "gandiva-slurm"
OF_COMMANDS = {
    **dict.fromkeys(("report", "top", "explain", "status", "config", "check"), "client"),
    **dict.fromkeys(("daemon", "journal"), "controller"),
    **dict.fromkeys(("simulate", "replay", "trace"), "sim"),
}
"""The extra that each command of `gandiva` needs, in the order of the help."""
_OURS = ("controller", "checkpointing", "gandiva", "container")


def missing(error: ModuleNotFoundError, program: str, extra: str) -> str:
    """The line for a user. Raises `error` again where the module is one of this project's own."""
    module = (error.name or "").partition(".")[0]
    if not module or module in _OURS:
        raise error
    return (
        f"{program} needs the extra \"{extra}\": pip install '{PROJECT}[{extra}]' "
        f"(this Python has no module {module})"
    )
