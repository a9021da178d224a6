# SPDX-License-Identifier: GPL-2.0-or-later
"""`make roles`: what pip installs for each role, tried in a virtual environment of its own.

One wheel is built; each environment gets it with one extra, in the versions of constraints.txt, and runs the
programs of its role. Those of other roles must say in one line which extra they need. pip is used as it is
configured: an index, a mirror or a folder of wheels.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("pyproject.toml", "README.md", "gandiva", "checkpointing", "controller", "container")
PIP_SECONDS: Final = 600
PROGRAM_SECONDS: Final = 180
COMMANDS: Final = {
    "client": ("status", "--url", "http://127.0.0.1:1"),
    "sim": (
        *("simulate", "--trace", "jobs.csv", "--trace-format", "native", "--cluster", "a100:4"),
        *("--compare", "fifo,gandiva,tiresias-las,tiresias-gittins"),
    ),
    "controller": ("journal", "verify"),
    "run": ("run", "trials.toml"),
}
"""One for each extra that the commands of `gandiva` need."""
REFUSAL: Final = re.compile(
    r"[a-z -]+ needs the extra \"[a-z]+\": pip install 'gandiva-slurm\[[a-z]+\]' "
    r"\(this Python has no module \w+\)\n"
)
PORT: Final = 16822


class Failed(Exception):
    """A role does not work as it should; the text says which and how."""


class Environment:
    """A virtual environment in which one thing is installed: `wanted`, as pip takes it."""

    def __init__(self, folder: Path, *wanted: str) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        constraints = ("-c", str(ROOT / "constraints.txt"))
        pip("--python", str(folder / "bin/python"), "install", *constraints, *wanted)

    def run(self, program: str, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """A program of the environment, where no checkout is in sight."""
        return subprocess.run(
            [self.folder / "bin" / program, *words],
            capture_output=True,
            text=True,
            input=given,
            timeout=PROGRAM_SECONDS,
            cwd=self.folder,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
        )

    def expect(self, pattern: str, program: str, *words: str, given: str = "") -> None:
        """Output that matches somewhere, and no traceback. Raises Failed."""
        done = self.run(program, *words, given=given)
        shown = done.stdout + done.stderr
        if "Traceback" in shown or not re.search(pattern, shown):
            raise Failed(f"{program} {' '.join(words)}: expected {pattern!r}, got:\n{shown}")

    def refuses(self, program: str, *words: str) -> None:
        """One line that names the extra. Raises Failed."""
        done = self.run(program, *words)
        if done.returncode != 1 or done.stdout or not REFUSAL.fullmatch(done.stderr):
            raise Failed(f"{program} {' '.join(words)}: no clear line, but:\n{done.stdout}{done.stderr}")


def pip(*words: str) -> None:
    """Quietly. Raises Failed with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        timeout=PIP_SECONDS,
        cwd=ROOT,
    )
    if done.returncode:
        raise Failed(f"pip {' '.join(words)}:\n{done.stderr}")


def base(there: Environment) -> None:
    """What a user's job imports, and nothing else."""
    there.expect("^ok$", "python", "-c", "import gandiva; gandiva.attach; print('ok')")
    there.expect(
        "^None$", "python", "-c", "from importlib.util import find_spec; print(find_spec('container'))"
    )
    there.expect("usage: gandiva", "gandiva", "--help")
    there.refuses("gandiva-agent", "n1")
    there.expect("runs from a checkout", "gandiva-cluster", "status")
    for words in COMMANDS.values():
        there.refuses("gandiva", *words)


def client(there: Environment) -> None:
    """A login node."""
    for words in (("status",), ("report",), ("top", "--once"), ("explain", "12")):
        there.expect("cannot reach the Gandiva controller", "gandiva", *words, "--url", "http://127.0.0.1:1")
    there.expect("controller_host", "gandiva", "config", "sample")
    there.expect("slurmctld", "gandiva", "check", "--deadline", "2")
    there.refuses("gandiva", "daemon", "-D")
    there.refuses("gandiva-agent", "n1")


def sim(there: Environment) -> None:
    """A researcher's machine."""
    rows = "".join(f"{job},{job},1,{600 + job}\n" for job in range(300))
    (there.folder / "jobs.csv").write_text("job_id,submit_seconds,gpus,duration_seconds\n" + rows)
    there.expect(r"tiresias-gittins", "gandiva", *COMMANDS["sim"], "--html", "page.html")
    there.refuses("gandiva", "top", "--once", "--url", "http://127.0.0.1:1")
    there.refuses("gandiva", "daemon", "-D")


def agent(there: Environment) -> None:
    """A node with GPUs; here without a driver, which is the agent's to say, in its protocol."""
    hello = json.dumps({"id": 1, "verb": "hello", "deadline_seconds": 10}) + "\n"
    words = ("--run-dir", str(there.folder / "run"), "--gpustat-dir", "", "n1")
    there.expect(r'"id":1', "gandiva-agent", *words, given=hello)
    there.refuses("gandiva", "top", "--once", "--url", "http://127.0.0.1:1")


def controller(there: Environment) -> None:
    """Its daemon starts and answers; there is no Slurm here, and it says so."""
    settings = there.folder / "gandiva.toml"
    settings.write_text(
        f'[cluster]\nadapter = "command"\n[journal]\npath = "{there.folder}/journal"\n'
        f'[api]\nlisten = "127.0.0.1:{PORT}"\n[nodes]\nssh_key = "{there.folder}/key"\n'
    )
    with (
        (there.folder / "log").open("w+") as log,
        subprocess.Popen(
            [there.folder / "bin/gandiva", "daemon", "-D", "--config", settings], stderr=log, cwd=there.folder
        ) as daemon,
    ):
        try:
            answered = _answer(f"http://127.0.0.1:{PORT}/metrics", daemon)
        finally:
            daemon.terminate()
        log.seek(0)
        said = log.read()
    if not answered.startswith("# HELP") or "Traceback" in said:
        raise Failed(f"gandiva daemon: {answered!r}; its log:\n{said}")
    there.expect("cannot reach", "gandiva", "top", "--once", "--url", "http://127.0.0.1:1")
    there.refuses("gandiva-agent", "n1")


def own(there: Environment) -> None:
    """A user's own machine, here without GPUs: the agent starts, and says so."""
    (there.folder / "trials.toml").write_text("[[trials]]\ncommand = 'true'\n")
    there.expect("no GPU to use on", "gandiva", "run", "trials.toml")
    there.expect("is not a study", "gandiva", "top", "--once", "--study", "trials")
    there.expect('extra "sim"', "gandiva", "run", "trials.toml", "--policy", "gavel-las")
    there.refuses("gandiva", "daemon", "-D")


def cluster(there: Environment) -> None:
    """A checkout."""
    there.expect("usage: gandiva-cluster", "gandiva-cluster", "--help")


def _answer(url: str, daemon: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + PROGRAM_SECONDS
    while time.monotonic() < until and daemon.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return ""


ROLES: Final[dict[str, Callable[[Environment], None]]] = {
    "": base,
    "client": client,
    "sim": sim,
    "agent": agent,
    "controller": controller,
    "run": own,
    "cluster": cluster,
}


def main() -> int:
    """All of them; the exit status is 1 when one fails."""
    os.environ.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory(prefix="gandiva-roles-") as name:
        folder = Path(name)
        (folder / "sources").mkdir()
        try:
            for part in SOURCES:  # In the checkout itself a build would leave its own traces.
                copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
                copy(ROOT / part, folder / "sources" / part)
            pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(folder / "sources"))
            (wheel,) = folder.glob("*.whl")
            for extra, check in ROLES.items():
                began = time.monotonic()
                wanted = [f"gandiva-slurm[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)]
                if check is cluster:
                    wanted = ["-e", f"{folder / 'sources'}[{extra}]"]
                check(Environment(folder / (extra or "base"), *wanted))
                print(f"{extra or 'no extra'}: works ({time.monotonic() - began:.0f} s)", flush=True)
            # Its build needs Slurm's headers; here only what pip would install is asked for.
            pip("install", "--dry-run", "--no-deps", "pyslurm")
        except (Failed, subprocess.SubprocessError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
