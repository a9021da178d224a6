# SPDX-License-Identifier: GPL-2.0-or-later
"""The mini cluster: containers on one network that are a Slurm cluster together."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import docker.errors

from container import containers, engine, images, packages, render
from container.containers import LABEL, everywhere
from container.errors import CommandError, DeadlineError, MiniClusterError, UpError
from container.execute import Completed, Content, put_files
from container.runner import Runner
from container.services import DAEMONS, SCRIPT, Name, Service
from container.spec import ClusterSpec, Host

CONTROLLER_LOG: Final = "/var/log/gandiva/controller.log"
CONTROLLER_SETTINGS: Final = "/etc/gandiva/gandiva.toml"

_READY_SECONDS: Final = 60
_POLL_SECONDS: Final = 0.1
_CONTROLLER_SECONDS: Final = 60
_API_PORT: Final = 6822
_THREADS: Final = 8
_LOG_GLOBS: Final = "/var/log/slurm/*.log /var/log/gandiva/*.log /var/log/munge/*.log /var/log/mariadb.log"

Report = Callable[[str], None]


class MiniCluster:
    """A cluster by its specification; :meth:`attach` finds a running one by its name."""

    def __init__(self, spec: ClusterSpec | None = None, report: Report = lambda _: None) -> None:
        """Args:
        spec: what to build.
        report: called with one line for each step that takes time.
        """
        self.spec = spec or ClusterSpec()
        self._report = report
        self._connection: Any = None
        self._runners: dict[str, Runner] = {}
        self._opening = threading.Lock()

    @classmethod
    def attach(cls, name: str = "dev", report: Report = lambda _: None) -> MiniCluster:
        """The running cluster of that name.

        Raises:
            MiniClusterError: none runs.
            EngineError: no Docker engine answers (none is started for this).
        """
        client = engine.connect(install=False)
        running = containers.find(client, name, every=False)
        if not running:
            raise MiniClusterError(f"no mini cluster {name!r} runs: start one with `gandiva-cluster up`")
        cluster = cls(containers.spec_of(running[0]), report)
        cluster._connection = client
        return cluster

    @property
    def name(self) -> str:
        """The name of this cluster."""
        return self.spec.name

    # Life

    def up(self, source: Path = images.REPOSITORY_ROOT) -> None:
        """Make the images where needed, start everything, and wait until every part is healthy.

        Args:
            source: the checkout whose sources go into the image.

        Raises:
            EngineError: no Docker engine.
            ImageError: the sources do not build.
            UpError: a part did not become healthy; the message has the tails of its logs.
            MiniClusterError: a cluster of this name runs already.
        """
        client = self._client
        if containers.find(client, self.name, every=False):
            raise MiniClusterError(
                f"a mini cluster {self.name!r} runs already: take it down first, or use --replace"
            )
        self.down()  # Something may be left of one that was cut off.
        made = images.Images(client, self.spec.release, self._report, source)
        folder: Path | None = None
        if self.spec.install == "packages":
            folder = packages.Packages(client, self.spec.release, self._report, source).ensure()
        image = made.ensure(torch=self.spec.torch) if folder is None else made.ensure_site()
        try:
            self._step("starting containers", lambda: containers.start(client, self.spec, image))
            if folder is not None:
                self._step("installing packages", lambda: self.install_packages(folder))
            self._step("configuring Slurm", self._configure)
            self._step("starting Slurm", self._start_slurm)
        except (CommandError, DeadlineError, UpError, docker.errors.APIError) as error:
            raise UpError(f"{error}\n{self.log_tails()}") from error

    def down(self) -> None:
        """Remove all containers, networks and volumes of this cluster, and nothing else."""
        while self._runners:
            self._runners.popitem()[1].close()
        containers.remove(self._client, self.name)

    def sync(self, source: Path = images.REPOSITORY_ROOT) -> None:
        """Put the sources as they are now into the running containers, build and install them there.

        Daemons that run keep what they have loaded: restart those that matter.
        """
        if self.spec.install == "packages":
            raise MiniClusterError(f"{self.name!r} has packages: build new ones, then install_packages()")
        prefix = images.SOURCE_IN_IMAGE
        files = {f"{prefix}/{name}": content for name, content in images.source_files(source).items()}

        def renew(host: Host) -> None:
            # What make has built stays: it knows by the times what has to be built again.
            stale = f"find {prefix} -type f -not -path '*/build/*' -not -path '*.egg-info/*' -delete"
            self.exec(host.name, stale)
            put_files(self._client, self._container_name(host.name), files)
            self.exec(host.name, ["bash", f"{images.SCRIPTS_IN_IMAGE}/project.sh"], timeout_seconds=300)

        everywhere(renew, self.spec.hosts)

    def install_packages(self, folder: Path) -> None:
        """Install (or upgrade to) the packages in a folder, on each host those of its role.

        dpkg, not apt: what they depend on must be on the host already.
        """

        def install(host: Host) -> None:
            chosen = packages.of_role(folder, host.role)
            if not chosen:
                return
            place = "/var/cache/gandiva-packages"
            put_files(
                self._client,
                self._container_name(host.name),
                {f"{place}/{path.name}": Content(path.read_bytes()) for path in chosen.values()},
            )
            script = f"DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i {place}/*.deb && rm -rf {place}"
            self.exec(host.name, ["bash", "-c", f"{{ {script}; }} 2>&1"], timeout_seconds=300)

        everywhere(install, self.spec.hosts)

    # Commands and files

    def exec(
        self,
        host: str,
        command: str | Sequence[str],
        *,
        user: str = "root",
        timeout_seconds: float = 60,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        workdir: str | None = None,
    ) -> Completed:
        """Run a command on a host (or on the host of a node); see :func:`container.execute.execute`.

        A user other than root starts in the home folder.
        """
        if workdir is None and user in {member.name for member in self.spec.users}:
            workdir = f"/home/{user}"
        return self._runner(self.spec.host_of(host).name).run(
            command,
            user=user,
            timeout_seconds=timeout_seconds,
            check=check,
            env={"USER": user, **(env or {})},
            stdin=stdin,
            workdir=workdir,
        )

    def write_file(
        self, host: str, path: str, text: str | bytes, mode: int = 0o644, owner: str = "root"
    ) -> None:
        """Write a file on a host; missing folders are made. Replaces it as a whole, never half."""
        script = (
            'set -e; install -d "$(dirname "$1")"; t=$(mktemp "$1.XXXXXX"); cat > "$t"; '
            'chown "$3:" "$t"; chmod "$2" "$t"; mv "$t" "$1"'
        )
        self.exec(host, ["bash", "-c", script, "write_file", path, f"{mode:o}", owner], stdin=text)

    def read_file(self, host: str, path: str) -> str:
        """The text of a file on a host.

        Raises:
            FileNotFoundError: there is none.
        """
        # By a process, not by the engine: it sees tmpfs mounts such as /run/gandiva too.
        done = self.exec(host, ["cat", "--", path], check=False)
        if done.exit_code != 0:
            raise FileNotFoundError(f"{host}:{path}: {done.stderr.strip()}")
        return done.stdout

    # Daemons

    def service(self, host: str, name: Name) -> Service:
        """A daemon on a host; for slurmd `host` may be a node, where several share a host."""
        place = self.spec.host_of(host)
        nodes = (host,) if name == "slurmd" and host in place.nodes else ()

        def run(command: list[str], check: bool) -> Completed:
            return self.exec(place.name, command, check=check, timeout_seconds=120)

        return Service(run, name, nodes)

    def start_services(self) -> None:
        """Start every daemon that does not run, but for the Gandiva controller."""

        def start(host: Host) -> None:
            names = ("munge", *DAEMONS[host.role])
            self.exec(host.name, " && ".join(f"{SCRIPT} start {name}" for name in names), timeout_seconds=120)

        everywhere(start, self.spec.hosts)

    def start_controller(self, settings_overrides: Mapping[str, Any] | None = None) -> None:
        """Start the Gandiva controller on ctl and wait until its API answers.

        Args:
            settings_overrides: gandiva.toml is written anew, with these tables and keys over those of the
                specification. None: the file that is there stays.

        Raises:
            UpError: it ended at once, or does not answer; the message has the tail of its log.
        """
        if settings_overrides is not None or not self.controller_settings():
            text = render.controller_toml(self.spec, settings_overrides)
            for host in ("ctl", "login"):
                self.write_file(host, CONTROLLER_SETTINGS, text)
        self.service("ctl", "gandiva").start()
        probe = (
            f"for i in $(seq {_CONTROLLER_SECONDS * 10}); do {SCRIPT} running gandiva || exit 1; "
            f"exec 3<> /dev/tcp/localhost/{_API_PORT} && printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3 "
            "&& read -r _ status _ <&3 && [ $status = 200 ] && exit; exec 3>&-; sleep 0.1; done; exit 2"
        )
        done = self.exec(
            "ctl", f"{{ {probe}; }} 2> /dev/null", check=False, timeout_seconds=_CONTROLLER_SECONDS * 2
        )
        if done.exit_code != 0:
            what = "ended at once" if done.exit_code == 1 else f"is silent after {_CONTROLLER_SECONDS} s"
            raise UpError(f"the Gandiva controller {what}: {self.controller_log()[-3000:]}")

    def stop_controller(self) -> None:
        """End the controller with SIGTERM and wait until it is gone."""
        self.service("ctl", "gandiva").stop()

    def kill_controller(self, signal: int = 9) -> None:
        """Send the controller a signal."""
        self.service("ctl", "gandiva").kill(signal)

    def controller_running(self) -> bool:
        """Whether the controller's process is there."""
        return self.service("ctl", "gandiva").running()

    def controller_log(self, begin_bytes: int = 0) -> str:
        """The controller's log from there on; empty before its first start."""
        return self.exec("ctl", ["tail", "-c", f"+{begin_bytes + 1}", CONTROLLER_LOG], check=False).stdout

    def controller_log_bytes(self) -> int:
        """Its length."""
        return int(self.exec("ctl", f"stat -c %s {CONTROLLER_LOG} || echo 0").stdout)

    def controller_settings(self) -> str:
        """The settings file of the controller on ctl; empty where there is none."""
        return self.exec("ctl", ["cat", CONTROLLER_SETTINGS], check=False).stdout

    def wait_nodes_idle(self, timeout_seconds: float = _READY_SECONDS) -> None:
        """Wait until slurmctld says that every node is idle.

        Raises:
            UpError: some are not, in time.
        """
        deadline = time.monotonic() + timeout_seconds
        states: dict[str, str] = {}
        while time.monotonic() < deadline:
            done = self.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N %T"], check=False, timeout_seconds=15)
            states = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
            if len(states) == len(self.spec.node_names) and set(states.values()) == {"idle"}:
                return
            time.sleep(_POLL_SECONDS)
        waiting = ", ".join(f"{name} {state}" for name, state in states.items() if state != "idle")
        raise UpError(
            f"after {timeout_seconds:g} s not all nodes are idle: {waiting or 'slurmctld is silent'}"
        )

    # Logs

    def gather_logs(self, folder: Path) -> None:
        """Copy all logs and the configuration into `folder`, a folder for each host."""

        def gather(host: Host) -> None:
            place = folder / host.name
            place.mkdir(parents=True, exist_ok=True)
            script = f"for f in {_LOG_GLOBS}; do [ -f $f ] && printf '\\0%s\\0' $f && cat $f; done; true"
            with suppress(MiniClusterError, docker.errors.APIError):
                text = self.exec(host.name, script, check=False).stdout
                parts = text.split("\0")[1:]
                for path, content in zip(parts[::2], parts[1::2], strict=False):
                    (place / Path(path).name).write_text(content)
            with suppress(docker.errors.APIError):
                container = self._client.containers.get(self._container_name(host.name))
                (place / "container.log").write_bytes(container.logs())

        everywhere(gather, self.spec.hosts)
        with suppress(MiniClusterError, docker.errors.APIError):
            configuration = self.exec("ctl", "cd /etc/slurm; tail -n +1 *.conf gandiva/*.conf", check=False)
            (folder / "slurm-configuration.txt").write_text(configuration.stdout)

    def log_tails(self, lines: int = 15) -> str:
        """The last lines of every log, for error messages."""

        def tail(host: Host) -> str:
            script = f"tail -n {lines} {_LOG_GLOBS} 2> /dev/null"
            with suppress(MiniClusterError, docker.errors.APIError):
                return f"--- {host.name}\n{self.exec(host.name, script, check=False).stdout}"
            with suppress(docker.errors.APIError):
                container = self._client.containers.get(self._container_name(host.name))
                return f"--- {host.name}\n{container.logs(tail=lines).decode(errors='replace')}"
            return f"--- {host.name}: no container"

        return "\n".join(everywhere(tail, self.spec.hosts))

    # How it is made

    @property
    def _client(self) -> Any:
        if self._connection is None:
            self._connection = engine.connect(report=self._report)
        return self._connection

    def _step(self, title: str, action: Callable[[], None]) -> None:
        began = time.monotonic()
        self._report(title)
        action()
        self._report(f"{title}: {time.monotonic() - began:.1f} s")

    def _runner(self, host: str) -> Runner:
        with self._opening:
            if host not in self._runners:
                self._runners[host] = Runner(self._client, self._container_name(host), host)
            return self._runners[host]

    def _container_name(self, host: str) -> str:
        return containers.container_name(self.spec, host)

    def _configure(self) -> None:
        shared = any(host.shared for host in self.spec.hosts)
        prepare = f"{images.SCRIPTS_IN_IMAGE}/prepare.sh"
        public_key = self.exec(
            "ctl", [prepare], env={"SHARED_HOSTS": "yes" if shared else "no"}
        ).stdout.strip()
        command = "/usr/bin/gandiva-agent"
        if shared:
            command += " --run-dir /run/gandiva/%n --gpustat-dir /run/gpustat/%n"
        network = self._client.networks.get(containers.network_name(self.spec.name))
        subnet = network.attrs["IPAM"]["Config"][0]["Subnet"]
        authorized = f'from="{subnet}",restrict,command="{command}" {public_key}\n'
        nodes = [host for host in self.spec.hosts if host.role == "node"]

        def exchange_keys(host: Host) -> str:
            script = "set -e; install -d -m 700 /root/.ssh; cat > /root/.ssh/authorized_keys; "
            script += "cat /etc/ssh/ssh_host_ed25519_key.pub"
            kind, key, *_ = self.exec(host.name, script, stdin=authorized).stdout.split()
            return f"{','.join(dict.fromkeys([host.name, *host.nodes]))} {kind} {key}\n"

        known_hosts = "".join(everywhere(exchange_keys, nodes))
        settings = render.controller_toml(self.spec)
        ctl = self._container_name("ctl")
        put_files(
            self._client,
            ctl,
            {
                "/etc/gandiva/known_hosts": Content(known_hosts.encode()),
                "/etc/gandiva/gandiva.toml": Content(settings.encode()),
            },
        )
        put_files(
            self._client,
            self._container_name("login"),
            {"/etc/gandiva/gandiva.toml": Content(settings.encode())},
        )

    def _start_slurm(self) -> None:
        def start_node(host: Host) -> None:
            self.service(host.name, "slurmd").start()

        nodes = [host for host in self.spec.hosts if host.role == "node"]
        with ThreadPoolExecutor(_THREADS) as pool:
            starting = [pool.submit(start_node, host) for host in nodes]
            self.exec("db", "install -o slurm -m 600 /etc/minicluster/slurmdbd.conf /etc/slurm/slurmdbd.conf")
            self.service("db", "slurmdbd").start()
            self.exec("ctl", render.accounting_script(self.spec))
            for future in starting:
                future.result()
        self.service("ctl", "slurmctld").start()
        self.wait_nodes_idle()


def remove_leftovers(client: Any, prefix: str) -> None:
    """Take down the clusters of test runs that were killed, which are named after their process: `PREFIXPID`,
    or `PREFIXPID-…` for one that a test made beside it. One run at a time does so."""
    with engine.exclusive("leftovers"):
        for name, members in clusters(client).items():
            match = re.fullmatch(rf"{re.escape(prefix)}(\d+)(-.*)?", name)
            # (One of our own number is an earlier process's: this one has made none yet.)
            if match and (int(match[1]) == os.getpid() or not Path("/proc", match[1]).exists()):
                MiniCluster(containers.spec_of(members[0])).down()


def clusters(client: Any) -> dict[str, list[Any]]:
    """Containers of all mini clusters of this engine, by cluster."""
    found: dict[str, list[Any]] = {}
    for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
        found.setdefault(container.labels[LABEL], []).append(container)
    return found
