# SPDX-License-Identifier: GPL-2.0-or-later
"""From a cluster description to Slurm's configuration files (docs/interfaces.md, section 1): their texts, and
putting them into a folder."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.settings import places
from controller.slurm_config import lua
from controller.slurm_config.description import (
    NODE_KEYS,
    ClusterDescription,
    Nodes,
    Partition,
    SlurmConfigError,
)

OWN_LINES = "# Lines of your own follow this one: they stay."
_HEADER = "# Made by `gandiva config slurm` from the description of cluster {name}: edit that, not this.\n"


@dataclass(frozen=True)
class Options:
    """Where an installation has its files, on every machine of the cluster."""

    sysconfdir: str = "/etc/slurm"
    """Slurm's configuration folder."""
    jobside: str = places.JOBSIDE
    """Folder that holds the Python package `gandiva`; prepended to PYTHONPATH of Gandiva jobs."""
    run_dir: str = "/run/gandiva"
    """Root of the control blocks; %n becomes the Slurm node name."""
    spank_plugin: str = "spank_gandiva.so"
    """The SPANK plugin: a path, or a name that Slurm looks for in its PluginDir."""
    slurm_files: str | None = places.SLURM_FILES
    """Folder with Lua modules, prolog and epilog; None: they are in `sysconfdir`."""


def render(
    description: ClusterDescription, options: Options | None = None, parts: Iterable[str] | None = None
) -> Mapping[str, str]:
    """The files of these of PARTS, or of all, by their names relative to Slurm's configuration folder.

    Pure: the same description gives the same texts, byte for byte.
    """
    options = options or Options()
    header = _HEADER.format(name=description.cluster.name)
    return {
        name: _with_header(name, text, header)
        for part in (PARTS if parts is None else parts)
        for name, text in PARTS[part](description, options).items()
    }


def _with_header(name: str, text: str, header: str) -> str:
    if text.startswith("#!"):
        first, rest = text.split("\n", 1)
        return f"{first}\n{header}{rest}"
    return (header.replace("#", "--", 1) if ".lua" in name else header) + text


def _gres(description: ClusterDescription, _options: Options) -> Mapping[str, str]:
    lines = [
        "# One type per physical GPU, so that a job can be bound to exactly the GPUs that Gandiva chose;",
        "# `shard` is the same GPU again, for the jobs that take turns on it. Slurm keeps the two apart.",
        "AutoDetect=off",
    ]
    for group in description.nodes:
        for index in range(group.gpus):
            where = f"NodeName={group.names}"
            device = group.gpu_device.replace("%d", str(index))
            kind = _type(group, index)
            lines.append(f"{where} Name=gpu Type={kind} File={device}")
            count = description.cluster.oversubscription_depth
            lines.append(f"{where} Name=shard Type={kind} Count={count} File={device}")
    return {"gres.conf": _text(*lines, OWN_LINES)}


def _slurm(description: ClusterDescription, options: Options) -> Mapping[str, str]:
    cluster = description.cluster
    others = [item for group in description.nodes for item in group.others]
    lines = [f"# Include this at the end of {options.sysconfdir}/slurm.conf: include gandiva/slurm.conf"]
    if cluster.controller_host is not None:
        lines += [f"ClusterName={cluster.name}", f"SlurmctldHost={cluster.controller_host}"]
    lines += [
        "GresTypes=" + ",".join(dict.fromkeys(["gpu", "shard", *(item.name for item in others)])),
        "SelectType=select/cons_tres",
        "# MULTIPLE_SHARING_GRES_PJ: a job may hold shards of several GPUs. LL_: least loaded first.",
        "SelectTypeParameters=CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ,LL_SHARED_GRES",
    ]
    per_cpu = cluster.default_memory_mib_per_cpu
    if per_cpu is None:
        per_cpu = min(max(1, group.job_memory_mib // group.cpus) for group in description.nodes)
    lines += [
        "# A job that names no memory would get the whole node's, and no other could share its GPUs.",
        f"DefMemPerCPU={per_cpu}",
    ]
    if cluster.database_host is not None:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={cluster.database_host}",
            # slurmctld refuses to start with these where it has no slurmdbd.
            "AccountingStorageTRES=gres/gpu,gres/shard",
        ]
    lines += [
        f"# Loads {options.sysconfdir}/job_submit.lua, which is yours: see gandiva/job_submit.lua.example.",
        "JobSubmitPlugins=lua",
        f"PlugStackConfig={options.sysconfdir}/plugstack.conf",
        f"Prolog={options.sysconfdir}/prolog.d/*",
        f"Epilog={options.sysconfdir}/epilog.d/*",
        "ProctrackType=proctrack/cgroup",
        f"TaskPlugin={'task/affinity,' if description.cgroup.constrain_cores else ''}task/cgroup",
        "# A suspended job's state has left the GPU before Slurm suspends it: no reason to wait long.",
        f"PreemptParameters=suspend_grace_time={cluster.suspend_grace_seconds}",
        "# With these a released job starts within milliseconds, without them within three seconds. They",
        "# are the whole cluster's, so they are left to you: add them to your own SchedulerParameters.",
        "#SchedulerParameters=batch_sched_delay=0,sched_min_interval=0",
        *(_node_line(group, description) for group in description.nodes),
        *(_line({"NodeSet": s.name, "Nodes": s.nodes, "Feature": s.feature}) for s in description.node_sets),
        *(_partition_line(partition) for partition in description.partitions),
    ]
    return {"gandiva/slurm.conf": _text(*lines)}


def _node_line(group: Nodes, description: ClusterDescription) -> str:
    # The controller finds GPUs by these types; an ordinary `gpu:<model>:N` finds nodes by the feature.
    depth = description.cluster.oversubscription_depth
    kinds = [_type(group, index) for index in range(group.gpus)]
    gres = [f"gpu:{kind}:1" for kind in kinds] + [f"shard:{kind}:{depth}" for kind in kinds]
    gres += [group.gres] if group.gres else []
    made = {"Gres": ",".join(gres) or None, "Feature": ",".join(description.features_of(group)) or None}
    return _line({key: getattr(group, name) for name, key in NODE_KEYS.items()} | made | dict(group.options))


def _line(keys: Mapping[str, object]) -> str:
    """Of slurm.conf. None: left out."""
    return " ".join(f"{key}={value}" for key, value in keys.items() if value is not None)


def _partition_line(partition: Partition) -> str:
    own = {"PartitionName": partition.name, "Nodes": partition.nodes}
    return _line(own | ({"Default": "YES"} if partition.default else {}) | dict(partition.options))


def _plugstack(description: ClusterDescription, options: Options) -> Mapping[str, str]:
    arguments = f"jobside={options.jobside} run_dir={options.run_dir} default={description.gandiva.default}"
    return {
        "plugstack.conf": _text(f"include {options.sysconfdir}/plugstack.conf.d/*.conf"),
        "plugstack.conf.d/gandiva.conf": _text(
            "# required: without the plugin a time-sliced job would take GPUs out of its turn.",
            "# A fault of the plugin fails the job, never the node (slurm_spank_init_failure_mode).",
            f"required {options.spank_plugin} {arguments}",
        ),
        "gandiva/gandiva.env": _text(
            "# Read by 50-gandiva.sh in prolog.d and epilog.d.",
            f"GANDIVA_RUN_DIR={options.run_dir}",
            f"GANDIVA_DEFAULT={description.gandiva.default}",
            "GANDIVA_PARTITIONS=" + ",".join(description.gandiva.partitions),
        ),
        **_hooks(options),
    }


def _hooks(options: Options) -> Mapping[str, str]:
    """Prolog and epilog that call the scripts in `slurm_files`, beside those of the site."""
    if options.slurm_files is None:
        return {}
    return {
        f"{hook}.d/50-gandiva.sh": _text(
            "#!/bin/sh",
            "# Slurm drains a node whose prolog or epilog fails: a missing package must not do that.",
            f"script={options.slurm_files}/{hook}.d/50-gandiva.sh",
            '[ -x "$script" ] || exit 0',
            'exec "$script"',
        )
        for hook in ("prolog", "epilog")
    }


def _cgroup(description: ClusterDescription, _options: Options) -> Mapping[str, str]:
    settings = description.cgroup
    lines = ["# ConstrainDevices: a job cannot open a GPU that is not its own, whatever its environment."]
    if settings.mountpoint is not None:
        lines.append(f"CgroupMountpoint={settings.mountpoint}")
    lines += [
        f"ConstrainDevices={_yes(settings.constrain_devices)}",
        f"ConstrainCores={_yes(settings.constrain_cores)}",
        f"ConstrainRAMSpace={_yes(settings.constrain_memory)}",
    ]
    return {"cgroup.conf": _text(*lines)}


def _lua(description: ClusterDescription, options: Options) -> Mapping[str, str]:
    return {
        "gandiva/gandiva_settings.lua": lua.settings(description),
        "gandiva/job_submit.lua.example": lua.EXAMPLE.format(
            sysconfdir=options.sysconfdir, slurm_files=options.slurm_files or options.sysconfdir
        ),
    }


def _type(group: Nodes, index: int) -> str:
    return f"{group.gpu_model}_{index}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _text(*lines: str) -> str:
    return "\n".join(lines) + "\n"


PARTS: Mapping[str, Callable[[ClusterDescription, Options], Mapping[str, str]]] = {
    "gres": _gres,
    "slurm": _slurm,
    "plugstack": _plugstack,
    "cgroup": _cgroup,
    "lua": _lua,
}
"""What `--part` names, in the order of printing."""


def write(files: Mapping[str, str], folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the files (names relative to `folder`, and texts) that are missing or differ; all or none.

    Returns the paths that were written. Raises OSError, and SlurmConfigError where a file is there with
    other content and `force` is not given.
    """
    there = {path: path.read_text(errors="replace") for name in files if (path := folder / name).exists()}
    texts = {
        folder / name: with_own_lines(text, there.get(folder / name, "")) for name, text in files.items()
    }
    changed = {path: text for path, text in texts.items() if there.get(path) != text}
    differing = [path for path in changed if path in there]
    if differing and not force:
        raise SlurmConfigError(
            f"not overwriting {', '.join(map(str, differing))}: there already, with other content; "
            "compare them and use --force, or choose another --output-dir"
        )
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    return tuple(changed)


def with_own_lines(text: str, there: str) -> str:
    """The text, and what a site has written behind its last line."""
    _, mark, own = there.partition(f"{OWN_LINES}\n")
    return text + own if mark and text.endswith(mark) else text


def _replace(path: Path, text: str) -> None:
    """Slurm may read the file at any moment: it sees the old one or the new one, never half."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(0o755 if text.startswith("#!") else 0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
