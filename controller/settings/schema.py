# SPDX-License-Identifier: GPL-2.0-or-later
"""The schema of gandiva.toml. Times are in seconds, sizes in bytes; the keys say so."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints, model_validator
from pydantic.fields import FieldInfo

from controller.model import MAX_WEIGHT, SuspendMethod, Trespass, Unsuspendable
from controller.settings import base, places
from controller.settings.base import Section, setting, split_address, table
from controller.settings.policies import PolicySettings
from controller.settings.simulation import SimulationSettings

Weight = Annotated[float, Field(ge=0.1, le=MAX_WEIGHT)]
LowerName = Annotated[str, StringConstraints(to_lower=True)]
"""As Slurm keeps the names of accounts and QOS."""

API_PORT = 6822
SSH_PORT = 22


class ClusterSettings(Section):
    """How the controller talks to Slurm."""

    adapter: Literal["pyslurm", "command"] = setting(
        places.ADAPTER,
        "pyslurm uses Slurm's C library (fast); command runs squeue, scontrol and sacct, for sites whose "
        "Slurm has no matching pyslurm.",
        restart=True,
    )
    rpc_deadline_seconds: float = setting(
        15.0, "Longest wait for one answer of Slurm before it counts as unavailable.", ge=0.5, le=600
    )
    shares_interval_seconds: Annotated[float, Field(ge=1, le=86400)] = setting(
        60.0,
        "How often the shares of accounts and users are read (sshare), where the policy uses them.",
    )
    reserve_seconds: Annotated[float, Field(ge=0, le=86400)] = setting(
        900.0,
        "While a job migrates, a small job of the controller's own keeps its new GPUs from ordinary jobs, "
        "for so long at most. Where that job cannot start, the migration does not begin. 0: there is none, "
        "for partitions without ordinary jobs.",
    )
    controller_host: base.HostName = setting(
        "localhost",
        "Host that runs the Gandiva controller, as login nodes reach it. Clients make the default of api.url "
        "from it.",
    )


class DaemonSettings(Section):
    """Starting and stopping of the controller."""

    standby: bool = setting(
        True,
        "A controller that is started while another one leads is on standby, and takes over when that one "
        "ends. false: it refuses to start.",
    )
    at_stop: Literal["leave", "release"] = setting(
        "leave",
        "What becomes of jobs when SIGTERM ends the controller. leave: they stay as they are, and suspended "
        "ones wait for the next controller (right for restarts and upgrades). release: for a longer time "
        "without a controller; suspended jobs go on where their GPUs are free, and waiting jobs are given to "
        "Slurm as ordinary jobs on whole GPUs. SIGINT always leaves.",
    )
    stop_deadline_seconds: Annotated[float, Field(ge=1, le=3600)] = setting(
        45.0, "Longest time for an orderly stop; must be less than TimeoutStopSec= of the systemd unit."
    )


class LoopSettings(Section):
    """The loop: observe, decide, act, record."""

    interval_seconds: Annotated[float, Field(ge=0.05, le=60)] = setting(
        1.0,
        "Time between two observations of Slurm and of the nodes: how soon a new job or an end is noticed.",
    )


class NodesSettings(Section):
    """How the controller reaches the agents on the GPU nodes (SSH with a forced command)."""

    ssh_user: base.UserName = setting(
        "root", "User that the forced command belongs to on the nodes. The agent needs root."
    )
    ssh_port: int = setting(SSH_PORT, "Port of sshd on the nodes.", ge=1, le=65535)
    ssh_key: base.AbsolutePath = setting(
        Path("/etc/gandiva/agent_key"), "Private key of the controller; readable by it alone."
    )
    known_hosts: base.AbsolutePath = setting(
        Path("/etc/gandiva/known_hosts"),
        "Host keys of the nodes, as ssh-keyscan prints them. A node with another key is refused.",
    )
    connect_deadline_seconds: float = setting(
        10.0, "Longest wait for a connection to a node.", ge=0.5, le=300
    )
    observe_deadline_seconds: Annotated[float, Field(ge=0.1, le=60)] = setting(
        3.0,
        "Longest wait for the samples of all nodes. A node that is late counts as not answering: nothing "
        "is done to its jobs.",
    )
    addresses: dict[base.NodeName, base.Address] = setting(
        {},
        'Where to reach a node whose address is not the one Slurm knows: node name = "host" or "host:port".',
    )
    gpu_products: dict[str, list[str]] = setting(
        {},
        "For `gandiva check`: what the driver may call the GPUs of a type, whose name does not say it or "
        'says it of several: a100 = ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"].',
    )


class SuspendSettings(Section):
    """How a job is taken off its GPUs and put back."""

    mode: Literal["slurm", "node"] = setting(
        "slurm",
        "slurm: suspended jobs are SUSPENDED in Slurm too; their cores are free and their time limit "
        "stands still. node: they pause on the node while Slurm says RUNNING, for tools that misread "
        "SUSPENDED; their cores stay taken and their time limit runs on.",
        restart=True,
    )
    transparent_fallback: bool = setting(
        True,
        "Try the CUDA driver's checkpoint for a single-GPU job that does not stop by itself (never "
        "attached, or its session failed).",
    )
    step_deadline_seconds: Annotated[float, Field(ge=0.5, le=3600)] = setting(
        60.0,
        "Longest wait for all ranks to reach one step boundary. A job whose steps take longer cannot be "
        "suspended.",
    )
    offload_deadline_seconds: float = setting(
        60.0, "Longest time for the copy of the GPU state to host memory.", ge=0.5, le=3600
    )
    save_deadline_seconds: Annotated[float, Field(ge=1, le=3600)] = setting(
        600.0,
        "Longest time for a job's sessions to write its state into their checkpoint store.",
    )
    save_every_seconds: Annotated[float, Field(ge=0, le=2592000)] = setting(
        0.0,
        "A job whose sessions have a checkpoint store writes its state there this often, counted in seconds "
        "on GPUs: about so much is lost where its node fails. Off its GPUs it does so after half the time, "
        "or before it leaves them where it cannot write off them; on them, where it stands still meanwhile, "
        "after three quarters to all of it, or one and a half times as much where others wait for them. 0: "
        "only when it migrates or is stopped.",
    )
    resume_deadline_seconds: float = setting(
        120.0, "Longest time for the GPU state to be back on the GPUs.", ge=0.5, le=3600
    )
    start_deadline_seconds: float = setting(
        60.0, "Longest wait for a released job to be running in Slurm.", ge=1, le=3600
    )
    residual_limit_bytes: base.ByteSize = setting(
        3 << 29,
        "Memory that a job with sessions may leave on each GPU while it is off it. The driver takes the CUDA "
        "context of a single process off (release_context); where a job has several processes on a node, "
        "their contexts (0.3 to 0.5 GB each) and NCCL communicators (about 0.6 GB each) stay. The default, "
        "1.5 GiB, is one process per GPU with one communicator, and half as much again. 0 demands an empty "
        "GPU: then no such job is ever suspended.",
    )
    residual_fraction: Annotated[float, Field(ge=0, le=1)] = setting(
        0.1,
        "Part of a GPU's memory that all jobs which are off it may keep there together. A job that would "
        "go beyond it keeps the GPU; `gandiva explain` says why.",
    )
    release_context: bool = setting(
        True,
        "After a cooperative offload also take the CUDA context off the GPU, where the driver can (570 or "
        "newer, one process).",
    )
    retry_after_seconds: Annotated[float, Field(ge=0, le=86400)] = setting(
        300.0, "After a failed suspend the job keeps its GPUs for this long before it is asked again."
    )
    unsuspendable: base.WayOut = setting(
        Unsuspendable.KEEP,
        "What becomes of a job whose turn is over and that cannot be suspended (two GPU processes without a "
        "session, for example). keep: it keeps its GPUs; gandiva check and gandiva report warn of it. "
        "store: its sessions save it into its checkpoint store, it is stopped and starts again from there; "
        "a job without a store keeps its GPUs. requeue: as store, and a job without one is stopped too, and "
        "starts again from a checkpoint of its own. One whose user said --no-requeue or --gandiva-migrate=no "
        "keeps its GPUs in both cases. cancel: it is cancelled, with the reason in Slurm's "
        "comment of the job.",
    )
    trespass: base.OfTrespass = setting(
        Trespass.REQUEUE,
        "What becomes of a job that has had memory for half a minute on GPUs that are not its own now. No "
        "other job is put there meanwhile. keep: gandiva status names it. requeue: it is stopped and starts "
        "again from its own checkpoint, unless its user said --no-requeue. cancel: it is cancelled, with the "
        "reason in Slurm's comment of the job.",
    )
    unsuspendable_tries: Annotated[int, Field(ge=1, le=1000)] = setting(
        3, "So many suspends of a job must fail in a row before suspend.unsuspendable counts for it."
    )
    preempt_exempt_ratio: Annotated[float, Field(ge=0, le=1000)] = setting(
        10.0,
        "A job keeps its GPUs until it has run on them this many times as long as its last switch took, off "
        "its GPUs and back: Slurm's PreemptExemptTime, but measured. Without it jobs of short queues switch "
        "more than they train. 0: no such time. The policy gandiva has slice_seconds for this.",
    )


class RequestsSettings(Section):
    """Defaults of the flags of sbatch, and limits of weights."""

    weight: float = setting(1.0, "Default of --gandiva-weight.", ge=0.1, le=MAX_WEIGHT)
    max_weight: Weight = setting(
        4.0,
        "Largest weight that counts for jobs whose account and QOS have no limit of their own below. A "
        "weight of W slows the other jobs of a node as much as W jobs of weight 1 do: with 4 no job of "
        "weight 1 takes more than four times as long as if all weights were equal.",
    )
    max_weight_by_account: dict[LowerName, Weight] = setting(
        {},
        "Account -> largest weight of its jobs, above or below max_weight. A child account does not inherit.",
    )
    max_weight_by_qos: dict[LowerName, Weight] = setting(
        {},
        "QOS -> largest weight of its jobs. It comes before the account's, as Slurm's own limits do: a QOS "
        "can allow more than the account does, and less.",
    )
    pack: bool = setting(
        False,
        "Default of --gandiva-pack: whether a job may share its GPUs with another one at the same time, "
        "where policy.moves names pack.",
    )
    migrate: bool = setting(
        True,
        'Default of --gandiva-migrate. false: suspend.unsuspendable = "requeue" does not requeue the job.',
    )
    suspend: base.Method = setting(
        SuspendMethod.COOPERATIVE,
        "Default of --gandiva-suspend. cooperative: the training script stops at a step boundary and moves "
        "its state; transparent: the CUDA driver does it; requeue: the job is stopped and starts again "
        "from its own checkpoint.",
    )

    def weight_limit(self, account: str, qos: str) -> tuple[float, str]:
        """The largest weight that counts for a job, and whose limit that is: that of its QOS, else its
        account's, else the site's, as with Slurm's own limits."""
        if (limit := self.max_weight_by_qos.get(qos.lower())) is not None:
            return limit, f"qos {qos}"
        if (limit := self.max_weight_by_account.get(account.lower())) is not None:
            return limit, f"account {account}"
        return self.max_weight, "site"


class JournalSettings(Section):
    """The controller's memory: decisions, slices, jobs."""

    path: base.AbsolutePath = setting(
        Path("/var/lib/gandiva/journal.sqlite"),
        "SQLite file, on a local disk (WAL mode does not work on network file systems).",
        restart=True,
    )
    retention_days: float = setting(
        90.0, "How long ended jobs and their use of GPUs are kept for reports.", ge=0.01, le=36500
    )
    detail_days: Annotated[float, Field(ge=0.01, le=36500)] = setting(
        14.0,
        "How long details are kept: slices, decisions with their reasons, events. 2,000 jobs that take turns "
        "every minute make about 100 MB of them a day.",
    )


class ApiSettings(Section):
    """The read-only HTTP API that `gandiva report`, `top`, `explain` and `status` use."""

    listen: base.ListenAddress = setting(
        f"0.0.0.0:{API_PORT}",
        "Address and port the daemon listens on. All hosts that reach it can read job names and users, "
        "unless private_data is on.",
        restart=True,
    )
    private_data: bool = setting(
        False,
        "true: only callers with the token of token_file see jobs; others see figures: /v1/status without "
        "problems and events, /metrics and /healthz. For sites whose slurm.conf has PrivateData=jobs.",
        restart=True,
    )
    token_file: base.AbsolutePath | None = setting(
        None,
        "File with the token that private_data asks for; hides nothing while that is false. One line of 16 "
        "to 256 characters, owned by root or the daemon's user, mode 0640 or 0600. Commands of users who may "
        "read it, or have a copy that GANDIVA_API_TOKEN_FILE names, send it along.",
        restart=True,
    )
    url: base.Url | None = setting(
        None, "Where clients find the API. Default: http://<cluster.controller_host>:<port of api.listen>."
    )

    @model_validator(mode="after")
    def _private_data_and_token(self) -> "ApiSettings":
        if self.private_data and self.token_file is None:
            raise ValueError("private_data = true needs a token_file: without one no command could show jobs")
        return self


class LogSettings(Section):
    """The daemon's log."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Least severe message that is logged."
    )
    debug: list[Literal["cluster", "nodes", "executor", "policy", "journal", "api"]] = setting(
        [],
        "Parts of the controller that log at level debug, at any log.level: cluster (calls to Slurm), nodes "
        "(requests to agents), executor (steps of operations), policy (decisions and their reasons), "
        "journal, api (requests of clients). Takes effect at a reload.",
    )
    format: Literal["text", "json"] = setting("text", "One line per message for people, or one JSON object.")
    file: base.AbsolutePath | None = setting(
        None, "Log file; reopened at SIGHUP. Default: standard error, which systemd puts into its journal."
    )


class Settings(Section):
    """The whole file."""

    cluster: ClusterSettings = table()
    daemon: DaemonSettings = table()
    loop: LoopSettings = table()
    nodes: NodesSettings = table()
    suspend: SuspendSettings = table()
    requests: RequestsSettings = table()
    policy: PolicySettings = table()
    journal: JournalSettings = table()
    api: ApiSettings = table()
    log: LogSettings = table()
    simulation: SimulationSettings = table()

    @property
    def api_url(self) -> str:
        """Where clients find the API."""
        if self.api.url is not None:
            return self.api.url
        _, port = split_address(self.api.listen, API_PORT)
        return f"http://{self.cluster.controller_host}:{port}"


def takes_restart(field: FieldInfo) -> bool:
    """A change of this key takes effect at the next start of the daemon only."""
    return isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("restart") is True


def needs_restart(old: BaseModel, new: BaseModel, prefix: str = "") -> list[str]:
    """Keys (`table.key`) that differ and take effect only when the daemon starts anew."""
    keys: list[str] = []
    for name, field in type(old).model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, BaseModel):
            keys += needs_restart(before, after, f"{prefix}{name}.")
        elif before != after and takes_restart(field):
            keys.append(prefix + name)
    return keys
