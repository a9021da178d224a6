# SPDX-License-Identifier: GPL-2.0-or-later
"""The entry points of `gandiva-agent` and `gandiva-cluster`: a missing extra is one line, as in `gandiva`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from controller.cli.extras import missing


def agent() -> int:
    """`gandiva-agent`."""
    return _run("gandiva-agent", "agent", "controller.agent.main", "pynvml")


def cluster() -> int:
    """`gandiva-cluster`, which runs from a checkout: images are made from the sources there."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "container" / "cli.py").is_file():
        print(
            "gandiva-cluster runs from a checkout of the sources: in one, pip install -e '.[cluster]'",
            file=sys.stderr,
        )
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
