# SPDX-License-Identifier: GPL-2.0-or-later
"""Extras by role: a program runs with those of its role, and without them says in one line what to install.

`make roles` tries the same with pip, in an environment for each.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.entry import OF_COMMANDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ROLES = ("client", "sim", "agent", "controller", "run", "cluster")
MODULES = {
    "clarabel": ("clarabel",),
    "docker": ("docker",),
    "highspy": ("highspy",),
    "nvidia-ml-py": ("pynvml",),
    "numpy": ("numpy",),
    "paramiko": ("paramiko",),
    "prometheus-client": ("prometheus_client",),
    "pydantic": ("pydantic", "pydantic_core"),
    "rich": ("rich",),
    "scipy": ("scipy",),
    "tomli": ("tomli",),
}
ALL_MODULES = {module for modules in MODULES.values() for module in modules}


def modules(role: str) -> set[str]:
    """What its extra brings."""
    found: set[str] = set()
    for requirement in EXTRAS[role]:
        same = re.fullmatch(r"gandiva-slurm\[([a-z,]+)\]", requirement)
        if same is not None:
            found |= {module for other in same[1].split(",") for module in modules(other)}
        else:
            match = re.match(r"[\w-]+", requirement)
            assert match is not None
            found |= set(MODULES[match[0]])
    return found


def run(program: str, *words: str, has: set[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """An entry point of pyproject.toml where only the modules `has` are installed."""
    module, function = PROJECT["scripts"][program].split(":")
    hidden = sorted(ALL_MODULES - has)
    sacct = cwd / "sacct"
    sacct.write_text("#!/bin/sh\nprintf 'JobID%s\\n' '" + "\x1fUser" * 13 + "'\n")
    sacct.chmod(0o755)
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden!r}))\n"
        f"sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = {program!r}\n"
        f"from {module} import {function} as main\nsys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        input="",
        env={"PATH": f"{cwd}:/usr/bin:/bin", "GANDIVA_CONFIG": str(cwd / "gandiva.toml")},
    )


SIMULATE = ("--trace", "jobs.csv", "--trace-format", "native", "--cluster", "a100:4", "--policy", "fifo")
COMMANDS = {
    "run": ("trials.toml",),
    "report": ("--url", "http://127.0.0.1:1"),
    "top": ("--url", "http://127.0.0.1:1", "--once"),
    "explain": ("--url", "http://127.0.0.1:1", "12"),
    "status": ("--url", "http://127.0.0.1:1"),
    "config": ("show",),
    "check": ("--deadline", "1"),
    "daemon": ("-D",),
    "journal": ("vacuum",),
    "rates": ("list",),
    "simulate": SIMULATE,
    "replay": ("decision.json",),
    "trace": ("sacct", "-S", "now"),
    "checkpoint": ("list", "nothing"),
    "allocate": ("--policy", "gavel-las", "--problem", "problem.json"),
    "trials": ("list", "--url", "http://127.0.0.1:1"),
}


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == set(OF_COMMANDS)


@pytest.mark.parametrize("command", [command for command, extra in OF_COMMANDS.items() if extra])
def test_a_command_without_its_extra_is_one_line(command: str, tmp_path: Path) -> None:
    done = run("gandiva", command, *COMMANDS[command], has=set(), cwd=tmp_path)
    extra = OF_COMMANDS[command]
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(
        rf"gandiva {command} needs the extra \"{extra}\": pip install 'gandiva-slurm\[{extra}\]' "
        r"\(this Python has no module \w+\)\n",
        done.stderr,
    ), done.stderr
    assert run("gandiva", command, "--help", has=set(), cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(("program", "extra"), [("gandiva-agent", "agent"), ("gandiva-cluster", "cluster")])
def test_a_program_without_its_extra_is_one_line(program: str, extra: str, tmp_path: Path) -> None:
    done = run(program, "n1", has=set(), cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f'{program} needs the extra "{extra}": pip install \'gandiva-slurm[')
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", OF_COMMANDS)
def test_a_command_needs_no_more_than_its_extra(command: str, tmp_path: Path) -> None:
    """It gets as far as its own message: no controller, no file."""
    extra = OF_COMMANDS[command]
    has = modules(extra) if extra else set()
    done = run("gandiva", command, *COMMANDS[command], has=has, cwd=tmp_path)
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown and "needs the extra" not in shown, shown
    assert shown


def test_all_modules_of_a_role_load_with_its_extra() -> None:
    """Those that commands load later, too."""
    loaded = {
        "client": "controller.reports.top.screen controller.reports.html.page controller.checks.gather",
        "sim": "controller.simulation.driver controller.simulation.plots controller.simulation.replay "
        "controller.policies.assemble controller.simulation.snapshot_file controller.solver.solve",
        "agent": "controller.agent.main checkpointing.driver_process",
        "controller": "controller.daemon.daemon controller.nodes.ssh controller.cluster.pyslurm",
        "run": "controller.run.supervisor controller.agent.main checkpointing.driver_process",
        "cluster": "container.cli",
    }
    assert set(loaded) == set(ROLES)
    for role, names in loaded.items():
        hidden = sorted(ALL_MODULES - modules(role))
        code = f"import sys; sys.modules.update(dict.fromkeys({hidden!r}))\n"
        code += "\n".join(f"import {name}" for name in names.split())
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, f"{role}: {done.stderr}"


def test_the_job_side_needs_nothing() -> None:
    code = "import sys; import gandiva; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    assert PROJECT["dependencies"] == []
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and not any(f"'{module}'" in done.stdout for module in ALL_MODULES)


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """A broken installation: the traceback says more."""
    code = "import sys; sys.modules['controller.simulation.driver'] = None\n"
    code += f"from controller.cli.main import main; main(['simulate', *{SIMULATE!r}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "ModuleNotFoundError" in done.stderr and "needs the extra" not in done.stderr


def test_gandiva_cluster_without_its_sources_says_so(tmp_path: Path) -> None:
    """What a wheel brings: the program, and no folder `container`."""
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert not any("container".startswith(pattern.rstrip("*")) for pattern in include["include"])
    (tmp_path / "controller" / "cli").mkdir(parents=True)
    for name in ("__init__.py", "cli/__init__.py", "cli/entry.py"):
        (tmp_path / "controller" / name).write_text((ROOT / "controller" / name).read_text())
    code = "import sys; from controller.cli.entry import cluster; sys.exit(cluster())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("gandiva-cluster runs from a checkout")
