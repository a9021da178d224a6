# SPDX-License-Identifier: GPL-2.0-or-later
"""A comparison with the Python that our packages run on: in the mini cluster's image.

    python -m benchmarks.peers.in_image [--release RELEASE] tiresias|blox [OPTIONS OF THE COMPARISON]

How quick ours is depends on how Python was built, and the one of a developer's `.venv` may be any. So the
image is made where it is missing (`gandiva-cluster build`), and the comparison runs in a container of it,
theirs beside ours, with the clones, references and Pythons that it is given here, each at the path that it
has here.

The container has no network, no privileges, and nothing of this machine that it could write to: ours and
the clone are copied into its memory, where their code is compiled as it is where they are installed. It is
removed at the end and when we are interrupted; should we be killed, it ends by itself within two hours, or
with `gandiva-cluster clean`.

The status is that of the comparison, 69 where no container can be had (which is said).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker.errors
from docker.types import Mount

from benchmarks.peers import blox, tiresias
from benchmarks.peers.measure import ROOT
from container import engine, images
from container.errors import MiniClusterError
from container.execute import execute

NO_CONTAINER = os.EX_UNAVAILABLE
LIMIT_SECONDS = 2 * 3600
"""Of the whole comparison."""
PYTHON = "/opt/gandiva/venv/bin/python"
"""The image's, with what our package depends on."""
OURS, CLONE = "/comparison/ours", "/comparison/clone"
"""Where the container has what it copies."""
COPY = "/tmp/ours"
"""Ours, where it runs; theirs has the clone's path."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_THE_IMAGE = tuple(map(Path, ("/usr/bin", "/usr/lib", "/etc", "/opt/gandiva/venv", "/tmp", "/proc")))


@dataclass(frozen=True, slots=True)
class Peer:
    """One comparison, told apart by its option names."""

    module: Any
    clone: str
    """Its option, and the field of the parsed options."""
    python: str


PEERS = {"tiresias": Peer(tiresias, "tiresias", "python2"), "blox": Peer(blox, "blox", "python")}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of this machine, and what of the machine it needs."""

    executable: str
    paths: tuple[Path, ...]


_WHERE = """
import json, sys, sysconfig
base = getattr(sys, "real_prefix", getattr(sys, "base_prefix", sys.prefix))
sys.stdout.write(json.dumps([sys.executable, sys.prefix, base, sysconfig.get_path("stdlib")]))
"""
"""Also for Python 2."""


def interpreter(python: str) -> Interpreter:
    """Where it lives: its prefix, and the one it was installed with where it is a virtual environment.

    Raises:
        OSError: it does not run.
    """
    try:
        answer = subprocess.run(
            [python, "-c", _WHERE], capture_output=True, check=True, text=True, timeout=60
        ).stdout
        executable, prefix, base, library = json.loads(answer)
    except (subprocess.SubprocessError, ValueError) as error:
        raise OSError(f"no answer to `{python} -c …`") from error
    paths: set[Path] = set()
    for name in (prefix, base):
        # A link, too, under both names: the one may be asked for, the other written into a file.
        for folder in (Path(name), Path(name).resolve()):
            if any(path.is_relative_to(folder) for path in _OF_THE_IMAGE):
                # The system's: the image has a system of its own in that place.
                paths |= {Path(executable).resolve(), Path(library).resolve()}
            else:
                paths.add(folder)
    if not any(Path(executable).is_relative_to(path) for path in paths):
        executable = str(Path(executable).resolve())
    return Interpreter(executable, tuple(sorted(paths)))


def script(module: str, clone: Path, python: Interpreter, words: list[str]) -> str:
    """What runs in the container. Compiled with their Python, theirs starts as after its first run here."""
    inside = [path.relative_to(clone) for path in python.paths if path.is_relative_to(clone)]
    skipped = shlex.join(f"--exclude={path}" for path in (".git", *inside))
    place = shlex.quote(str(clone))
    return f"""
set -euo pipefail
shopt -s dotglob
unpack() {{ mkdir -p "$1"; tar -C "$1" -x --no-same-owner; }}
cd {OURS}
tar -c --exclude=__pycache__ benchmarks controller gandiva | unpack {COPY}
cd {CLONE}
tar -c --exclude=__pycache__ --anchored {skipped} -- * | unpack {place}
{shlex.quote(python.executable)} -m compileall -q {place} > /dev/null 2>&1 || true
cd {COPY}
exec {PYTHON} -m {module} {shlex.join(words)}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and what of this machine it reads."""

    script: str
    clone: Path
    read: tuple[Path, ...]


def plan(peer: Peer, options: list[str], args: argparse.Namespace) -> Plan:
    """Raises OSError where their Python does not run."""
    python = interpreter(getattr(args, peer.python))
    clone, references = getattr(args, peer.clone).resolve(), args.refs.resolve()
    # The last word counts: these stand in for what was given, also by the environment.
    words = [*options, f"--{peer.clone}", str(clone), f"--{peer.python}", python.executable]
    words += ["--refs", str(references)]
    return Plan(script(peer.module.__name__, clone, python, words), clone, (references, *python.paths))


def container_options(plan: Plan) -> dict[str, Any]:
    """Of the container, for the Docker SDK."""
    mounts = {OURS: ROOT, CLONE: plan.clone, **{str(path): path for path in plan.read}}
    return {
        "name": f"gandiva-benchmark-{secrets.token_hex(4)}",
        "labels": {images.LABEL: "benchmark"},  # `gandiva-cluster clean` removes what has it.
        "mounts": [
            Mount(target, str(path.resolve()), type="bind", read_only=True) for target, path in mounts.items()
        ],
        "tmpfs": {"/tmp": "", str(plan.clone): ""},
        "environment": {"HOME": "/tmp"},
        # Whoever may read the clone here may read it there: it is the same user.
        "user": f"{os.geteuid()}:{os.getegid()}",
        "group_add": [str(group) for group in os.getgroups()],
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "auto_remove": True,
    }


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """What ends us waits until the end of the block. Handlers, and no signal mask: a mask belongs to one
    thread, and a signal to the process that another thread takes still runs its handler in this one."""
    waiting: list[int] = []

    def note(number: int, _frame: object) -> None:
        waiting.append(number)

    before = {number: signal.signal(number, note) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for arrived in waiting:
            signal.raise_signal(arrived)


@contextlib.contextmanager
def started(client: Any, image: str, options: dict[str, Any]) -> Iterator[str]:
    """The id of a container that does nothing by itself, and is gone after the block."""
    with held_back():
        container = client.containers.create(image, ["sleep", str(LIMIT_SECONDS + 60)], **options)
        try:
            container.start()
        except BaseException:
            remove(container)
            raise
    try:
        yield container.id
    finally:
        with held_back():
            remove(container)


def remove(container: Any) -> None:
    """The engine may have done so, or be at it."""
    try:
        container.remove(force=True)
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):
            raise


def show(text: str) -> None:
    """As it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def run(plan: Plan, release: str) -> int:
    """Its status; NO_CONTAINER, with a line that says why, when there is none to run it in. Raises
    MiniClusterError, DockerException or OSError when the container does not go on."""
    with contextlib.ExitStack() as stack:
        try:
            client = engine.connect(report=report)
            image = images.Images(client, release, report).ensure()
            options = container_options(plan)
            container = stack.enter_context(started(client, image, options))
        except (MiniClusterError, docker.errors.DockerException, OSError) as error:
            report(f"no container to compare in: {error}")
            return NO_CONTAINER
        report(f"in a container of {image}")
        words = ["bash", "-c", plan.script]
        return execute(
            client,
            container,
            words,
            host="the container",
            user=options["user"],
            timeout_seconds=LIMIT_SECONDS,
            check=False,
            on_output=show,
        ).exit_code


def report(line: str) -> None:
    """One line of what goes on; the table has standard output for itself."""
    print(line, file=sys.stderr, flush=True)


def interrupted(number: int, _frame: object) -> None:
    """Ends us by an exception, so that the container is removed."""
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Run it; the status is that of the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", default="forky", help="Debian release of the image (default: forky)")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="see `python -m benchmarks.peers.tiresias -h`"
    )
    chosen = parser.parse_args(arguments)
    peer = PEERS[chosen.peer]
    args = peer.module.parsed(chosen.options)
    # Asked here first: without a clone no image need be made.
    problem = peer.module.missing(args)
    if problem:
        print(f"{peer.module.NOT_COMPARED}: {problem}")
        return 0
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # (nohup)
            signal.signal(number, interrupted)
    try:
        return run(plan(peer, chosen.options, args), chosen.release)
    except (MiniClusterError, docker.errors.DockerException, OSError) as error:
        report(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
