# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's options in force, as `scontrol show config` prints them. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from controller.checks.finding import Finding, Level, Subject
from controller.settings.schema import ApiSettings

_LINE = re.compile(r"^([A-Za-z_]+)(?:\[\d+\])?\s*= ?(.*)$")
_NOTHING = ("(null)", "(null type)", "N/A", "")
RESTART = "then restart slurmctld and every slurmd"
RECONFIGURE = "then scontrol reconfigure"
MIN_BUCKET, MIN_PER_SECOND = 200, 20
"""Requests that slurmctld must take of the controller's user, at once and in a second: a cycle of the loop
makes up to 4, each switch about 10."""


@dataclass(frozen=True)
class SlurmOptions:
    values: Mapping[str, str]
    """By lower-case name; of several lines (`Prolog[0]`, `Prolog[1]`) all, separated by commas."""

    @classmethod
    def parse(cls, text: str) -> "SlurmOptions":
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
        return [word for word in self.get(key).split(",") if word]

    def has(self, key: str, word: str) -> bool:
        """In any case."""
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
        return (self.get("SlurmctldHost") or "slurmctld").split(",")[0].split("(")[0]


def judge_private_data(options: SlurmOptions, api: ApiSettings) -> Finding:
    """Whether the API hides jobs where Slurm, or a token file, means them to be hidden."""
    subject = Subject("slurm", "PrivateData")
    found = f"PrivateData={options.get('PrivateData') or 'none'}"
    if api.private_data:
        return subject.ok(f"{found}, and api.private_data is on")
    if api.token_file is None and not options.has("PrivateData", "jobs"):
        return subject.ok(found)
    if api.token_file is not None:
        found = f"api.token_file = {api.token_file}"
    return subject.warning(
        f"{found}, but the controller's API shows the jobs of all users to every user",
        "in gandiva.toml: [api] private_data = true and token_file, then systemctl restart gandiva",
    )


def judge_options(options: SlurmOptions) -> Iterator[Finding]:
    yield from _same_file(Subject("slurm", "configuration"), options)
    shards = "jobs that take turns are bound to shards of GPUs"
    yield _needed(options, "GresTypes", ("gpu", "shard"), shards, RESTART)
    yield from _select(options)
    yield _default_memory(Subject("slurm", "default memory"), options)
    ordinary = "jobs with --gandiva would start as ordinary ones"
    yield _needed(options, "JobSubmitPlugins", ("lua",), ordinary, "then restart slurmctld")
    yield _plugstack(Subject("slurm", "PlugStackConfig"), options)
    stops = "only its control group stops all processes of a suspended job"
    yield _needed(options, "ProctrackType", ("proctrack/cgroup",), stops, RESTART, keep=False)
    risk = "jobs can open GPUs that are not theirs"
    yield _needed(options, "TaskPlugin", ("task/cgroup",), risk, RESTART)
    slurmds = "then restart every slurmd"
    yield _needed(options, "ConstrainDevices", ("yes",), risk, slurmds, keep=False)
    yield _grace(Subject("slurm", "suspend_grace_time"), options)
    yield _preemption(Subject("slurm", "PreemptMode"), options)
    risk = "only jobs with --requeue can be moved or preempted by requeue"
    yield _on(options, "JobRequeue", "1", "jobs may be requeued", risk)
    yield from _rate_limit(options)
    risk = "each requeue empties a job's output file, unless it has --open-mode=append"
    yield _on(options, "JobFileAppend", "0", "what is requeued goes on with its output file", risk)
    yield from _accounting(options)


def _needed(
    options: SlurmOptions, key: str, words: Sequence[str], why: str, then: str, *, keep: bool = True
) -> Finding:
    """An option that must have these words, beside others where it is to `keep` them."""
    subject = Subject("slurm", key)
    missing = [word for word in words if not options.has(key, word)]
    found = f"{key}={options.get(key) or '(not set)'}"
    if not missing:
        return subject.ok(found)
    line = f"{key}={','.join([*options.words(key), *missing] if keep else missing)}"
    file = options.file.parent / "cgroup.conf" if key == "ConstrainDevices" else options.file
    return subject.error(f"{found}: {why}", f"in {file}: {line}, {then}")


def _select(options: SlurmOptions) -> Iterator[Finding]:
    why = "only select/cons_tres schedules GPUs"
    yield _needed(options, "SelectType", ("select/cons_tres",), why, RESTART, keep=False)
    key = "SelectTypeParameters"
    why = "a job could not hold shards of several GPUs"
    yield _needed(options, key, ("MULTIPLE_SHARING_GRES_PJ",), why, RESTART)
    if not any("MEMORY" in word.upper() for word in options.words(key)):
        yield Subject("slurm", key).warning(
            f"{options.get(key)}: host memory is not counted, so jobs may take each other's",
            f"in {options.file}: {key}=CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ,LL_SHARED_GRES, {RESTART}",
        )


def _default_memory(subject: Subject, options: SlurmOptions) -> Finding:
    for key in ("DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU"):
        if options.get(key) not in ("", "UNLIMITED", "0"):
            return subject.ok(f"{key}={options.get(key)}")
    return subject.warning(
        "a job that names no memory gets all of its node's, and no other job can share its GPUs",
        f"in {options.file}: DefMemPerCPU=MIB (memory of a node divided by its CPUs), {RECONFIGURE}",
    )


def _plugstack(subject: Subject, options: SlurmOptions) -> Finding:
    if options.get("PlugStackConfig"):
        return subject.ok(options.get("PlugStackConfig"))
    line = f"PlugStackConfig={options.file.parent}/plugstack.conf"
    return subject.error("not set: sbatch knows no --gandiva", f"in {options.file}: {line}, {RECONFIGURE}")


def _grace(subject: Subject, options: SlurmOptions) -> Finding:
    match = re.search(r"suspend_grace_time=(\d+)", options.get("PreemptParameters"))
    seconds = int(match[1]) if match else 2  # Slurm's default
    if seconds <= 2:
        return subject.ok(f"{seconds} s between SIGTSTP and the freezing of a job")
    others = [w for w in options.words("PreemptParameters") if not w.startswith("suspend_grace_time")]
    line = f"PreemptParameters={','.join([*others, 'suspend_grace_time=2'])}"
    return subject.warning(
        f"each switch waits {seconds} s for processes that have stopped already",
        f"in {options.file}: {line}, {RECONFIGURE}",
    )


def _preemption(subject: Subject, options: SlurmOptions) -> Finding:
    """Slurm's own suspending, as in gang scheduling, and the controller's would undo each other."""
    modes = {word.upper() for word in options.words("PreemptMode")}
    found = f"PreemptMode={options.get('PreemptMode') or 'OFF'}"
    if modes & {"GANG", "SUSPEND"}:
        return subject.warning(
            f"{found}: Slurm suspends and resumes jobs in turn too, with their memory still on the GPUs",
            f"in {options.file}: PreemptMode=REQUEUE or OFF, {RESTART}",
        )
    return subject.ok(found)


def _rate_limit(options: SlurmOptions) -> Iterator[Finding]:
    """Slurm's limit of a user's requests (slurm.conf(5), from 23.02 on): those of root and SlurmUser are
    free, the controller's are not."""
    key = "SlurmctldParameters"
    if not options.has(key, "rl_enable"):
        return
    words = options.words(key)
    given = {
        name.lower(): int(value) for name, _, value in (w.partition("=") for w in words) if value.isdigit()
    }
    bucket, rate = given.get("rl_bucket_size", 30), given.get("rl_refill_rate", 2)
    per_second = rate / max(1, given.get("rl_refill_period", 1))
    subject, found = Subject("slurm", "rl_enable"), f"{bucket} requests at once, then {per_second:g} a second"
    if bucket >= MIN_BUCKET and per_second >= MIN_PER_SECOND:
        yield subject.ok(found)
        return
    ours = ("rl_bucket_size=", "rl_refill_rate=", "rl_refill_period=")
    others = [word for word in words if not word.lower().startswith(ours)]
    line = ",".join([*others, "rl_bucket_size=500", "rl_refill_rate=100"])
    yield subject.warning(
        f"each user has {found}; the controller needs {MIN_BUCKET} and {MIN_PER_SECOND}: beyond that its "
        "suspends and resumes fail with RPC rate limit exceeded, or wait seconds",
        f"in {options.file}: {key}={line}, {RECONFIGURE}",
    )


def _on(options: SlurmOptions, key: str, default: str, fine: str, risk: str) -> Finding:
    """An option that should be 1. `risk`: what it means that it is not."""
    subject = Subject("slurm", key)
    if (options.get(key) or default) != "0":
        return subject.ok(fine)
    return subject.warning(f"{key}=0: {risk}", f"in {options.file}: {key}=1, {RECONFIGURE}")


def _accounting(options: SlurmOptions) -> Iterator[Finding]:
    database = ("accounting_storage/slurmdbd",)
    why = "without slurmdbd no user has an AdminLevel, and sacct has no jobs"
    yield _needed(options, "AccountingStorageType", database, why, "with a slurmdbd", keep=False)
    words, why = ("gres/gpu", "gres/shard"), "sacct and sreport do not say who had which GPUs"
    found = _needed(options, "AccountingStorageTRES", words, why, "then restart slurmctld")
    yield replace(found, level=Level.WARNING) if found.change else found


def _same_file(subject: Subject, options: SlurmOptions) -> Iterator[Finding]:
    said = options.get("HASH_VAL")
    if said.startswith("Different"):
        yield subject.warning(
            f"{options.file} on this host is not the one slurmctld has read",
            f"make it the same on all hosts, {RECONFIGURE}",
        )
    elif said:
        yield subject.ok(f"Slurm {options.release}; {options.file} is what slurmctld has read")


def judge_admin_level(reply: str, user: str) -> Finding:
    """From `sacctmgr -nP show user name=USER format=user,adminlevel`."""
    subject = Subject("slurm", "AdminLevel")
    levels = dict(line.split("|", 1) for line in reply.splitlines() if "|" in line)
    level = levels.get(user, "")
    if level in ("Operator", "Administrator"):
        return subject.ok(f"{user} has AdminLevel={level}")
    found, do = f"has AdminLevel={level or 'None'}", f"modify user {user} set"
    if user not in levels:
        found, do = "is unknown to Slurm's accounting", f"add user {user} account=root"
    lacks = "it may not bind, suspend or requeue jobs of others"
    return subject.error(f"{user} {found}: {lacks}", f"sacctmgr {do} adminlevel=operator")
