# SPDX-License-Identifier: GPL-2.0-or-later
"""The entry points of `gandiva-agent` and `gandiva-cluster`, and one line for an extra that is not installed.

Each role has an extra of its own (`pyproject.toml`). Imports the standard library only: it must work where
the dependencies are missing.
"""

import importlib
import sys
from pathlib import Path

PROJECT = "gandiva-slurm"
OF_COMMANDS = {
    "run": "run",
    **dict.fromkeys(("report", "trials", "top", "explain", "status", "config", "check"), "client"),
    **dict.fromkeys(("daemon", "journal", "rates"), "controller"),
    **dict.fromkeys(("simulate", "replay", "trace", "allocate"), "sim"),
    "checkpoint": "",
}
"""The extra that each command of `gandiva` needs, or none, in the order of the help."""
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


def agent() -> int:
    """`gandiva-agent`."""
    return _run("gandiva-agent", "agent", "controller.agent.main", "pynvml")


def cluster() -> int:
    """`gandiva-cluster`, which runs from a checkout: images are made from the sources there."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "container" / "cli.py").is_file():
        text = "gandiva-cluster runs from a checkout of the sources: in one, pip install -e '.[cluster]'"
        print(text, file=sys.stderr)
        return 1
    sys.path.insert(0, str(checkout))
    return _run("gandiva-cluster", "cluster", "container.cli")


def _run(program: str, extra: str, module: str, *needed: str) -> int:
    """Run its `main`. `needed`: modules that it loads later, and whose absence is to be found now."""
    try:
        for name in needed:
            importlib.import_module(name)
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        print(missing(error, program, extra), file=sys.stderr)
        return 1
    return int(main())
