# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the cluster port on a real Slurm, for both of its real adapters.

The port runs on the host of slurmctld as the user `gandiva`, as the controller does; alice submits. What
Slurm does when it is asked is what these tests show; no recorded reply can.

Each test of the contract is a subtest here, because they mostly wait: four run at the same time, on a pair of
nodes each. To run one by itself, set CONTRACT to a part of its name.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from container.cluster import MiniCluster
from container.spec import ClusterSpec, NodeGroup, Partition
from controller.cluster.gres import indices_of
from controller.cluster.hostlist import expand
from controller.cluster.port import ClusterPort, ClusterView
from controller.model import GpuId, GpuSet, JobId
from tests.contract import port_server
from tests.contract.adding_up import AddedUp
from tests.contract.cases import Case, cases
from tests.contract.cluster_port_contract import RealSlurmContract, until
from tests.contract.remote_port import RemotePort
from tests.live.conftest import own_name, running

DEADLINE_SECONDS = 60.0
HANG_SECONDS = 5.0
"""The deadline of calls of a slurmctld that hangs: each of them takes so long."""
TEST_SECONDS = 600.0
"""A test that takes so long hangs."""
SERVER = "/opt/gandiva/tests/port_server.py"
SERVER_SOURCE = Path(port_server.__file__).read_text()
PYTHON = "/opt/gandiva/venv/bin/python"
CLEAR = """
for i in $(seq 600); do
    jobs=$(squeue --noheader --format=%A --partition="$1" | sort -u)
    # Twice where needed: a job that was being requeued when it was cancelled may come back.
    [ -z "$jobs" ] || scancel --quiet $jobs
    [ "$jobs$(sinfo --noheader --format=%T --partition="$1" | sort -u)" = idle ] && exit
    [ $i != 100 ] || scontrol update nodename="$2" state=resume
    sleep 0.1
done
squeue --partition="$1"; sinfo --partition="$1"; exit 1
"""
STOPPED = """
for i in $(seq 600); do
    states=$(grep -h ^State: /proc/$(cat /run/slurm/slurmctld.pid)/task/*/status | sort -u)
    [ "$states" = "State:\tT (stopped)" ] && exit
    sleep 0.1
done
exit 1
"""


@dataclass(frozen=True)
class Part:
    """Nodes with a partition of their own: a cluster to those who know no other."""

    partition: str
    nodes: tuple[str, ...]


PAIRS = tuple(Part(f"pair{i}", (f"n{2 * i - 1}", f"n{2 * i}")) for i in range(1, 5))
OTHER_MODEL = "n9"
ALL = Part("gpu", tuple(node for pair in PAIRS for node in pair.nodes))


class PortOfPart(AddedUp):
    """What a port shows of a part."""

    def __init__(self, port: ClusterPort, part: Part) -> None:
        super().__init__(port)
        self._part = part

    async def observe(self) -> ClusterView:
        view = await super().observe()
        jobs = tuple(job for job in view.jobs if job.partition == self._part.partition)
        return replace(view, jobs=jobs, nodes=tuple(n for n in view.nodes if n.name in self._part.nodes))


class LiveWorld:
    """A part of a mini cluster without a controller."""

    def __init__(self, cluster: MiniCluster, remote: RemotePort, part: Part) -> None:
        self.cluster = cluster
        self.port: ClusterPort = remote if part == ALL else PortOfPart(remote, part)
        self.nodes, self.other_model = part.nodes, OTHER_MODEL
        self._remote = remote
        self._partition = part.partition

    async def submit(self, *options: str, gpus_per_node: int = 1, nodes: int = 1) -> JobId:
        shape = [f"--gres=gpu:{gpus_per_node}"] if gpus_per_node else []
        shape += [f"--nodes={nodes}"] if nodes else []
        return await self._sbatch("exec sleep 600", "--gandiva", *shape, *options)

    async def submit_short(self, exit_code: int) -> JobId:
        return await self._sbatch(f"exit {exit_code}", "--gandiva", "--gres=gpu:1")

    async def submit_ordinary(self, gpus: int) -> JobId:
        return await self._sbatch("exec sleep 600", f"--gres=gpu:{gpus}", "--nodes=1")

    async def _sbatch(self, script: str, *options: str) -> JobId:
        # Little memory unless said otherwise, so that jobs can share a small node.
        memory = [] if any(option.startswith("--mem") for option in options) else ["--mem=50"]
        command = ["sbatch", "--parsable", "--output=/dev/null", *memory, *options, "--wrap", script]
        job_id = JobId(int((await self._run(command, "alice")).strip().split(";")[0]))
        if "--gandiva" in options:
            # As the agents do it: no start waits.
            prepare = ["sh", "-c", "mkdir -p $0/$1 && echo on > $0/$1/turn"]
            blocks = [(node, [*prepare, f"/run/gandiva/{node}", str(job_id)]) for node in self.nodes]
            await asyncio.gather(*(asyncio.to_thread(self.cluster.exec, *block) for block in blocks))
        return job_id

    async def allocated(self, job_id: JobId) -> GpuSet:
        text = await self.operator("scontrol", "--details", "show", "job", str(job_id))
        # The id of an array stands for all of its tasks.
        (job,) = (part for part in text.split("\n\n") if part.startswith(f"JobId={job_id} "))
        return frozenset(
            GpuId(node, index)
            for nodes, gres in re.findall(r"^\s+Nodes=(\S+) .*GRES=(\S+)$", job, re.MULTILINE)
            for node in expand(nodes)
            for index in indices_of("shard", gres)
        )

    async def user(self, *command: str) -> str:
        return await self._run(list(command), "alice")

    async def operator(self, *command: str) -> str:
        return await self._run(list(command), "root")

    async def begun(self, job_id: JobId) -> None:
        async def look() -> bool:
            return "sleep" in await self._processes(job_id)

        await until(f"the program of job {job_id} on {self.nodes[0]}", look)

    async def frozen(self, job_id: JobId) -> bool:
        # Both versions of control groups; SIGSTOP shows as T in the process state.
        return re.search(r"FROZEN|FREEZING|frozen 1|State:\s+T", await self._processes(job_id)) is not None

    async def _processes(self, job_id: JobId) -> str:
        """Names and states."""
        script = (
            "for p in /proc/[0-9]*; do grep -qs job_$1/ $p/cgroup || continue; "
            "c=$(grep -s -o '/slurm.*job_.*' $p/cgroup | head -1); "
            "cat /sys/fs/cgroup/freezer$c/freezer.state 2>/dev/null; "
            "grep -s -h frozen.1 /sys/fs/cgroup$c/cgroup.events; grep -s -h -E '^(Name|State)' $p/status; "
            "done; true"
        )
        command = ["bash", "-c", script, "processes", str(job_id)]
        return (await asyncio.to_thread(self.cluster.exec, self.nodes[0], command)).stdout

    async def hang(self) -> None:
        await self._signal(signal.SIGSTOP)
        # Each of its threads stops when it next has a processor; until then it goes on and may answer.
        await asyncio.to_thread(self.cluster.exec, "ctl", STOPPED, timeout_seconds=90)
        await self._remote.set_deadline(HANG_SECONDS)

    async def recover(self) -> None:
        await self._signal(signal.SIGCONT)
        await self._remote.set_deadline(DEADLINE_SECONDS)

    async def clear(self) -> None:
        """Bring it back to no jobs and idle nodes."""
        command = ["bash", "-c", CLEAR, "clear", self._partition, ",".join(self.nodes)]
        done = await asyncio.to_thread(self.cluster.exec, "ctl", command, timeout_seconds=90, check=False)
        assert done.exit_code == 0, f"not cleared: {done.stdout} {done.stderr}"

    async def _signal(self, number: signal.Signals) -> None:
        await asyncio.to_thread(self.cluster.service("ctl", "slurmctld").kill, number)

    async def _run(self, command: list[str], user: str) -> str:
        env = {"SBATCH_PARTITION": self._partition}
        done = await asyncio.to_thread(self.cluster.exec, "login", command, user=user, env=env, check=False)
        assert done.exit_code == 0, f"{user}: {command}: {done.stderr or done.stdout}"
        return done.stdout


async def outcome(case: Case, world: LiveWorld) -> BaseException | None:
    """Run a test, and leave nothing of it behind. What it raised, if anything."""
    began = time.strftime("%T")
    try:
        try:
            await asyncio.wait_for(case.run(world), TEST_SECONDS)
        finally:
            print(f"{began} to {time.strftime('%T')} on {','.join(world.nodes)}: {case.name}")
            await world.clear()
    except (Exception, pytest.fail.Exception) as error:
        return error
    return None


async def outcomes(
    cluster: MiniCluster, port: RemotePort, wanted: Iterable[Case]
) -> dict[Case, BaseException | None]:
    """Of tests beside each other, on a pair of nodes each, and then of those that must be alone."""
    found: dict[Case, BaseException | None] = dict.fromkeys(wanted)
    together = (case for case in found if not case.alone)

    async def work(part: Part) -> None:
        for case in together:
            found[case] = await outcome(case, LiveWorld(cluster, port, part))

    await asyncio.gather(*(work(pair) for pair in PAIRS))
    for case in found:
        if case.alone:
            found[case] = await outcome(case, LiveWorld(cluster, port, ALL))
    return found


async def keep(cluster: MiniCluster, adapter: str, wanted: Iterable[Case], subtests: pytest.Subtests) -> None:
    """See that an adapter passes these tests."""
    wanted = [case for case in wanted if os.environ.get("CONTRACT", "") in case.name]
    cluster.write_file("ctl", SERVER, SERVER_SOURCE)
    port = await RemotePort.start(
        *("docker", "exec", "-i", "-u", "gandiva", "-w", "/", f"gandiva-{cluster.name}-ctl"),
        *(PYTHON, SERVER, adapter, str(DEADLINE_SECONDS)),
    )
    try:
        found = await outcomes(cluster, port, wanted)
    finally:
        await port.close()
    for case, error in found.items():
        with subtests.test(f"{adapter}: {case.name}"):
            if error is not None:
                raise error


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Eight nodes in one container, of which each pair has a partition, and one of another GPU model."""
    request.getfixturevalue("engine_ready")
    spec = ClusterSpec(
        name=own_name("-port"),
        release=os.environ.get("RELEASE") or "forky",
        nodes=(
            NodeGroup(names="n[1-8]", nodes_per_container=8),
            NodeGroup(names=OTHER_MODEL, gpu_model="v100", gpus=1),
        ),
        partitions=(
            Partition(name=ALL.partition, nodes="n[1-8]", default=True),
            *(Partition(name=pair.partition, nodes=",".join(pair.nodes)) for pair in PAIRS),
            Partition(name="other", nodes=OTHER_MODEL),
        ),
        # Longer than any call's deadline: it is the port that ends calls of a slurmctld that hangs.
        slurm_conf=("MessageTimeout=100",),
    )
    with running(spec, request.session) as mini:
        yield mini


async def test_contract(cluster: MiniCluster, subtests: pytest.Subtests) -> None:
    """pyslurm in full. Of the command adapter what neither this nor its unit tests on recorded replies show:
    that Slurm takes its commands for jobs, gangs and single array tasks, and that it reads what squeue says
    of them as they change."""
    if cluster.spec.release == "forky":  # others have no pyslurm for their Slurm
        await keep(cluster, "pyslurm", cases(RealSlurmContract), subtests)
    few = cases(
        RealSlurmContract,
        RealSlurmContract.test_a_gang_on_two_nodes,
        RealSlurmContract.test_views_one_after_the_other_show_each_job_as_it_is,
        RealSlurmContract.test_an_array_becomes_jobs_of_their_own,
        RealSlurmContract.test_odd_names_do_no_harm,
    )
    await keep(cluster, "command", few, subtests)


@pytest.mark.nightly
@pytest.mark.smoke  # of other releases, too
async def test_contract_by_commands(cluster: MiniCluster, subtests: pytest.Subtests) -> None:
    await keep(cluster, "command", cases(RealSlurmContract), subtests)
