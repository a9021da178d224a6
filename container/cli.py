# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva-cluster`: mini clusters from the command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import docker.errors
from pydantic import ValidationError
from rich.console import Console
from rich.status import Status
from rich.table import Table

from container import engine, images, packages
from container.cluster import CONTROLLER_SETTINGS, MiniCluster, clusters
from container.containers import HOST_LABEL, spec_of
from container.errors import MiniClusterError
from container.services import DAEMONS, SCRIPT, Name
from container.spec import ClusterSpec, Host, NodeGroup, load

_EPILOG: Final = """\
hosts:
  login      where users are: sbatch, squeue, gandiva report
  ctl        slurmctld and the Gandiva controller (user gandiva)
  db         slurmdbd and MariaDB
  n1, n2 …   slurmd, sshd and mock GPUs (gpuhost1 … where several nodes share a container)

users: root; alice, bob (account vision), carol (account speech); gandiva (Slurm operator).
/home is on /shared, the stand-in for a parallel file system, the same on every host.

examples:
  gandiva-cluster up                                 two nodes with four GPUs each, named dev
  gandiva-cluster up --nodes 64 --gpus 8 --per-container 16
  gandiva-cluster up --name hetero --spec my-cluster.toml
  gandiva-cluster sh login --user alice
  gandiva-cluster exec login --user alice -- sbatch --gres=gpu:2 --wrap hostname
  gandiva-cluster sync && gandiva-cluster controller restart    try changed sources, in seconds
  gandiva-cluster controller restart --settings my.toml         try other settings
  gandiva-cluster logs --output build/logs
  gandiva-cluster down; gandiva-cluster clean        the latter: images too, and a dockerd that we started
"""

_SERVICES: Final[tuple[Name, ...]] = get_args(Name)
_STDIN: Final = "/dev/stdin"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # argparse would take the options of the command behind -- for its own.
    cut = words.index("--") if "--" in words else len(words)
    args = _parser().parse_args(words[:cut])
    args.command = words[cut + 1 :]
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except (MiniClusterError, KeyError, ValidationError, docker.errors.DockerException, OSError) as error:
        message = error.args[0] if isinstance(error, KeyError) else error
        print(f"gandiva-cluster: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gandiva-cluster",
        description="A real Slurm cluster in Docker containers, with mock GPUs, to try Gandiva on.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.set_defaults(run=run)
        if name not in {"build", "deb", "clean"}:
            # A specification may have a name of its own.
            default = None if name == "up" else "dev"
            command.add_argument("--name", default=default, help="name of the mini cluster (default: dev)")
        return command

    up = add("up", _up, "make the images where needed, start a cluster and wait until it is healthy")
    _add_build_arguments(up)
    up.add_argument("--spec", type=Path, metavar="FILE", help="specification in TOML (container/spec.py)")
    up.add_argument("--nodes", type=int, metavar="N", help="number of GPU nodes (default: 2)")
    up.add_argument("--gpus", type=int, metavar="N", help="GPUs of a node (default: 4)")
    up.add_argument("--per-container", type=int, metavar="N", help="slurmd in one container (default: 1)")
    up.add_argument("--replace", action="store_true", help="take a cluster of this name down first")
    up.add_argument("--controller", action="store_true", help="start the Gandiva controller too")
    up.add_argument(
        "--from-packages", action="store_true", help="build Debian packages and install these on the hosts"
    )

    add("down", _down, "remove a cluster: its containers, network and volumes")
    add("status", _status, "show the clusters, their hosts, and what runs there")

    shell = add("sh", _shell, "open a shell on a host")
    shell.add_argument("host", metavar="HOST")
    shell.add_argument("--user", default="root", help="who (default: root)")

    execute = add("exec", _exec, "run a command on a host; its status is ours")
    execute.usage = "gandiva-cluster exec [--name NAME] [--user USER] [--timeout SECONDS] HOST -- COMMAND …"
    execute.add_argument("host", metavar="HOST")
    execute.add_argument("--user", default="root", help="who (default: root)")
    execute.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="deadline (600)")

    service = add("service", _service, "start, stop or kill a daemon")
    service.add_argument("action", choices=("start", "stop", "restart", "kill", "running"))
    service.add_argument("host", metavar="HOST")
    service.add_argument("service", choices=_SERVICES, metavar="SERVICE", help=", ".join(_SERVICES))

    controller = add("controller", _controller, "start or stop the Gandiva controller, or print its log")
    controller.add_argument("action", choices=("start", "stop", "restart", "kill", "running", "log"))
    controller.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="with start or restart: go on with this gandiva.toml (default: with the one that is there)",
    )

    sync = add("sync", _sync, "put the sources as they are now into a running cluster")
    sync.add_argument("--source", type=Path, default=images.REPOSITORY_ROOT, help="another checkout")

    logs = add("logs", _logs, "show the end of all logs, or copy them all")
    logs.add_argument("--output", type=Path, metavar="DIR", help="copy the logs and the configuration there")
    logs.add_argument("--lines", type=int, default=20, metavar="N", help="lines of each log (default: 20)")

    _add_build_arguments(add("build", _build, "make the images (and a Docker engine) where they are missing"))
    deb = add("deb", _deb, "build the Debian packages (build/deb/RELEASE) where they are out of date")
    _add_build_arguments(deb)
    deb.add_argument("--again", action="store_true", help="build them also where they are up to date")
    add("clean", _clean, "remove all clusters, all images, and end the dockerd that we started, if any")
    return parser


def _add_build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", help="Debian release (forky, the default: Slurm 26.05; trixie: 24.11)")
    parser.add_argument(
        "--source",
        type=Path,
        default=images.REPOSITORY_ROOT,
        metavar="DIR",
        help="sources of another checkout",
    )


_console = Console(highlight=False, soft_wrap=True)


def _say(line: str) -> None:
    _console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {line}")
    if _spinner is not None:
        _spinner.update(f"[bold]{line} …")


_spinner: Status | None = None
"""Shows that something is going on, where someone is looking at a terminal."""


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    global _spinner
    with _console.status("…") as _spinner:
        try:
            yield
        finally:
            _spinner = None


def _up(args: argparse.Namespace) -> int:
    spec = load(args.spec) if args.spec else ClusterSpec()
    group = spec.nodes[0]
    count = args.nodes or len(spec.node_names)
    if not args.spec:
        prefix = "n" if not args.per_container else "m"
        group = NodeGroup(
            names=f"{prefix}[1-{count}]",
            gpus=args.gpus or group.gpus,
            nodes_per_container=args.per_container or 1,
        )
    elif args.nodes or args.gpus or args.per_container:
        raise MiniClusterError("--nodes, --gpus and --per-container belong into the file that --spec names")
    spec = spec.model_copy(
        update={
            "name": args.name or spec.name,
            "release": args.release or spec.release,
            "install": "packages" if args.from_packages else spec.install,
            "nodes": spec.nodes if args.spec else (group,),
        }
    )
    cluster = MiniCluster(spec, _say)
    began = time.monotonic()
    with _progress():
        if args.replace:
            cluster.down()
        cluster.up(args.source)
        if args.controller:
            cluster.start_controller()
    _say(f"{len(spec.node_names)} nodes idle after {time.monotonic() - began:.1f} s")
    _show({spec.name: clusters(engine.connect(install=False))[spec.name]})
    return 0


def _down(args: argparse.Namespace) -> int:
    client = engine.connect(install=False)
    MiniCluster(_spec(client, args.name)).down()
    return 0


def _spec(client: object, name: str) -> ClusterSpec:
    """Of a cluster, also of a broken one."""
    containers = clusters(client).get(name)
    return spec_of(containers[0]) if containers else ClusterSpec(name=name)


def _status(args: argparse.Namespace) -> int:
    del args
    found = clusters(engine.connect(install=False))
    if not found:
        print("no mini cluster: start one with `gandiva-cluster up`")
    else:
        _show(found)
    return 0


def _show(found: Mapping[str, Sequence[Any]]) -> None:
    """The hosts of these clusters. `found`: containers by cluster."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("CLUSTER", "HOST", "CONTAINER", "SERVICES", "GPUS"):
        table.add_column(title)
    for name, containers in sorted(found.items()):
        cluster = MiniCluster.attach(name) if any(c.status == "running" for c in containers) else None
        spec = spec_of(containers[0])
        states = {c.labels[HOST_LABEL]: c.status for c in containers}
        for host in spec.hosts:
            state = states.get(host.name, "missing")
            services = _running_services(cluster, host) if cluster and state == "running" else ""
            gpus = f"{len(host.nodes)} x {host.group.gpus} {host.group.gpu_model}" if host.group else ""
            table.add_row(name, host.name, state, services, gpus)
    _console.print(table)


def _running_services(cluster: MiniCluster, host: Host) -> str:
    mine: tuple[Name, ...] = ("munge", *DAEMONS[host.role], *(("gandiva",) if host.role == "ctl" else ()))
    script = "; ".join(f"{SCRIPT} running {name} && echo {name} || echo '({name} down)'" for name in mine)
    return " ".join(cluster.exec(host.name, script, check=False).stdout.splitlines())


def _shell(args: argparse.Namespace) -> int:
    cluster = MiniCluster.attach(args.name)
    # The SDK has no terminal handling; the docker command does it well.
    return _docker(cluster, args, ["-it"], ["bash", "-l"])


def _docker(cluster: MiniCluster, args: argparse.Namespace, options: list[str], command: list[str]) -> int:
    if shutil.which("docker") is None:
        raise MiniClusterError("a shell needs the command docker: install docker-cli (or docker.io)")
    host = cluster.spec.host_of(args.host)
    ordinary = args.user in {user.name for user in cluster.spec.users}
    place = ["-w", f"/home/{args.user}"] if ordinary else []
    words = ["docker", "exec", *options, "-u", args.user, "-e", f"USER={args.user}", *place]
    words += [f"gandiva-{cluster.name}-{host.name}", *command]
    return subprocess.run(words, env=dict(os.environ), check=False).returncode


def _exec(args: argparse.Namespace) -> int:
    command: list[str] = args.command
    if not command:
        raise MiniClusterError("no command: gandiva-cluster exec HOST -- COMMAND …")
    cluster = MiniCluster.attach(args.name)
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
    done = cluster.exec(
        args.host,
        command[0] if len(command) == 1 else command,
        user=args.user,
        timeout_seconds=args.timeout,
        check=False,
        stdin=stdin,
    )
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.exit_code


def _service(args: argparse.Namespace) -> int:
    service = MiniCluster.attach(args.name).service(args.host, args.service)
    if args.action == "running":
        running = service.running()
        print("running" if running else "not running")
        return 0 if running else 1
    getattr(service, args.action)()
    return 0


def _controller(args: argparse.Namespace) -> int:
    cluster = MiniCluster.attach(args.name)
    settings = None if args.settings is None else _checked_settings(cluster, args.action, args.settings)
    if args.action == "log":
        sys.stdout.write(cluster.controller_log())
        return 0
    if args.action == "running":
        print("running" if cluster.controller_running() else "not running")
        return 0 if cluster.controller_running() else 1
    if args.action in {"stop", "restart"}:
        cluster.stop_controller()
    if args.action == "kill":
        cluster.kill_controller()
    if settings is not None:
        for host in ("ctl", "login"):
            cluster.write_file(host, CONTROLLER_SETTINGS, settings)
    if args.action in {"start", "restart"}:
        cluster.start_controller()
    return 0


def _checked_settings(cluster: MiniCluster, action: str, path: Path) -> bytes:
    """The settings in a local file, which the cluster's own release finds valid."""
    if action not in {"start", "restart"}:
        raise MiniClusterError(f"--settings goes with start or restart, not with {action}")
    if action == "start" and cluster.controller_running():
        raise MiniClusterError("the controller runs already: restart gives it other settings")
    text = path.read_bytes()
    done = cluster.exec("ctl", ["gandiva", "config", "check", _STDIN], check=False, stdin=text)
    if done.exit_code != 0:
        raise MiniClusterError(done.stderr.strip().removeprefix("gandiva: ").replace(_STDIN, str(path)))
    return text


def _sync(args: argparse.Namespace) -> int:
    MiniCluster.attach(args.name).sync(args.source)
    return 0


def _logs(args: argparse.Namespace) -> int:
    cluster = MiniCluster.attach(args.name)
    if args.output is None:
        print(cluster.log_tails(args.lines))
    else:
        cluster.gather_logs(args.output)
        print(f"logs are in {args.output}")
    return 0


def _build(args: argparse.Namespace) -> int:
    with _progress():
        client = engine.connect(report=_say)
        tag = images.Images(client, args.release or "forky", _say, args.source).ensure()
    print(tag)
    return 0


def _deb(args: argparse.Namespace) -> int:
    with _progress():
        client = engine.connect(report=_say)
        for release in [args.release] if args.release else packages.RELEASES:
            packages.Packages(client, release, _say, args.source).ensure(again=args.again)
    return 0


def _clean(args: argparse.Namespace) -> int:
    del args
    try:
        client = engine.connect(install=False)
    except MiniClusterError:
        print("no Docker engine runs: nothing to clean")
        return 0
    for containers in clusters(client).values():
        MiniCluster(spec_of(containers[0])).down()
    print(f"removed {images.remove_all(client)} images")
    if engine.stop_started_engine():
        print("ended the dockerd that was started for the mini cluster")
    return 0
