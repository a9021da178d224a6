# SPDX-License-Identifier: GPL-2.0-or-later
"""The mini cluster is what the other live tests take it for."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection
from contextlib import suppress

import pytest

from container.cluster import MiniCluster
from container.errors import CommandError, DeadlineError, MiniClusterError
from container.execute import Completed
from container.services import Name
from container.spec import NodeGroup

SHOW_GPUS = """\
echo "node=$SLURMD_NODENAME visible=$CUDA_VISIBLE_DEVICES"
for i in 0 1 2 3; do
    if [ -e /dev/nvidia$i ]; then echo "gpu$i: $(cat /dev/nvidia$i 2>&1)"; fi
done
"""
OWN = "No such device or address"
"""ENXIO: the control group let us through, and the mock device has no driver behind it."""
NOT_OWN = "Operation not permitted"
"""EPERM: the control group did not."""

DAEMONS_OF_A_JOB: tuple[tuple[str, Name], ...] = (
    ("n1", "slurmd"),
    ("n1", "munge"),
    ("n1", "sshd"),
    ("ctl", "slurmctld"),
    ("db", "slurmdbd"),
    ("db", "mariadb"),
)


def submit(cluster: MiniCluster, user: str, script: str, *options: str, wait: bool = False) -> int:
    """Submit a batch script that writes its output to out-<job>; returns the job's number."""
    command = ["sbatch", "--parsable", "--output=out-%j", *(["--wait"] if wait else []), *options]
    text = f"#!/bin/bash\n{script}"
    return int(cluster.exec("login", command, user=user, stdin=text).stdout.split(";")[0])


def output(cluster: MiniCluster, user: str, job: int) -> str:
    return cluster.read_file("login", f"/home/{user}/out-{job}")


def wait_output(cluster: MiniCluster, user: str, job: int, wanted: str, seconds: float = 60) -> str:
    """The output once it has `wanted`; a job is RUNNING some time before its file is there."""
    deadline = time.monotonic() + seconds
    text = ""
    while wanted not in text:
        assert time.monotonic() < deadline, f"no {wanted!r} in the output of job {job}: {text}"
        time.sleep(0.1)
        with suppress(FileNotFoundError):
            text = output(cluster, user, job)
    return text


def state(cluster: MiniCluster, job: int) -> str:
    return cluster.exec("ctl", ["squeue", "-h", "-j", str(job), "-o", "%T"], check=False).stdout.strip()


def wait_state(cluster: MiniCluster, job: int, wanted: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while state(cluster, job) != wanted:
        assert time.monotonic() < deadline, f"job {job} is {state(cluster, job)!r}, not {wanted}"
        time.sleep(0.1)


def test_all_nodes_are_idle(cluster: MiniCluster) -> None:
    lines = cluster.exec("login", ["sinfo", "-h", "-N", "-o", "%N %T"], user="alice").stdout.splitlines()
    assert lines == [f"{name} idle" for name in cluster.spec.node_names]


def test_ordinary_jobs_get_their_gpus_and_no_others_and_are_accounted(cluster: MiniCluster) -> None:
    options = {"alice": ("--gres=gpu:2",), "bob": (), "carol": ()}
    jobs = {user: submit(cluster, user, SHOW_GPUS, *words) for user, words in options.items()}
    expected = {
        f"{job}|{user}|{'speech' if user == 'carol' else 'vision'}|COMPLETED" for user, job in jobs.items()
    }
    command = ["sacct", "-a", "-X", "-n", "-P", "-o", "jobid,user,account,state"]
    command += ["-j", ",".join(map(str, jobs.values()))]
    deadline = time.monotonic() + 60
    while set(cluster.exec("login", command).stdout.split()) != expected:  # slurmctld sends it a bit later
        assert time.monotonic() < deadline, cluster.exec("login", command).stdout
        time.sleep(0.2)
    node, *gpus = output(cluster, "alice", jobs["alice"]).splitlines()
    assert node.endswith(" visible=0,1")
    assert sum(OWN in line for line in gpus) == 2
    assert sum(NOT_OWN in line for line in gpus) == 2
    assert output(cluster, "bob", jobs["bob"]).count(NOT_OWN) == 4


@pytest.mark.smoke
def test_a_held_job_runs_on_exactly_the_gpus_it_is_bound_to(cluster: MiniCluster) -> None:
    job = submit(cluster, "alice", SHOW_GPUS + "sleep 600", "--hold", "--gres=gpu:2", "--nodes=1")
    # The module holds what Gandiva holds; this is a user's own hold of an ordinary job.
    cluster.exec(
        "ctl",
        ["scontrol", "update", f"jobid={job}", "gres=shard:a100_2:1,shard:a100_3:1", "ReqNodeList=n2"],
    )
    cluster.exec("ctl", ["scontrol", "release", str(job)])
    wait_state(cluster, job, "RUNNING")
    text = wait_output(cluster, "alice", job, "gpu3")
    # Slurm numbers the GPUs of a job from 0 when it can open no others.
    assert text.splitlines()[0] == "node=n2 visible=0,1"
    allowed = [line.split(":")[0] for line in text.splitlines() if OWN in line]
    assert allowed == ["gpu2", "gpu3"]


@pytest.mark.nightly
def test_the_controllers_user_suspends_and_resumes_another_users_job(cluster: MiniCluster) -> None:
    if cluster.spec.release != "forky":
        pytest.skip("this image has no pyslurm for its Slurm")
    script = "while :; do date +%s.%N > beat; sleep 0.02; done"
    job = submit(cluster, "alice", script, "--gres=gpu:1")
    wait_state(cluster, job, "RUNNING")

    def call(method: str) -> None:
        code = f"import pyslurm; pyslurm.Job({job}).{method}()"
        cluster.exec("ctl", ["/opt/gandiva/venv/bin/python", "-c", code], user="gandiva")

    def beats() -> bool:
        before = cluster.read_file("login", "/home/alice/beat")
        time.sleep(1.0)
        return cluster.read_file("login", "/home/alice/beat") != before

    def wait_beats(wanted: bool) -> None:
        """slurmctld says so before the node has done it."""
        deadline = time.monotonic() + 60
        while beats() is not wanted:
            assert time.monotonic() < deadline, f"the job {'does not go on' if wanted else 'goes on'}"

    cluster.exec("login", "until [ -s beat ]; do sleep 0.1; done", user="alice", timeout_seconds=60)
    call("suspend")
    wait_state(cluster, job, "SUSPENDED")
    wait_beats(False)
    assert not beats(), "it stays so"
    call("unsuspend")
    wait_state(cluster, job, "RUNNING")
    wait_beats(True)


KEY = "-o BatchMode=yes -o UserKnownHostsFile=/etc/gandiva/known_hosts -i /etc/gandiva/agent_key"
HELLO = '{"id":1,"verb":"hello","deadline_seconds":20}'
FORWARDS = f"""\
import json, socket, subprocess, sys
words = ["-L", "4022:127.0.0.1:22", "-D", "4024", "root@n1", "gandiva-agent", "n1"]
ssh = subprocess.Popen(["ssh", *sys.argv[1:], *words], stdin=-1, stdout=-1, stderr=-1)
ssh.stdin.write(b'{HELLO}\\n')
ssh.stdin.flush()
found = {{"agent": json.loads(ssh.stdout.readline())}}

def through(host, port, said=b""):
    connection = socket.create_connection((host, port), 10)
    connection.settimeout(10)
    connection.sendall(said)
    data = b""
    while b"SSH-2.0" not in data and (piece := connection.recv(7)):
        data += piece
    return data.decode("latin-1")

found["direct"] = through("n1", 22)
found["-L"] = through("127.0.0.1", 4022)
found["-D"] = through("127.0.0.1", 4024, bytes.fromhex("050100 05010001 7f000001 0016"))
ssh.stdin.close()
found["refusals"] = ssh.stderr.read().count(b"administratively prohibited")
print(json.dumps(found))
"""
"""A session with forwarded ports, as -L and -D make them, and what comes from sshd's port behind them."""


def test_the_agents_key_opens_nothing_but_the_agent(cluster: MiniCluster) -> None:
    def ctl(script: str) -> Completed:
        return cluster.exec("ctl", script, user="gandiva", check=False, timeout_seconds=60)

    # For what it is for it works: what is refused below is not refused by a broken connection.
    done = ctl(f"echo '{HELLO}' | ssh {KEY} root@n1 gandiva-agent n1")
    assert json.loads(done.stdout)["result"]["node"] == "n1", done
    for words in ("id", "'gandiva-agent n1; id'", "'gandiva-agent --run-dir /tmp n1'", "bash -i"):
        done = ctl(f"ssh {KEY} root@n1 {words} < /dev/null")
        assert done.exit_code == 2 and "this key allows only" in done.stdout, done
    done = ctl(f"ssh {KEY} root@n1 < /dev/null")
    assert done.exit_code == 2 and "name the Slurm node" in done.stdout, done

    done = ctl(f"ssh -tt {KEY} root@n1 gandiva-agent n1 < /dev/null")
    assert "PTY allocation request failed" in done.stderr, done
    done = ctl(f"ssh -o ExitOnForwardFailure=yes -R 4023:127.0.0.1:6817 {KEY} root@n1 gandiva-agent n1")
    assert done.exit_code == 255 and "remote port forwarding failed" in done.stderr, done
    done = ctl(f"ssh -W 127.0.0.1:22 {KEY} root@n1 < /dev/null")
    assert done.exit_code == 255 and "administratively prohibited" in done.stderr, done
    done = cluster.exec("ctl", ["python3", "-c", FORWARDS, *KEY.split()], user="gandiva", timeout_seconds=60)
    through = json.loads(done.stdout)
    assert through["agent"]["ok"] and through["direct"] == "SSH-2.0", through
    assert through["-L"] == "" and "SSH-2.0" not in through["-D"], through
    assert through["refusals"] == 2, through

    for copy in ("", "-O"):
        done = ctl(f"scp {copy} {KEY} /etc/hostname root@n1:/root/copied < /dev/null")
        assert done.exit_code != 0, done
        done = ctl(f"scp {copy} {KEY} root@n1:/etc/shadow copied < /dev/null; cat copied")
        assert "root:" not in done.stdout, done
    assert cluster.exec("n1", ["ls", "/root/copied"], check=False).exit_code != 0
    done = ctl(f"echo 'ls /root' | sftp {KEY} -b - root@n1")
    assert done.exit_code != 0 and "/root" not in done.stdout.replace("sftp> ls /root", ""), done

    # The agent that runs with `ssh -A` has no way back to the keys of the controller's user.
    def agents(known: Collection[str] = ()) -> dict[str, str]:
        """Processes of agents that are not known yet, with their environments."""
        show = "printf '%s ' $p; tr '\\0' ' ' < /proc/$p/environ; echo"
        script = f"for p in $(pgrep -f '[g]andiva-agent'); do {show}; done"
        lines = cluster.exec("n1", script, check=False).stdout.splitlines()
        found = dict(line.split(" ", 1) for line in lines)
        return {pid: words for pid, words in found.items() if pid not in known}

    known = agents()  # the controller's, too, where one runs
    forwarded = f"(echo '{HELLO}'; sleep 300) | ssh -A {KEY} root@n1 gandiva-agent n1"
    ctl(f"setsid ssh-agent sh -c {shlex.quote(forwarded)} > /dev/null 2>&1 < /dev/null &")
    deadline = time.monotonic() + 60
    while "SSH_CONNECTION=" not in str(found := agents(known)):
        assert time.monotonic() < deadline, "no agent was started"
        time.sleep(0.1)
    assert "SSH_AUTH_SOCK" not in str(found)
    ctl("pkill -f '[s]leep 300'")

    # Without the pinned key the host is not trusted, and alice may not even read ours.
    unknown = KEY.replace("/etc/gandiva/known_hosts", "/dev/null") + " -o StrictHostKeyChecking=yes"
    refused = ctl(f"ssh {unknown} root@n1")
    assert "Host key verification failed" in refused.stderr
    assert cluster.exec("ctl", ["cat", "/etc/gandiva/agent_key"], user="alice", check=False).exit_code != 0


def test_a_job_sees_the_mock_gpus_through_nvml(cluster: MiniCluster) -> None:
    code = (
        "import json, pynvml as n; n.nvmlInit(); c = n.nvmlDeviceGetCount(); "
        "print(json.dumps([n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(i)) for i in range(c)]))"
    )
    done = cluster.exec("n1", ["/opt/gandiva/venv/bin/python", "-c", code])
    assert json.loads(done.stdout) == ["NVIDIA A100-SXM4-80GB"] * 4


def test_a_command_that_takes_too_long_is_killed(cluster: MiniCluster) -> None:
    with pytest.raises(DeadlineError, match="sleep 321"):
        cluster.exec("login", "sleep 321", timeout_seconds=0.5)
    assert cluster.exec("login", ["pgrep", "-f", "sleep 32[1]"], check=False).stdout == ""


def test_a_failed_command_tells_its_output(cluster: MiniCluster) -> None:
    with pytest.raises(CommandError, match=r"n1: .* status 3: no such thing") as caught:
        cluster.exec("n1", "echo no such thing >&2; exit 3")
    assert caught.value.exit_code == 3


def test_files_and_input_of_any_content(cluster: MiniCluster) -> None:
    text = "Ünïcode 'quotes' \"$HOME\" \\ \n" * 20_000
    cluster.write_file("login", "/home/alice/new/folder/file", text, 0o600, "alice")
    assert cluster.read_file("n1", "/home/alice/new/folder/file") == text
    done = cluster.exec("n2", ["stat", "-c", "%U %a", "/shared/home/alice/new/folder/file"])
    assert done.stdout == "alice 600\n"
    assert cluster.exec("login", ["cat"], stdin=text).stdout == text
    with pytest.raises(FileNotFoundError):
        cluster.read_file("login", "/nowhere")


@pytest.mark.smoke
@pytest.mark.breaks
def test_a_job_survives_the_death_of_every_daemon(cluster: MiniCluster) -> None:
    job = submit(cluster, "bob", "sleep 600", "--gres=gpu:1", "-w", "n1")
    wait_state(cluster, job, "RUNNING")
    # Killed before it has saved its state, slurmctld forgets the job. It saves only what has changed, at most
    # every 5 s.
    newer = f"[ $(stat -c %Y /var/spool/slurmctld/job_state) -gt {int(time.time()) + 1} ]"
    saved = f"until {newer}; do scontrol update jobid={job} comment=$SECONDS; sleep 1; done"
    cluster.exec("ctl", ["timeout", "60", "bash", "-c", saved])
    for host, name in DAEMONS_OF_A_JOB:
        service = cluster.service(host, name)
        service.kill()
        assert not service.running()
        service.start()
        assert service.running()
    wait_state(cluster, job, "RUNNING")


@pytest.mark.nightly
def test_two_clusters_do_not_meet(cluster: MiniCluster) -> None:
    """Same node names, same job numbers, same engine; what belongs to each is told by its label only."""
    other = MiniCluster(
        cluster.spec.model_copy(update={"name": f"{cluster.name}-b", "nodes": (NodeGroup(names="n1"),)})
    )
    other.down()
    try:
        other.up()
        assert other.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N"]).stdout == "n1\n"
        job = submit(other, "alice", SHOW_GPUS, "--gres=gpu:1", wait=True)
        assert output(other, "alice", job).count(OWN) == 1
        assert MiniCluster.attach(other.name).spec == other.spec
    finally:
        other.down()
    with pytest.raises(MiniClusterError, match="no mini cluster"):
        MiniCluster.attach(other.name)
    cluster.wait_nodes_idle()
