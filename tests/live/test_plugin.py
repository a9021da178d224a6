# SPDX-License-Identifier: GPL-2.0-or-later
"""What slurmctld, slurmd and sbatch load, on a real Slurm. No controller runs: binding is done by hand.

`tests/unit/slurm_plugin` has what the module and the plugin make of what they are given. Here is what only a
Slurm can show: that they are given it, and what becomes of their answers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from container.cluster import MiniCluster
from controller.observe.requests import parse_request

pytestmark = pytest.mark.live

SHOW = "env | grep -E '^(CUDA_VIS|GANDIVA_|PYTHONPATH|SLURM_GPUS|SLURM_JOB_GPUS|SLURM_STEP_GPUS)' | sort"
WAIT_SECONDS = 60


@pytest.fixture(autouse=True, scope="module")
def no_controller(cluster: MiniCluster) -> None:
    cluster.stop_controller()


class Slurm:
    """The commands of these tests."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster

    def run(self, *argv: str, user: str = "alice", env: dict[str, str] | None = None) -> tuple[int, str, str]:
        done = self.cluster.exec("login", list(argv), user=user, check=False, env=env)
        return done.exit_code, done.stdout, done.stderr

    def submit(self, *options: str, script: str = "sleep 300", user: str = "alice") -> int:
        done = self.cluster.exec(
            "login",
            ["sbatch", "--parsable", "--mem=200M", "--output=plugin-%j.out", *options],
            user=user,
            stdin=f"#!/bin/bash\n{script}\n",
        )
        return int(done.stdout.split(";")[0])

    def each(self, command: str, lines: Iterable[str], env: dict[str, str] | None = None) -> list[str]:
        """Run alice's command with each of these lines as its options: what it says, and its status."""
        script = f'set -f; while read -r line; do {command} < /dev/null 2>&1; echo "<$?>"; done'
        lines = "".join(f"{line}\n" for line in lines)
        done = self.cluster.exec("login", script, user="alice", env=env, stdin=lines)
        return re.findall(r".*?<[0-9]+>\n", done.stdout, re.DOTALL)

    def refused(self, lines: Iterable[str], env: dict[str, str] | None = None) -> list[str]:
        """Have sbatch refuse each of these: the one line that says why, of us. Nothing is submitted."""
        before, ours = self.pending(), []
        for said in self.each("sbatch --mem=100M $line --wrap true", lines, env):
            reasons = [line for line in said.splitlines() if "gandiva: " in line]
            assert len(reasons) == 1 and "Submitted" not in said and not said.endswith("<0>\n"), said
            ours += reasons
        assert self.pending() == before
        return ours

    def show(self, job: int) -> dict[str, str]:
        return self.shown("job", str(job)).get(job, {})

    def shown(self, *which: str) -> dict[int, dict[str, str]]:
        """`scontrol show` of jobs, by number."""
        text = self.cluster.exec("ctl", ["scontrol", "-o", "show", *which], check=False).stdout
        field = re.compile(r"(\w[\w/:-]*)=(.*?)(?= \w[\w/:-]*=|$)")
        records = [dict(field.findall(line.strip())) for line in text.splitlines()]
        return {int(record["JobId"]): record for record in records if "JobId" in record}

    def bind(self, job: int, gres: str, node: str, visible: str | None = None) -> None:
        """What the controller and the agent do to place a job."""
        block = f"/run/gandiva/{job}"
        self.cluster.exec(node, f"mkdir -p {block} && echo on > {block}/turn")
        if visible is not None:
            self.cluster.exec(node, f"echo {visible} > {block}/visible")
        update = [
            "scontrol",
            "update",
            f"jobid={job}",
            f"gres={gres}",
            f"reqnodelist={node}",
            "starttime=now",
        ]
        self.cluster.exec("ctl", update)
        self.cluster.exec("ctl", ["scontrol", "release", str(job)])

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {WAIT_SECONDS} s: {what}"
            time.sleep(0.2)

    def wait_end(self, job: int) -> str:
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
        self.wait(f"the end of job {job}", lambda: self.show(job).get("JobState") in ended)
        return self.show(job)["JobState"]

    def pending(self, user: str = "alice") -> list[int]:
        listed = self.cluster.exec("ctl", ["squeue", "-h", "-o", "%A", "-u", user]).stdout
        return [int(line) for line in listed.split()]

    def output(self, job: int, user: str = "alice") -> str:
        return self.cluster.read_file("login", f"/home/{user}/plugin-{job}.out")


@pytest.fixture
def slurm(cluster: MiniCluster) -> Slurm:
    return Slurm(cluster)


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.mark.breaks
def test_a_site_that_shares_gpus_by_default(slurm: Slurm) -> None:
    switches = {
        "/etc/slurm/plugstack.conf.d/gandiva.conf": ("default=off", "default=on"),
        "/etc/slurm/gandiva/gandiva_settings.lua": ('default = "off"', 'default = "on"'),
    }
    good = {path: slurm.cluster.read_file("ctl", path) for path in switches}

    def put(texts: dict[str, str]) -> None:
        for path, text in texts.items():
            slurm.cluster.write_file("ctl", path, text)
        # slurmctld reads the module and its settings anew when the site's script is newer, in whole seconds,
        # than what it has read: both changes may be made in one second.
        script = 't=$(stat -c %Y "$0"); n=$(date +%s); touch -d "@$(((t > n ? t : n) + 1))" "$0"'
        slurm.cluster.exec("ctl", ["bash", "-c", script, "/etc/slurm/job_submit.lua"])

    assert all(off in good[path] for path, (off, _) in switches.items())
    try:
        put({path: good[path].replace(off, on) for path, (off, on) in switches.items()})
        plain = slurm.submit("--gres=gpu:2")
        without = slurm.submit("--gres=gpu:2", "--no-gandiva", "--nodelist=n2", script="true")
        no_gpu = slurm.submit(script="true")
        job = slurm.show(plain)
        assert job["JobState"] == "PENDING" and job["Priority"] == "0"
        assert parse_request(job["AdminComment"]).size.wanted == 2
        for other in (without, no_gpu):
            assert slurm.wait_end(other) == "COMPLETED"
            assert "gandiva:" not in slurm.show(other).get("AdminComment", "")
    finally:
        put(good)
    assert slurm.wait_end(slurm.submit("--gres=gpu:2", script="true")) == "COMPLETED"


# --- submission -----------------------------------------------------------------


MISTAKES = {
    # sbatch refuses this one itself, slurmctld the others.
    "--gandiva-weight=1000 --gres=gpu:1": "--gandiva-weight=1000: expected a number from 0.1 to 100",
    "--gandiva-gpu-types=v100 --gres=gpu:1": "different GPU models of this cluster (a100)",
    "--gandiva": "asks for no GPU",
    "--gandiva --gres=gpu:5": "a node has 4 at most",
    "--gandiva --gpus=9": "9 GPUs: partition gpu has 8",
    "--gandiva --gres=gpu:v100:1": "unknown GPU type v100",
    "--gandiva --gres=shard:1": "shards are Gandiva's to give",
    "--gres=shard:1": "shards belong to time-sliced jobs",
    "--gandiva --gres=gpu:1 --exclusive": "--exclusive",
    "--gandiva --gres=gpu:a100_0:1": "names one GPU",
    "--gandiva --gpus-per-socket=1 --sockets-per-node=1": "not tied to sockets",
    "--gandiva --gres=gpu:1 --wrap true : --gres=gpu:1": "heterogeneous",
}
"""What sbatch turns into something of its own: one of each."""


def test_mistakes_get_one_clear_error_and_nothing_is_submitted(slurm: Slurm) -> None:
    for line, said in zip(MISTAKES, slurm.refused(MISTAKES), strict=True):
        assert MISTAKES[line] in said, line


SPELLINGS = {
    "--gres=gpu:2": (2, 1),
    "--gres=gpu:a100:2 --nodes=2": (4, 2),
    "--gpus=4": (4, None),
    "--gpus=a100:4 --nodes=2": (4, 2),
    "--gpus-per-node=3": (3, 1),
    "--gpus-per-task=1 --ntasks=4": (4, 1),
    "--gpus-per-task=1 --ntasks=4 --ntasks-per-node=2": (4, 2),
    "--tres-per-task=cpu:1,gres/gpu:1 --ntasks=2": (2, 1),
    "--gpus=2 --cpus-per-gpu=2": (2, 1),
}
"""Of a request: GPUs and nodes."""


def test_the_request_arrives_whichever_way_it_is_written(slurm: Slurm) -> None:
    command = "sbatch --parsable --mem=200M --gandiva-weight=2.5 --gandiva-gpus=1-8 --gandiva-model=m $line"
    said = slurm.each(f"{command} --wrap 'sleep 300'", SPELLINGS)
    jobs = {line: int(answer.splitlines()[0]) for line, answer in zip(SPELLINGS, said, strict=True)}
    shown = slurm.shown("jobs")
    for line, (gpus, nodes) in SPELLINGS.items():
        job = shown[jobs[line]]
        assert job["Priority"] == "0" and job["JobState"] == "PENDING", line
        request = parse_request(job["AdminComment"])
        assert (request.size.wanted, request.nodes) == (gpus, nodes), line
        assert (request.weight, request.size.least, request.size.most, request.model) == (2.5, 1, 8, "m")
        # In this one form it can be bound; nothing of another spelling is left to contradict it.
        assert job["TresPerNode"].startswith("gres/gpu:"), line
        assert not {"TresPerJob", "TresBind", "CpusPerTres"} & set(job), line
        assert "gpu" not in job.get("TresPerTask", ""), line
    for line, (gpus, nodes) in SPELLINGS.items():
        if nodes is not None:
            per_node = ",".join(f"shard:a100_{index}:1" for index in range(gpus // nodes))
            bound = [f"jobid={jobs[line]}", f"gres={per_node}", f"reqnodelist={('n1', 'n[1-2]')[nodes - 1]}"]
            slurm.cluster.exec("ctl", ["scontrol", "update", *bound])


ROGUE = """\
#include <slurm/spank.h>
SPANK_PLUGIN(gandiva, 1)
static int take(int v, const char *a, int r) { (void) v; (void) a; (void) r; return 0; }
static struct spank_option o[] = {
    { "gandiva-weight", "N", "x", 1, 1, take }, { "gandiva-model", "N", "x", 1, 2, take },
    { "gandiva-surprise", "N", "x", 1, 3, take } };
int slurm_spank_init(spank_t s, int c, char **v) {
    (void) c; (void) v; for (int i = 0; i < 3; i++) spank_option_register(s, &o[i]); return 0; }
"""


@pytest.fixture
def rogue(cluster: MiniCluster) -> Iterator[dict[str, str]]:
    """The environment of a user who replaced the plugin, in sbatch, by one that checks nothing."""
    home = "/home/alice/rogue"
    cluster.exec("login", ["mkdir", "-p", home], user="alice")
    cluster.exec("login", f"cat > {home}/rogue.c", user="alice", stdin=ROGUE)
    cluster.exec("login", f"cc -shared -fPIC -o {home}/rogue.so {home}/rogue.c", user="alice")
    cluster.exec("login", f"echo 'optional {home}/rogue.so' > {home}/plugstack.conf", user="alice")
    own = f"grep -v 'include gandiva' /etc/slurm/slurm.conf > {home}/slurm.conf"
    cluster.exec("login", own, user="alice")
    part = f"grep -v ^PlugStackConfig /etc/slurm/gandiva/slurm.conf >> {home}/slurm.conf"
    cluster.exec("login", part, user="alice")
    cluster.exec("login", f"echo PlugStackConfig={home}/plugstack.conf >> {home}/slurm.conf", user="alice")
    cluster.exec("login", f"cp /etc/slurm/gres.conf {home}/", user="alice")
    yield {"SLURM_CONF": f"{home}/slurm.conf"}
    cluster.exec("login", ["rm", "-rf", home], user="alice")


def test_a_client_without_our_checks_is_refused_by_slurmctld(slurm: Slurm, rogue: dict[str, str]) -> None:
    expected = {
        "--gandiva-weight=1e9": "--gandiva-weight=1e9: expected a number from 0.1 to 100",
        '--gandiva-model=x","weight":9,"y":"': '--gandiva-model=x","weight":9,"y":": expected',
        "--gandiva-surprise=1": "unknown flag --gandiva-surprise",
    }
    lines = [f"--gres=gpu:1 {line}" for line in expected]
    for message, said in zip(expected.values(), slurm.refused(lines, rogue), strict=True):
        assert message in said


@pytest.mark.smoke
def test_a_request_cannot_be_forged(slurm: Slurm) -> None:
    request = 'gandiva:{"v":1,"gpus_per_node":4,"nodes":1,"weight":100}'
    forged = f"AdminComment={request}"
    job = slurm.submit("--gandiva", "--gres=gpu:1", "--comment", request)
    before = slurm.show(job)["AdminComment"]
    assert parse_request(before).size.wanted == 1
    status, _, _ = slurm.run("scontrol", "update", f"jobid={job}", forged)
    assert status != 0 and slurm.show(job)["AdminComment"] == before
    # Nor can an ordinary job become Gandiva's afterwards.
    ordinary = slurm.submit("--hold", "--gres=gpu:1")
    assert slurm.run("scontrol", "update", f"jobid={ordinary}", forged)[0] != 0
    assert "AdminComment" not in slurm.show(ordinary)


def test_an_environment_cannot_change_the_request(slurm: Slurm) -> None:
    status, out, _ = slurm.run(
        *[
            "sbatch",
            "--parsable",
            "--gandiva",
            "--gres=gpu:1",
            "--mem=100M",
            "--output=plugin-%j.out",
            "--wrap",
            SHOW,
        ],
        env={"_SLURM_SPANK_OPTION_gandiva_gandiva_weight": "1000000"},
    )
    assert status == 0
    job = int(out.split(";")[0])
    assert parse_request(slurm.show(job)["AdminComment"]).weight == 1
    slurm.bind(job, "shard:a100_0:1", "n1")
    assert slurm.wait_end(job) == "COMPLETED"
    assert "GANDIVA_WEIGHT" not in variables(slurm.output(job))


# --- ordinary jobs ----------------------------------------------------------------


def test_ordinary_requests_with_a_model_work(slurm: Slurm) -> None:
    script = f'{SHOW}\necho ---\nsrun bash -c "{SHOW}"'
    options = ("--gres=gpu:a100:2", "--gpus=a100:2", "--gpus-per-node=a100:2")
    jobs = [slurm.submit(option, script=script) for option in options]
    srun = ["srun", "--mem=100M", "--gres=gpu:a100:2", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    status, out, err = slurm.run(*srun)
    assert (status, out.strip()) == (0, "0,1"), err
    for job in jobs:
        assert slurm.wait_end(job) == "COMPLETED"
        for text in slurm.output(job).split("---\n"):
            assert variables(text)["CUDA_VISIBLE_DEVICES"] == "0,1"
            assert "GANDIVA" not in text and "PYTHONPATH" not in text


# --- tasks ---------------------------------------------------------------------------


@pytest.mark.smoke
def test_batch_script_and_its_steps_see_the_jobs_turn(slurm: Slurm) -> None:
    """The positions in `visible` count Slurm's own list, which is there already when task_init runs."""
    script = f'{SHOW}\necho ---\nsrun bash -c "{SHOW}"\necho ---\nsrun --export=NONE /usr/bin/env'
    options = ["--gandiva-weight=2.5", "--gandiva-gpus=1-4", "--gandiva-pack=yes", "--gandiva-gpu-types=a100"]
    job = slurm.submit(*options, "--gpus=4", "--export=ALL,PYTHONPATH=/mine", "--nodes=1", script=script)
    slurm.bind(job, ",".join(f"shard:a100_{index}:1" for index in range(4)), "n1", visible="2,0")
    assert slurm.wait_end(job) == "COMPLETED", slurm.output(job)
    for text in slurm.output(job).split("---\n"):
        seen = variables(text)
        assert seen["CUDA_VISIBLE_DEVICES"] == "2,0", text
        assert seen["SLURM_GPUS_ON_NODE"] == "2"
        assert seen["PYTHONPATH"].split(":")[0] == "/opt/gandiva/jobside"
        assert {name: value for name, value in seen.items() if name.startswith("GANDIVA_")} == {
            "GANDIVA_JOB": "1",
            "GANDIVA_CONTROL_DIR": f"/run/gandiva/{job}",
            "GANDIVA_WEIGHT": "2.5",
            "GANDIVA_MIN_GPUS": "1",
            "GANDIVA_MAX_GPUS": "4",
            "GANDIVA_PACK": "yes",
            "GANDIVA_GPU_TYPES": "a100",
        }
    assert slurm.output(job).split("---\n")[1].count("PYTHONPATH=/opt/gandiva/jobside:/mine") == 1


def test_prolog_and_epilog_make_and_remove_the_control_block(slurm: Slurm) -> None:
    look = "cd $GANDIVA_CONTROL_DIR; stat -c '%U %a %s %n' $PWD $PWD/*; touch ranks/0"
    job = slurm.submit("--gandiva", "--gres=gpu:1", script=look)
    slurm.bind(job, "shard:a100_0:1", "n1")
    assert slurm.wait_end(job) == "COMPLETED"
    lines = slurm.output(job).splitlines()
    block = f"/run/gandiva/{job}"
    assert any(re.fullmatch(rf"root 755 \d+ {block}", line) for line in lines)
    assert f"root 644 4096 {block}/command" in lines
    assert any(re.fullmatch(rf"alice 700 \d+ {block}/ranks", line) for line in lines)
    slurm.wait(
        "the epilog", lambda: slurm.cluster.exec("n1", ["test", "!", "-e", block], check=False).exit_code == 0
    )


def test_tasks_with_gpus_of_their_own(slurm: Slurm) -> None:
    job = slurm.submit(
        *["--gandiva", "--gpus-per-task=1", "--ntasks=2"],
        script="srun -l bash -c 'echo $SLURM_LOCALID sees $CUDA_VISIBLE_DEVICES' | sort",
    )
    slurm.bind(job, "shard:a100_1:1,shard:a100_2:1", "n1")
    assert slurm.wait_end(job) == "COMPLETED", slurm.output(job)
    assert [line.split(": ")[1] for line in slurm.output(job).splitlines()] == ["0 sees 0", "1 sees 1"]


def test_srun_and_salloc(slurm: Slurm) -> None:
    inner = {"srun": "--gres=gpu:1 bash -c", "salloc": "--gpus=1 srun bash -c"}
    for name, words in inner.items():
        line = f'{name} -J {name} --gandiva-weight=3 --mem=100M {words} "{SHOW}"'
        slurm.cluster.exec("login", f"({line}) > {name}.out 2>&1 < /dev/null & disown", user="alice")
    slurm.wait("the requests", lambda: len(slurm.pending()) == len(inner))
    shown = slurm.shown("jobs")
    jobs = {shown[job]["JobName"]: job for job in slurm.pending()}
    for gpu, name in enumerate(inner):
        assert parse_request(shown[jobs[name]]["AdminComment"]).weight == 3
        slurm.bind(jobs[name], f"shard:a100_{gpu + 2}:1", "n2")
    for name in inner:
        assert slurm.wait_end(jobs[name]) == "COMPLETED"
        text = slurm.cluster.read_file("login", f"/home/alice/{name}.out")
        seen = variables(text)
        assert seen["CUDA_VISIBLE_DEVICES"] == "0", text
        assert (seen["GANDIVA_JOB"], seen["GANDIVA_WEIGHT"]) == ("1", "3")
        assert seen["GANDIVA_CONTROL_DIR"] == f"/run/gandiva/{jobs[name]}"


def test_a_step_cannot_change_its_jobs_flags(slurm: Slurm) -> None:
    job = slurm.submit(
        "--gandiva-weight=2", "--gres=gpu:1", script="srun --gandiva-weight=50 true; srun true && echo fine"
    )
    slurm.bind(job, "shard:a100_0:1", "n1")
    assert slurm.wait_end(job) == "COMPLETED"
    text = slurm.output(job)
    assert "gandiva: --gandiva-weight: srun starts a step of job" in text and text.endswith("fine\n")


# --- owners ---------------------------------------------------------------------------


@pytest.mark.smoke
def test_owners_cannot_break_the_hold(slurm: Slurm) -> None:
    job = slurm.submit("--gandiva", "--gres=gpu:1")
    before = slurm.show(job)
    for change in (
        "gres=gpu:2",
        "gres=shard:a100_0:1",
        "reqnodelist=n1",
        "reqnodelist=",
        "priority=100",
        "features=x",
        "numnodes=2",
    ):
        status, _, err = slurm.run("scontrol", "update", f"jobid={job}", change)
        assert status != 0 and "gandiva: " in err, (change, err)
    after = slurm.show(job)
    for key in ("Priority", "TresPerNode", "ReqNodeList", "NumNodes", "AdminComment", "Reason", "StartTime"):
        assert after.get(key) == before.get(key)
    # Releasing is no error, and frees nothing: the job keeps waiting for the controller.
    slurm.run("scontrol", "release", str(job))
    shown = slurm.show(job)
    assert (shown["JobState"], shown["Priority"]) == ("PENDING", "0")
    assert slurm.run("scontrol", "update", f"jobid={job}", "timelimit=5")[0] == 0


def test_a_users_hold_is_kept_apart_from_gandivas(slurm: Slurm) -> None:
    job = slurm.submit("--hold", "--gandiva", "--gres=gpu:1")
    assert slurm.show(job)["StartTime"].startswith("2100-01-01")
    assert slurm.run("scontrol", "release", str(job))[0] == 0
    assert not slurm.show(job)["StartTime"].startswith("2100")
    assert slurm.run("scontrol", "hold", str(job))[0] == 0
    shown = slurm.show(job)
    assert shown["StartTime"].startswith("2100-01-01") and shown["Priority"] == "0"


def test_arrays_dependencies_and_begin_times_are_slurms_own(slurm: Slurm) -> None:
    array = slurm.submit("--gandiva", "--gres=gpu:1", "--array=0-2")
    listed = slurm.cluster.exec(
        "ctl", ["squeue", "-h", "-r", "-j", str(array), "-o", "%K %T"]
    ).stdout.splitlines()
    assert sorted(listed) == ["0 PENDING", "1 PENDING", "2 PENDING"]
    after = slurm.submit("--gandiva", "--gres=gpu:1", f"--dependency=afterok:{array}", "--begin=now+1hour")
    shown = slurm.show(after)
    assert f"afterok:{array}" in shown["Dependency"] and shown["Priority"] == "0"


# --- faults ------------------------------------------------------------------------------


def node_state(cluster: MiniCluster, node: str) -> str:
    return cluster.exec("ctl", ["sinfo", "-h", "-N", "-n", node, "-o", "%T %E"]).stdout.splitlines()[0]


def test_a_tampered_control_block_fails_the_job_not_the_node(slurm: Slurm) -> None:
    job = slurm.submit("--gandiva", "--gres=gpu:1", "--no-requeue", script="echo started")
    slurm.bind(job, "shard:a100_0:1", "n1", visible="7")
    assert slurm.wait_end(job) == "FAILED"
    text = slurm.output(job)
    assert f"gandiva: /run/gandiva/{job}/visible: position 7" in text and "started" not in text
    slurm.wait("an idle node", lambda: node_state(slurm.cluster, "n1").startswith("idle"))


@pytest.mark.breaks
def test_a_wrong_plugstack_on_a_node_fails_the_job_not_the_node(slurm: Slurm) -> None:
    conf = "/etc/slurm/plugstack.conf.d/gandiva.conf"
    good = slurm.cluster.read_file("n1", conf)
    # Submitted while all is well: the hosts of the mini cluster share this file.
    job = slurm.submit("--hold", "--nodelist=n1", "--no-requeue", script="echo started")
    try:
        slurm.cluster.write_file("n1", conf, good.replace("run_dir=", "run_dri="))
        slurm.cluster.exec("ctl", ["scontrol", "release", str(job)])
        assert slurm.wait_end(job) == "FAILED"
    finally:
        slurm.cluster.write_file("n1", conf, good)
    assert "plugstack.conf is wrong on this node" in slurm.output(job)
    slurm.wait("an idle node", lambda: node_state(slurm.cluster, "n1").startswith("idle"))
    again = slurm.submit("--nodelist=n1", script="echo started")
    assert slurm.wait_end(again) == "COMPLETED"
