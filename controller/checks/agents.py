# SPDX-License-Identifier: GPL-2.0-or-later
"""The node agents, as the controller reaches them. Pure: `gather` asks them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller import __version__
from controller.checks.finding import Finding, Subject
from controller.checks.gpus import KnownNode, gres_remedy
from controller.checks.slurm_files import judge_plugin
from controller.nodes.protocol import APART, HelloResult
from controller.settings.schema import NodesSettings

MAX_CLOCK_SECONDS = 1.0
_MEND = "nvidia-smi and dmesg | grep -i xid say more; drain it, then reset the GPU or reboot"


@dataclass(frozen=True)
class AgentAnswer:
    address: str
    hello: HelloResult | None = None
    error: str = ""
    """Why there is no answer."""
    ahead_seconds: float = 0.0
    """The node's clock minus that of this host."""
    doubt_seconds: float = 0.0
    """Half of the round-trip time: the error of that difference."""


def judge_agent(
    node: KnownNode, answer: AgentAnswer, settings: NodesSettings, slurm_conf: Path
) -> Iterator[Finding]:
    name, hello = node.name, answer.hello
    if hello is None:
        change = _remedy(name, answer, settings)
        yield Subject(name, "agent").error(f"cannot be reached: {answer.error}", change)
        return
    yield _version(Subject(name, "agent"), hello)
    yield _gpus(Subject(name, "GPUs"), node, hello, slurm_conf)
    yield _driver(Subject(name, "driver"), hello)
    yield _clock(Subject(name, "clock"), answer)
    yield _run_dir(Subject(name, "run folder"), hello)
    yield _confined(Subject(name, "devices"), hello)
    if hello.rank_files:
        yield _rank_files(Subject(name, "rank files"), hello)
    if hello.keys_from_anywhere:
        yield Subject(name, "SSH key").warning(
            "sshd takes the agent's key from any address: a copy of the key opens the agent from anywhere",
            f"in ~{settings.ssh_user}/.ssh/authorized_keys on {name}, before restrict: "
            'from="ADDRESS of the controller\'s host",',
        )
    if hello.plugin_built_for:
        # (A node that has not registered has no release.)
        yield judge_plugin(name, hello.plugin_built_for, node.record.release or hello.plugin_built_for)


def _remedy(name: str, answer: AgentAnswer, settings: NodesSettings) -> str:
    """By the message of SSH."""
    text, host = answer.error.lower(), answer.address
    scan = f"ssh-keyscan -t ed25519 {host} >> {settings.known_hosts}"
    remedies = {
        ("not found in known_hosts",): f"{scan}, after comparing the key with the node's",
        ("host key differs",): f"if {name} was installed anew: ssh-keygen -R {host} -f "
        f"{settings.known_hosts}, then {scan}; if not, another host answers in its place",
        ("is not let in",): f"in ~{settings.ssh_user}/.ssh/authorized_keys on {name}: "
        f'from="ADDRESS of this host",restrict,command="/usr/bin/gandiva-agent" and the line of '
        f"{settings.ssh_key}.pub",
        ("cannot use the key", "known_hosts", str(settings.known_hosts)): "see the findings about "
        f"{settings.ssh_key} and {settings.known_hosts}",
        ("refused", "unable to connect"): f"systemctl start sshd on {name}, or name its port: "
        "[nodes] ssh_port, addresses",
        ("name or service not known", "name resolution"): f"make {host} resolvable here, or: "
        f'[nodes.addresses] {name} = "ADDRESS"',
        ("exit status 127", "agent has ended", "agent refuses"): f"install gandiva {__version__} on {name}; "
        f"try: ssh -i {settings.ssh_key} {host} gandiva-agent {name}",
    }
    otherwise = (
        f"is {name} up, and may this host reach port {settings.ssh_port} of {host}? sshd's log on {name} "
        "says more"
    )
    found = (remedy for words, remedy in remedies.items() if any(word in text for word in words))
    return next(found, otherwise)


def _version(subject: Subject, hello: HelloResult) -> Finding:
    if hello.software_version == __version__:
        return subject.ok(f"answers, version {hello.software_version}")
    there = hello.software_version or "an older one"
    return subject.warning(
        f"version {there}, this is {__version__}",
        f"install gandiva {__version__} on {subject.where}; running agents end when the controller restarts",
    )


def _gpus(subject: Subject, node: KnownNode, hello: HelloResult, slurm_conf: Path) -> Finding:
    seen = [gpu.index for gpu in hello.gpus]
    known = [gpu.index for gpu in node.gpus]
    if not seen:
        return subject.error("the driver shows none", f"on {node.name}: nvidia-smi; is the driver loaded?")
    if bad := [gpu for gpu in hello.gpus if gpu.reason]:
        found = "; ".join(
            f"GPU {gpu.index} ({gpu.uuid or '/dev/nvidia' + str(gpu.index)}): {gpu.reason}" for gpu in bad
        )
        return subject.error(f"no job gets {found}", f"on {node.name}: {_MEND}")
    model, shards = (node.gpus[0].model, node.gpus[0].shards) if node.gpus else ("MODEL", 16)
    line, there = gres_remedy(node, slurm_conf, model, max(seen) + 1, shards), ", ".join(map(str, seen))
    if set(seen) < set(known):
        names = ", ".join(f"/dev/nvidia{index}" for index in sorted(set(known) - set(seen)))
        return subject.error(
            f"{names} of Slurm's {len(known)} GPUs is missing: the driver lists only {there}",
            f"on {node.name}: {_MEND}; if it never had more: {line}",
        )
    if seen != known:
        slurms = ", ".join(map(str, known)) or "none"
        shown = f"the driver shows /dev/nvidia{there} ({hello.gpus[0].model}), Slurm has {slurms}"
        return subject.error(shown, line)
    return subject.ok(f"{len(seen)}, as Slurm has them")


def _driver(subject: Subject, hello: HelloResult) -> Finding:
    if not hello.driver_version:
        return subject.error("NVML does not answer", f"on {subject.where}: nvidia-smi")
    if not hello.checkpoint_supported:
        return subject.warning(
            f"{hello.driver_version} cannot checkpoint: jobs that do not use gandiva.attach() cannot "
            "be suspended there",
            f"driver 570 or newer on {subject.where} (580 to change GPUs while suspended)",
        )
    return subject.ok(hello.driver_version)


def _clock(subject: Subject, answer: AgentAnswer) -> Finding:
    ahead, doubt = answer.ahead_seconds, answer.doubt_seconds
    text = f"{abs(ahead):.2f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    if abs(ahead) > MAX_CLOCK_SECONDS + doubt:
        start = f"start chronyd (or another NTP client) on {subject.where} and on this host"
        return subject.error(text, f"{start}; munge needs it too")
    return subject.ok(text if abs(ahead) > doubt else f"as this host's, within {max(doubt, 0.01):.2f} s")


def _rank_files(subject: Subject, hello: HelloResult) -> Finding:
    if hello.rank_files == APART:
        return subject.ok("each job has a file system of its own")
    return subject.warning(
        f"a job's user can fill {hello.run_dir or '/run/gandiva'} and with it hinder all jobs there:"
        f" {hello.rank_files}",
        f"on {subject.where}: let root mount a tmpfs where gandiva-agent and slurmd run (util-linux; in a "
        "container CAP_SYS_ADMIN)",
    )


def _confined(subject: Subject, hello: HelloResult) -> Finding:
    if not hello.unconfined:
        return subject.ok("each job opens its own GPUs only")
    return subject.error(
        f"no job floats over its GPUs: jobs could open those of others: {hello.unconfined}",
        f"on {subject.where}: install the SPANK plugin with gandiva-confine, and ConstrainDevices=yes in "
        "cgroup.conf",
    )


def _run_dir(subject: Subject, hello: HelloResult) -> Finding:
    kind, path = hello.run_dir_filesystem, hello.run_dir or "/run/gandiva"
    if kind in ("tmpfs", "ramfs"):
        return subject.ok(f"{path} is on {kind}")
    if not kind:
        found = f"the file system of {path} is not known"
        return subject.warning(found, f"install gandiva {__version__} on {subject.where}")
    return subject.warning(
        f"{path} is on {kind}: each step of each job looks into it",
        f"on {subject.where}: systemctl enable --now run-gandiva.mount",
    )
