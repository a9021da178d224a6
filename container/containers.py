# SPDX-License-Identifier: GPL-2.0-or-later
"""The containers of a mini cluster: made, filled with what each host needs, and booted; no Slurm yet."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import docker.errors

from container import images, render
from container.errors import UpError
from container.execute import Content, get_file, put_files
from container.spec import ClusterSpec, Host

LABEL: Final = images.LABEL_OF_CLUSTERS
"""On everything of a cluster; its value is the cluster's name."""
SPEC_LABEL: Final = "org.gandiva.minicluster.spec"
HOST_LABEL: Final = "org.gandiva.minicluster.host"
SLURM_CONFIGURATION: Final = "/etc/slurm"

_SHARED: Final = "/shared"
_NVIDIA_MAJOR: Final = 195
_NVIDIACTL_MINOR: Final = 255
_BOOT_SECONDS: Final = 60
_POLL_SECONDS: Final = 0.1
_THREADS: Final = 8

_Result = TypeVar("_Result")


def everywhere(action: Callable[[Host], _Result], hosts: Sequence[Host]) -> list[_Result]:
    """Do something for several hosts at once; the results in their order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(action, hosts))


def container_name(spec: ClusterSpec, host: str) -> str:
    """Of a host, not of a node that shares one."""
    return f"gandiva-{spec.name}-{host}"


def find(client: Any, name: str, *, every: bool = True) -> list[Any]:
    """The containers of a cluster: every one, or those that run."""
    found: list[Any] = client.containers.list(
        all=every, filters={"label": f"{LABEL}={name}"}, ignore_removed=True
    )
    return found


def remove(client: Any, name: str) -> None:
    """Remove all containers, networks and volumes with the label of that cluster."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(_remove_container, find(client, name)))
    label = {"label": f"{LABEL}={name}"}
    for thing in (*client.networks.list(filters=label), *client.volumes.list(filters=label)):
        with suppress(docker.errors.NotFound):
            thing.remove()


# A job that Slurm has suspended sits in a frozen control group, where (cgroup v1) no signal reaches it, not
# even the engine's SIGKILL: thawed first, or the container cannot be removed.
_THAW = "find /sys/fs/cgroup/freezer -mindepth 2 -name freezer.state -exec sh -c 'echo THAWED > {}' \\;"


def _remove_container(container: Any) -> None:
    with suppress(docker.errors.APIError):
        container.exec_run(["sh", "-c", _THAW])
    with suppress(docker.errors.NotFound):
        container.remove(force=True, v=True)


def spec_of(container: Any) -> ClusterSpec:
    """The specification that a container carries."""
    return ClusterSpec.model_validate_json(container.labels[SPEC_LABEL])


def network_name(cluster: str) -> str:
    """Of a cluster's network."""
    return f"gandiva-{cluster}"


def start(client: Any, spec: ClusterSpec, image: str) -> None:
    """Make the network, the volumes and all containers, and wait until each has booted.

    Raises:
        UpError: one ended early or was too slow.
    """
    labels = {LABEL: spec.name}
    network = network_name(spec.name)
    client.networks.create(network, driver="bridge", labels=labels, check_duplicate=True)
    for kind in ("conf", "shared"):
        client.volumes.create(f"gandiva-{spec.name}-{kind}", labels=labels)
    munge_key = secrets.token_bytes(128)

    def start_one(host: Host) -> None:
        name = container_name(spec, host.name)
        _create(client, spec, host, image, network)
        put_files(client, name, _host_files(spec, host, munge_key))
        client.api.start(name)

    # The first one fills the volume /etc/slurm from the image: alone, or they would get into a tangle.
    hosts = sorted(spec.hosts, key=lambda host: host.role != "ctl")
    start_one(hosts[0])
    everywhere(start_one, hosts[1:])
    everywhere(lambda host: _await_boot(client, container_name(spec, host.name), host), hosts)


def _create(client: Any, spec: ClusterSpec, host: Host, image: str, network: str) -> None:
    api = client.api
    node = host.role == "node"
    minors = [*range(host.group.gpus), _NVIDIACTL_MINOR] if host.group else []
    host_config = api.create_host_config(
        binds={
            f"gandiva-{spec.name}-conf": {"bind": SLURM_CONFIGURATION, "mode": "rw"},
            f"gandiva-{spec.name}-shared": {"bind": _SHARED, "mode": "rw"},
        },
        network_mode=network,
        cap_add=["SYS_ADMIN", "SYS_NICE", "SYS_PTRACE"] if node else None,
        security_opt=["seccomp=unconfined", "apparmor=unconfined"] if node else None,
        # Own control groups: two clusters may have the same node names and job numbers.
        cgroupns="private" if node else None,
        # One rule for each device: with a wildcard, Slurm could not take a single one away (version 1).
        device_cgroup_rules=[f"c {_NVIDIA_MAJOR}:{minor} rwm" for minor in minors] or None,
        tmpfs={"/run/gandiva": "size=64m,mode=755"} if node else None,
        shm_size="256m",
    )
    api.create_container(
        image,
        ["/usr/bin/tini", "-s", "--", f"{images.SCRIPTS_IN_IMAGE}/boot.sh"],
        name=container_name(spec, host.name),
        hostname=host.name,
        labels={LABEL: spec.name, HOST_LABEL: host.name, SPEC_LABEL: spec.model_dump_json()},
        host_config=host_config,
        networking_config=api.create_networking_config(
            {network: api.create_endpoint_config(aliases=[host.name, *host.nodes])}
        ),
    )


def _host_files(spec: ClusterSpec, host: Host, munge_key: bytes) -> dict[str, Content]:
    files = {
        "/etc/munge/munge.key": Content(munge_key, 0o400),
        "/etc/minicluster/host.env": Content(render.host_env(host).encode()),
    }
    for name, text in render.accounts(spec).items():
        files[f"/etc/minicluster/{name}"] = Content(text.encode(), 0o600)
    if host.role == "ctl":
        files["/etc/minicluster/cluster.toml"] = Content(render.description_toml(spec).encode())
        files[f"{SLURM_CONFIGURATION}/slurm.conf"] = Content(render.slurm_conf(spec).encode())
    if host.role == "db":
        files["/etc/minicluster/slurmdbd.conf"] = Content(render.slurmdbd_conf().encode(), 0o600)
    return files


def _await_boot(client: Any, name: str, host: Host) -> None:
    """Wait until boot.sh has done its part; an early end of it is told with its output."""
    deadline = time.monotonic() + _BOOT_SECONDS
    while True:
        with suppress(FileNotFoundError):
            get_file(client, name, "/run/minicluster-ready")
            return
        container = client.containers.get(name)
        if container.status not in {"running", "created"} or time.monotonic() > deadline:
            output = container.logs(tail=30).decode(errors="replace")
            raise UpError(f"host {host.name} did not boot ({container.status}): {output}")
        time.sleep(_POLL_SECONDS)
