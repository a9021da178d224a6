# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's options as slurmctld has them in force (`scontrol show config`). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.checks.finding import Finding, error, ok, warning
from controller.settings.schema import ApiSettings

_LINE = re.compile(r"^([A-Za-z_]+)(?:\[\d+\])?\s*= ?(.*)$")
_NOTHING = ("(null)", "(null type)", "N/A", "")
RESTART = "then restart slurmctld and every slurmd"
RECONFIGURE = "then scontrol reconfigure"


@dataclass(frozen=True)
class SlurmOptions:
    """The configuration in force."""

    values: Mapping[str, str]
    """By lower-case name; of several lines (`Prolog[0]`, `Prolog[1]`) all, separated by commas."""

    @classmethod
    def parse(cls, text: str) -> SlurmOptions:
        """From the output of `scontrol show config`."""
        values: dict[str, str] = {}
        for line in text.splitlines():
            if match := _LINE.match(line):
                key, value = match[1].lower(), match[2].strip()
                values[key] = f"{values[key]},{value}" if key in values else value
        return cls(values)

    def get(self, key: str) -> str:
        """The value; empty where Slurm says that there is none."""
        value = self.values.get(key.lower(), "")
        return "" if value in _NOTHING else value

    def words(self, key: str) -> list[str]:
        """A comma-separated value."""
        return [word for word in self.get(key).split(",") if word]

    def has(self, key: str, word: str) -> bool:
        """Whether the comma-separated value has this word, in any case."""
        return word.lower() in (known.lower() for known in self.words(key))

    @property
    def file(self) -> Path:
        """slurm.conf, where the client commands of this host read it."""
        return Path(self.get("SLURM_CONF") or "/etc/slurm/slurm.conf")

    @property
    def release(self) -> str:
        """`26.05.5`."""
        return self.get("SLURM_VERSION")

    @property
    def controller(self) -> str:
        """slurmctld's host."""
        return (self.get("SlurmctldHost") or "slurmctld").split(",")[0].split("(")[0]


def judge_private_data(options: SlurmOptions, api: ApiSettings) -> Finding:
    """Whether the API hides what it is meant to hide, and what Slurm hides."""
    found = f"PrivateData={options.get('PrivateData') or 'none'}"
    if api.private_data:
        return ok("slurm", "PrivateData", f"{found}, and api.private_data is on")
    if api.token_file is None and not options.has("PrivateData", "jobs"):
        return ok("slurm", "PrivateData", found)
    if api.token_file is not None:
        found = f"api.token_file = {api.token_file}"
    return warning(
        "slurm",
        "PrivateData",
        f"{found}, but the controller's API shows everybody the jobs of all users",
        "in gandiva.toml: [api] private_data = true and token_file, then systemctl restart gandiva",
    )


def judge_options(options: SlurmOptions) -> Iterator[Finding]:
    """One finding for each option that matters."""
    for rule in _RULES:
        yield from rule(options)


def _needed(
    options: SlurmOptions, key: str, words: tuple[str, ...], why: str, then: str
) -> Iterator[Finding]:
    """A list that must have these words."""
    missing = [word for word in words if not options.has(key, word)]
    found = f"{key}={options.get(key) or '(not set)'}"
    if missing:
        line = f"{key}={','.join([*options.words(key), *missing])}"
        yield error("slurm", key, f"{found}: {why}", f"in {options.file}: {line}, {then}")
    else:
        yield ok("slurm", key, found)


def _exactly(
    options: SlurmOptions, key: str, value: str, why: str, then: str, level: Callable[..., Finding] = error
) -> Iterator[Finding]:
    found = f"{key}={options.get(key) or '(not set)'}"
    if options.get(key).lower() == value.lower():
        yield ok("slurm", key, found)
    else:
        yield level("slurm", key, f"{found}: {why}", f"in {options.file}: {key}={value}, {then}")


def _gres_types(options: SlurmOptions) -> Iterator[Finding]:
    why = "jobs that take turns are bound to shards of GPUs"
    yield from _needed(options, "GresTypes", ("gpu", "shard"), why, RESTART)


def _select(options: SlurmOptions) -> Iterator[Finding]:
    why = "only this one knows GPUs"
    yield from _exactly(options, "SelectType", "select/cons_tres", why, RESTART)
    key = "SelectTypeParameters"
    why = "a job could not hold shards of several GPUs"
    yield from _needed(options, key, ("MULTIPLE_SHARING_GRES_PJ",), why, RESTART)
    if not any("MEMORY" in word.upper() for word in options.words(key)):
        yield warning(
            "slurm",
            key,
            f"{options.get(key)}: host memory is not counted, so jobs may take each other's",
            f"in {options.file}: {key}=CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ,LL_SHARED_GRES, {RESTART}",
        )


def _default_memory(options: SlurmOptions) -> Iterator[Finding]:
    for key in ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU"):
        if options.get(key) not in ("", "UNLIMITED", "0"):
            yield ok("slurm", "default memory", f"{key}={options.get(key)}")
            return
    yield warning(
        "slurm",
        "default memory",
        "a job that names no memory gets all of its node's, and no other job can share its GPUs",
        f"in {options.file}: DefMemPerCPU=MIB (memory of a node divided by its CPUs), {RECONFIGURE}",
    )


def _job_submit(options: SlurmOptions) -> Iterator[Finding]:
    why = "jobs with --gandiva would start as ordinary ones"
    yield from _needed(options, "JobSubmitPlugins", ("lua",), why, "then restart slurmctld")


def _plugstack(options: SlurmOptions) -> Iterator[Finding]:
    if options.get("PlugStackConfig"):
        yield ok("slurm", "PlugStackConfig", options.get("PlugStackConfig"))
    else:
        line = f"PlugStackConfig={options.file.parent}/plugstack.conf"
        yield error(
            "slurm",
            "PlugStackConfig",
            "not set: sbatch knows no --gandiva",
            f"in {options.file}: {line}, {RECONFIGURE}",
        )


def _processes(options: SlurmOptions) -> Iterator[Finding]:
    why = "a suspended job's processes are stopped for certain by their control group only"
    yield from _exactly(options, "ProctrackType", "proctrack/cgroup", why, RESTART)
    why = "jobs can open GPUs that are not theirs"
    yield from _needed(options, "TaskPlugin", ("task/cgroup",), why, RESTART)
    folder = options.file.parent
    if options.get("ConstrainDevices").lower() == "yes":
        yield ok("slurm", "ConstrainDevices", "ConstrainDevices=yes")
    else:
        yield error(
            "slurm",
            "ConstrainDevices",
            f"ConstrainDevices={options.get('ConstrainDevices') or '(not set)'}: jobs can open GPUs that are "
            "not theirs",
            f"in {folder}/cgroup.conf: ConstrainDevices=yes, then restart every slurmd",
        )


def _grace(options: SlurmOptions) -> Iterator[Finding]:
    match = re.search(r"suspend_grace_time=(\d+)", options.get("PreemptParameters"))
    seconds = int(match[1]) if match else None
    if seconds is not None and seconds <= 2:
        yield ok("slurm", "suspend_grace_time", f"{seconds} s between SIGTSTP and the freezing of a job")
        return
    others = [w for w in options.words("PreemptParameters") if not w.startswith("suspend_grace_time")]
    line = f"PreemptParameters={','.join([*others, 'suspend_grace_time=2'])}"
    if seconds is None:
        yield ok("slurm", "suspend_grace_time", "2 s (Slurm's default)")
    else:
        yield warning(
            "slurm",
            "suspend_grace_time",
            f"each switch waits {seconds} s for processes that have stopped already",
            f"in {options.file}: {line}, {RECONFIGURE}",
        )


def _preemption(options: SlurmOptions) -> Iterator[Finding]:
    """Slurm's own suspending (gang scheduling is the same) and ours would undo each other."""
    modes = {word.upper() for word in options.words("PreemptMode")}
    found = f"PreemptMode={options.get('PreemptMode') or 'OFF'}"
    if modes & {"GANG", "SUSPEND"}:
        yield warning(
            "slurm",
            "PreemptMode",
            f"{found}: Slurm suspends and resumes jobs in turn too, with their memory still on the GPUs",
            f"in {options.file}: PreemptMode=REQUEUE or OFF, {RESTART}",
        )
    else:
        yield ok("slurm", "PreemptMode", found)


def _requeue(options: SlurmOptions) -> Iterator[Finding]:
    if options.get("JobRequeue") == "0":
        yield warning(
            "slurm",
            "JobRequeue",
            "JobRequeue=0: only jobs with --requeue can be moved or preempted by requeue",
            f"in {options.file}: JobRequeue=1, {RECONFIGURE}",
        )
    else:
        yield ok("slurm", "JobRequeue", "jobs may be requeued")


def _accounting(options: SlurmOptions) -> Iterator[Finding]:
    kind = options.get("AccountingStorageType")
    if kind != "accounting_storage/slurmdbd":
        yield error(
            "slurm",
            "accounting",
            f"AccountingStorageType={kind or '(not set)'}: without slurmdbd no user has "
            "an AdminLevel, and sacct knows nothing",
            f"in {options.file}: AccountingStorageType=accounting_storage/slurmdbd, with a slurmdbd",
        )
        return
    yield ok("slurm", "accounting", f"{kind} on {options.get('AccountingStorageHost')}")
    missing = [w for w in ("gres/gpu", "gres/shard") if not options.has("AccountingStorageTRES", w)]
    if missing:
        yield warning(
            "slurm",
            "AccountingStorageTRES",
            f"{', '.join(missing)} is not accounted for",
            f"in {options.file}: AccountingStorageTRES=gres/gpu,gres/shard, then restart slurmctld",
        )


def _same_file(options: SlurmOptions) -> Iterator[Finding]:
    said = options.get("HASH_VAL")
    if said.startswith("Different"):
        yield warning(
            "slurm",
            "configuration",
            f"{options.file} on this host is not the one slurmctld has read",
            f"make it the same on all hosts, {RECONFIGURE}",
        )
    elif said:
        yield ok(
            "slurm", "configuration", f"Slurm {options.release}; {options.file} is what slurmctld has read"
        )


_RULES = (
    _same_file,
    _gres_types,
    _select,
    _default_memory,
    _job_submit,
    _plugstack,
    _processes,
    _grace,
    _preemption,
    _requeue,
    _accounting,
)


def judge_admin_level(reply: str, user: str) -> Finding:
    """From `sacctmgr -nP show user name=USER format=user,adminlevel`."""
    levels = dict(line.split("|", 1) for line in reply.splitlines() if "|" in line)
    level = levels.get(user, "")
    if level in ("Operator", "Administrator"):
        return ok("slurm", "AdminLevel", f"{user} has AdminLevel={level}")
    if user not in levels:
        return error(
            "slurm",
            "AdminLevel",
            f"Slurm's accounting does not know the user {user}",
            f"sacctmgr add user {user} account=root adminlevel=operator",
        )
    return error(
        "slurm",
        "AdminLevel",
        f"{user} has AdminLevel={level or 'None'}: it may not bind, suspend or requeue jobs of others",
        f"sacctmgr modify user {user} set adminlevel=operator",
    )
