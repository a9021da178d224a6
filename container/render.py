# SPDX-License-Identifier: GPL-2.0-or-later
"""From a specification to the texts of a cluster's files.

Slurm's GPU side (gres.conf, the fragment, plugstack, cgroup, job_submit) is made inside the cluster by the
product's own `gandiva config slurm`; here is only what a site would have of its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from container.spec import ClusterSpec, Host

SYSTEM_ACCOUNT: Final = "system"
"""Account of the controller's own user in Slurm's accounting."""


def slurm_conf(spec: ClusterSpec) -> str:
    """The site's slurm.conf, which includes the product's fragment."""
    lines = [
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd.%n",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurm/slurmd.%n.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "# A job that is requeued goes on with its output.",
        "JobFileAppend=1",
        "SlurmctldTimeout=60",
        "SlurmdTimeout=60",
        "MessageTimeout=10",
        "# A trial should not wait: neither for a job that ignores SIGTERM nor for the backfill scheduler.",
        "KillWait=5",
        "UnkillableStepTimeout=60",
        "SchedulerParameters=bf_interval=5,sched_min_interval=0,batch_sched_delay=0",
        "JobAcctGatherType=jobacct_gather/linux",
        "# A node may claim more processors than the machine under the containers has.",
        "SlurmdParameters=config_overrides",
        "include gandiva/slurm.conf",
        "# Processors that do not exist cannot be bound to.",
        "TaskPlugin=task/cgroup",
        "# 0: frozen at once (6 ms), after the default 2 s otherwise; see FACTS.md.",
        "PreemptParameters=suspend_grace_time=0",
        *spec.slurm_conf,
    ]
    return "\n".join(lines) + "\n"


def slurmdbd_conf() -> str:
    """The accounting daemon's; MariaDB knows the user slurm by its socket, without a password."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            "DbdHost=db",
            "SlurmUser=slurm",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=slurm",
            "StorageLoc=slurm_acct_db",
            "LogFile=/var/log/slurm/slurmdbd.log",
            "PidFile=/run/slurm/slurmdbd.pid",
            "DebugLevel=info",
            "",
        ]
    )


def description_toml(spec: ClusterSpec) -> str:
    """The cluster description for `gandiva config slurm` (docs/interfaces.md, section 6)."""
    nodes: list[dict[str, Any]] = []
    for group in spec.nodes:
        common: dict[str, Any] = {
            "cpus": group.cpus,
            "memory_mib": group.memory_mib,
            "gpu_model": group.gpu_model,
            "gpus": group.gpus,
        }
        hosts = [host for host in spec.hosts if host.group is group]
        if group.nodes_per_container == 1:
            nodes.append({"names": group.names, **common})
            continue
        for host in hosts:
            ports = f"[{host.ports[0]}-{host.ports[-1]}]"
            nodes.append({"names": _fold(host.nodes), **common, "host": host.name, "ports": ports})
    return toml(
        {
            "cluster": {
                "name": spec.slurm_name,
                "controller_host": "ctl",
                "database_host": "db",
                "oversubscription_depth": spec.oversubscription_depth,
            },
            # The claimed processors and memory are not there to be confined to.
            "cgroup": {"constrain_devices": True, "constrain_cores": False, "constrain_memory": False},
            "gandiva": {"default": spec.gandiva_default},
            "nodes": nodes,
            "partitions": [
                {"name": part.name, "nodes": part.nodes, "default": part.default}
                | ({"options": dict(part.options)} if part.options else {})
                for part in spec.effective_partitions
            ],
        }
    )


def controller_toml(spec: ClusterSpec, overrides: Mapping[str, Any] | None = None) -> str:
    """The Gandiva controller's settings: the mini cluster's, then the specification's, then `overrides`."""
    site: dict[str, Any] = {
        "cluster": {"controller_host": "ctl", "adapter": "pyslurm" if spec.release == "forky" else "command"}
    }
    return toml(merge(merge(site, spec.controller), overrides or {}))


def accounts(spec: ClusterSpec) -> Mapping[str, str]:
    """Lines to append to passwd, group and shadow."""
    return {
        "passwd": "".join(f"{u.name}:x:{u.uid}:{u.uid}::/home/{u.name}:/bin/bash\n" for u in spec.users),
        "group": "".join(f"{u.name}:x:{u.uid}:\n" for u in spec.users),
        "shadow": "".join(f"{u.name}:!:20000::::::\n" for u in spec.users),
    }


def accounting_script(spec: ClusterSpec) -> str:
    """Shell commands that tell Slurm's accounting about the cluster, the accounts and the users."""
    names = sorted({user.account for user in spec.users})
    lines = [
        "set -e",
        f"sacctmgr -i -Q add cluster {spec.slurm_name}",
        f"sacctmgr -i -Q add account {','.join([*names, SYSTEM_ACCOUNT])} cluster={spec.slurm_name}",
    ]
    for account in names:
        users = ",".join(user.name for user in spec.users if user.account == account)
        lines.append(f"sacctmgr -i -Q add user {users} account={account}")
    lines.append(f"sacctmgr -i -Q add user gandiva account={SYSTEM_ACCOUNT} adminlevel=operator")
    return "\n".join(lines)


def host_env(host: Host) -> str:
    """What boot.sh and service.sh need to know about their host."""
    group = host.group
    init: list[str] = []
    if group is not None:
        gpu = group.gpu
        init = ["--gpus", str(group.gpus), "--model", gpu.nvml_name]
        init += ["--memory", f"{gpu.memory_mib}MiB", "--speed", f"{gpu.speed:g}"]
        init += ["--copy-rate", group.gpu_copy_rate, "--device-map", group.gpu_device_map]
        init += ["--init-only", group.gpu_init_only]
    return "\n".join(
        [
            f"HOST_ROLE={host.role}",
            f"HOST_NODES={shlex.quote(' '.join(host.nodes))}",
            f"HOST_GPUS={group.gpus if group else 0}",
            f"MOCKGPU_INIT=({shlex.join(init)})",
            "",
        ]
    )


def toml(tables: Mapping[str, Any]) -> str:
    """TOML of nested mappings, lists of mappings and plain values; None is left out."""
    return "\n".join(_toml_lines(tables, ())) + "\n"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, table by table."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if value is not None and not _is_table(value)}
    for key, value in plain.items():
        # JSON's strings, numbers, booleans and lists of them are TOML's too.
        yield f"{_key(key)} = {json.dumps(value)}"
    for key, value in table.items():
        if value is None or not _is_table(value):
            continue
        name = ".".join(_key(part) for part in (*path, key))
        for item in [value] if isinstance(value, Mapping) else value:
            yield ""
            yield f"[{name}]" if isinstance(value, Mapping) else f"[[{name}]]"
            yield from _toml_lines(item, (*path, key))


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], Mapping)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def _fold(names: tuple[str, ...]) -> str:
    """`("m1", "m2")` -> `m[1-2]`; the numbers are consecutive."""
    if len(names) == 1:
        return names[0]
    prefix = names[0].rstrip("0123456789")
    return f"{prefix}[{names[0][len(prefix) :]}-{names[-1][len(prefix) :]}]"
