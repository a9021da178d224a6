# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva run` on a cluster whose administrators have never heard of Gandiva: no plugin, no prolog, no Lua,
no shards, and GPUs of one type. What only a real Slurm can show of an allocation: its end, the loss of a node
or of slurmctld, and PyTorch in its steps."""

from __future__ import annotations

import io
import os
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.cluster import MiniCluster
from container.spec import ClusterSpec
from tests.live.conftest import own_name, running
from tests.live.support import PYTHON, Site
from tests.live.test_studies import FOLDER, STUDY, TRIAL, alone, digests, run, trials, write

pytestmark = [pytest.mark.live, pytest.mark.nightly]

OF_THE_SITE = """\
ClusterName=mini
SlurmctldHost=ctl
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=db
AccountingStorageTRES=gres/gpu
ProctrackType=proctrack/cgroup
NodeName=n[1-2] CPUs=16 RealMemory=8192 Gres=gpu:a100:4
PartitionName=gpu Nodes=n[1-2] Default=YES
"""
GRES = "AutoDetect=off\nNodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n"
PRODUCT = ("gandiva", "plugstack.conf", "plugstack.conf.d", "prolog.d", "epilog.d", "job_submit.lua")
ROOT = Path(__file__).resolve().parents[2]
AWAY_SECONDS = 20.0
DDP = """\
[study]
name = "study"
[policy]
name = "gandiva"
gandiva.slice_seconds = 3
[trial]
command = "python3 -m gandiva.launch {folder}/ddp.py --steps 40 --store {{store}} --log {{name}}.jsonl"
directory = "{folder}"
environment = {{ PYTHONPATH = "/opt/gandiva/jobside", OMP_NUM_THREADS = "1" }}
gpus = 2
[[trials]]
name = "a"
[[trials]]
name = "b"
[[trials]]
name = "c"
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Two nodes with four GPUs each."""
    if existing := os.environ.get("GANDIVA_CLUSTER"):
        mini = MiniCluster.attach(existing)
        make_plain(mini)
        yield mini
        return
    request.getfixturevalue("engine_ready")
    release = os.environ.get("RELEASE") or "forky"
    spec = ClusterSpec(name=own_name("-plain"), release=release, torch=release == "forky")
    with running(spec, request.session) as mini:
        make_plain(mini)
        yield mini


class PlainSite(Site):
    """sbatch has no options of Gandiva's."""

    def submit(self, user: str, command: str, *options: str, check: bool = True) -> int:
        plain = (option for option in options if option != "--no-gandiva")
        return super().submit(user, command, *plain, check=check)


@pytest.fixture
def site(cluster: MiniCluster) -> Site:
    """No controller."""
    return PlainSite(cluster, nodes=cluster.spec.node_names)


def make_plain(mini: MiniCluster) -> None:
    """Take what Gandiva's administrators have installed away again."""
    for host in mini.spec.hosts:
        if host.role == "db":
            continue
        conf = mini.read_file(host.name, "/etc/slurm/slurm.conf")
        if "include gandiva" in conf:
            mini.write_file(
                host.name, "/etc/slurm/slurm.conf", conf.replace("include gandiva/slurm.conf", OF_THE_SITE)
            )
        mini.write_file(host.name, "/etc/slurm/gres.conf", GRES)
        mini.exec(host.name, ["rm", "-rf", *(f"/etc/slurm/{name}" for name in PRODUCT)])
    daemons = [mini.service("ctl", "slurmctld")]
    daemons += [mini.service(node, "slurmd") for node in mini.spec.node_names]
    for daemon in daemons:
        daemon.stop()
    for daemon in daemons:
        daemon.start()
    for node in mini.spec.node_names:
        mini.exec("ctl", ["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)


def test_eight_trials_go_on_while_slurmctld_is_away(site: Site) -> None:
    """Slices need no answer of Slurm's."""
    command = f"{TRIAL} --minibatch-ms 300 --seed {{seed}}"
    write(site, STUDY.format(command=command, seeds=list(range(1, 9))))
    job = run(site, f"gandiva run {FOLDER}.toml", "--gres=gpu:4", "-N1")
    site.wait("eight trials under way", lambda: len(steps_done(site)) == 8, timeout_seconds=90)
    slurmctld = site.cluster.service("ctl", "slurmctld")
    slurmctld.kill(9)
    before = steps_done(site)
    time.sleep(AWAY_SECONDS)
    after = steps_done(site)
    slurmctld.start()
    assert all(after[number] > before[number] for number in before), (before, after)
    assert site.wait_ended([job], timeout_seconds=240) == {job: "COMPLETED"}, site.output("alice", job)
    found = trials(site)
    assert {trial["state_name"] for trial in found.values()} == {"COMPLETED"}
    assert not [name for name, trial in found.items() if trial.get("restarts")]
    assert digests(site) == alone(site, [f"--seed {seed}" for seed in range(1, 9)])


def steps_done(site: Site) -> dict[str, int]:
    """The last step of each trial, by the number in the name of its output."""
    script = f"cd {FOLDER}/trials && grep -o 'step [0-9]*' *.out /dev/null"
    said = site.cluster.exec("login", script, user="alice", check=False).stdout
    return {name: int(step) for name, step in re.findall(r"(\d+)\.out:step (\d+)", said)}


def test_a_chain_of_jobs_passes_its_time_limits(site: Site) -> None:
    """Each saves its trials before its time limit, and the next goes on at the same steps."""
    command = f"{TRIAL} --minibatch-ms 1000 --seed {{seed}} --store {{store}}"
    write(site, STUDY.format(command=command, seeds=[1, 2, 3, 4]))
    script = f"gandiva run {FOLDER}.toml; echo $? >> {FOLDER}/chain"
    job = run(site, script, "--gres=gpu:2", "-N1", "-t", "1", "--array=1-9%1")
    said: list[str] = []

    def over() -> bool:
        done = site.cluster.exec("login", f"cat {FOLDER}/chain", user="alice", check=False)
        said[:] = done.stdout.split()
        return "0" in said

    site.wait("the end of the study", over, timeout_seconds=600)
    passed = said[: said.index("0")]
    assert set(passed) == {"75"} and len(passed) >= 3, f"job {job}: {said}"
    assert sorted(digests(site)) == alone(site, [f"--seed {seed}" for seed in (1, 2, 3, 4)])


def test_a_study_goes_on_after_the_loss_of_a_node(site: Site) -> None:
    """Slurm ends the job and has it in the queue again; trials go on from what was saved while they ran, or
    begin anew. One is a gang on both nodes."""
    command = f"{TRIAL} --minibatch-ms 400 --seed {{seed}} --store {{store}}"
    wide = f"{TRIAL} --minibatch-ms 200 --seed 9 --gpus 2 --rank $SLURM_PROCID --ranks 2"
    text = STUDY.format(command=command, seeds=[1, 2, 3, 4])
    text += f"[suspend]\nsave_every_seconds = 4\n[[trials]]\nname = 'wide'\ngpus = 4\ncommand = '{wide}'\n"
    write(site, text)
    job = run(site, f"gandiva run {FOLDER}.toml", "--gres=gpu:2", "-N2", "--requeue")
    site.wait("all trials under way", lambda: len(steps_done(site)) == 5, timeout_seconds=90)
    site.wait("a checkpoint of each", lambda: len(saved(site)) == 4, timeout_seconds=90)
    site.cluster.service("n2", "slurmd").kill(9)
    # Nothing is left there: steps that come back with the node are killed, and those of the next run too.
    site.cluster.exec("n2", "pkill -9 slurmstepd; pkill -9 -u alice", check=False)
    site.cluster.exec("ctl", ["scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test"])
    site.wait_state(job, "PENDING", timeout_seconds=60)
    site.cluster.service("n2", "slurmd").start()
    # It comes back by itself (ReturnToService=2), and Slurm starts the job anew two minutes later. Where that
    # is at once, by an update of its StartTime, 24.11 starts no step there.
    ended = site.wait_ended([job], timeout_seconds=400)
    assert ended == {job: "COMPLETED"}, site.output("alice", job)
    found = trials(site)
    assert {trial["state_name"] for trial in found.values()} == {"COMPLETED"}
    words = [f"--seed {seed}" for seed in (1, 2, 3, 4)]
    assert set(alone(site, words)) <= set(digests(site))
    assert len(digests(site)) == 6, "four, and two ranks of the gang: each came to its end once"
    assert (
        len(site.cluster.exec("login", f"grep -l 'goes on from step' {FOLDER}/trials/*.out").stdout.split())
        == 4
    )


def saved(site: Site) -> set[str]:
    """Trials with a generation in their stores."""
    script = f"cd {FOLDER}/checkpoints && ls -d */generation-*"
    said = site.cluster.exec("login", script, user="alice", check=False).stdout
    return {line.partition("/")[0] for line in said.split()}


def test_trainings_with_pytorch_take_turns(site: Site) -> None:
    """Three on two GPUs, each of two ranks with DistributedDataParallel: they compute the same."""
    if not site.cluster.spec.torch:
        pytest.skip("no PyTorch on these hosts")
    script = (Path(__file__).parent / "ddp_on_mock_gpus.py").read_text()
    folder = "/home/alice/ddp"
    site.cluster.exec("login", ["rm", "-rf", folder])
    site.cluster.write_file("login", f"{folder}/ddp.py", script)
    site.cluster.exec("login", ["chown", "alice", folder])
    write(site, DDP.format(folder=folder))
    job = run(site, f"gandiva run {FOLDER}.toml", "--gres=gpu:2", "-N1", "--mem=4G")
    assert site.wait_ended([job], timeout_seconds=300) == {job: "COMPLETED"}, site.output("alice", job)
    logs = [site.cluster.read_file("login", f"{folder}/{name}.jsonl") for name in "abc"]
    assert logs[0] == logs[1] == logs[2] and logs[0].count("\n") == 40


def test_steps_keep_the_contract_of_the_cluster_port(site: Site) -> None:
    """With a real srun and scancel, on two nodes; the same tests run with a fake one without Slurm."""
    sources = io.BytesIO()
    with tarfile.open(fileobj=sources, mode="w") as tar:
        for path in (ROOT / "tests/__init__.py", *(ROOT / "tests/contract").glob("*.py")):
            tar.add(path, path.relative_to(ROOT))
    folder = "/home/alice/contract"
    site.cluster.exec("login", f"rm -rf {folder}; mkdir {folder}", user="alice")
    site.cluster.exec("login", f"tar x -C {folder}", user="alice", stdin=sources.getvalue())
    options = f"-p no:cacheprovider --basetemp {folder}/tmp -o asyncio_mode=auto"
    script = f"cd {folder} && {PYTHON} -m pytest -q tests/contract/steps_in_allocation.py {options}"
    job = run(site, script, "--gres=gpu:4", "-N2")
    ended = site.wait_ended([job], timeout_seconds=420)
    said = site.output("alice", job)
    assert ended == {job: "COMPLETED"} and re.search(r"^\d\d passed in", said, re.MULTILINE), said
