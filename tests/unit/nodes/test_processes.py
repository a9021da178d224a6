# SPDX-License-Identifier: GPL-2.0-or-later
"""Processes and jobs, from a made-up /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from controller.agent.identity import CgroupOwner, SlurmJobs, parse_cgroup
from controller.agent.process_table import ProcessTable
from controller.agent.processes import Processes, ProcessId

V1 = """9:name=systemd:/
6:freezer:/slurm/uid_1000/job_12/step_0
5:devices:/slurm/uid_1000/job_12/step_0/task_0
0::/
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (V1, CgroupOwner(12, None, None)),
        ("4:memory:/docker/0a1b/slurm/uid_5/job_77/step_batch/task_0\n", CgroupOwner(77, None, None)),
        ("6:freezer:/slurm_n3/uid_1000/job_12/step_0\n", CgroupOwner(12, None, "n3")),
        (
            "0::/system.slice/slurmstepd.scope/job_4294967295/step_0/user/task_0\n",
            CgroupOwner(4294967295, None, None),
        ),
        ("0::/system.slice/n3_slurmstepd.scope/job_9/step_0/user/task_0\n", CgroupOwner(9, None, "n3")),
        (
            "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n",
            CgroupOwner(None, "sEKNKTV3WPV500", None),
        ),
        ("0::/system.slice/sshd.service\n", None),
        # A user may name control groups of their own as they like.
        ("0::/user.slice/user-1000.slice/user@1000.service/slurm/uid_0/job_5\n", None),
        ("0::/user.slice/user-1000.slice/x/system.slice/slurmstepd.scope/job_5/step_0\n", None),
        ("6:freezer:/slurm/uid_1000/job_12x/step_0\n", None),
        ("", None),
    ],
)
def test_parse_cgroup(text: str, expected: CgroupOwner | None) -> None:
    assert parse_cgroup(text) == expected


class Table:
    """A /proc in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        self.owners: dict[int, int] = {12: 1000}

    def add(
        self,
        pid: int,
        *,
        cgroup: str = "0::/\n",
        uid: int = 1000,
        state: str = "S",
        comm: str = "python",
        cmdline: str = "python",
        environ: dict[str, str] | None = None,
        start: int = 500,
        parent: int = 1,
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "status").write_text(f"Name:\t{comm}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        fields = [state, str(parent)] + ["0"] * 17 + [str(start)] + ["0"] * 30
        (folder / "stat").write_text(f"{pid} (a ) name) {' '.join(fields)}\n")
        (folder / "comm").write_text(f"{comm}\n")
        (folder / "cmdline").write_bytes(cmdline.encode())
        pairs = (environ or {}).items()
        (folder / "environ").write_bytes(b"\0".join(f"{key}={value}".encode() for key, value in pairs))

    def processes(self, node: str = "n1") -> Processes:
        return Processes(SlurmJobs(node, self.owners.get, ProcessTable(self.proc)), self.cgroups)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_process_in_a_jobs_control_group_is_that_jobs(table: Table) -> None:
    table.add(50, cgroup=V1, environ={"SLURM_JOB_ID": "99"})
    assert table.processes().job_of(50) == 12
    assert table.processes().job_of(51) is None
    assert table.processes().uid(50) == 1000
    assert table.processes().alive(ProcessId(50, 500))
    assert not table.processes().alive(ProcessId(50, 501))


def test_another_slurmd_on_the_host_has_jobs_of_its_own(table: Table) -> None:
    table.add(50, cgroup="6:freezer:/slurm_n2/uid_1000/job_12/step_0\n")
    assert table.processes("n2").job_of(50) == 12
    assert table.processes("n1").job_of(50) is None


def test_a_sluid_is_looked_up_in_slurms_own_process(table: Table) -> None:
    folder = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0"
    table.add(50, cgroup=f"{folder}/user/task_0\n", environ={"SLURM_JOB_ID": "4"})
    # A user's process with the right name and title is not believed.
    table.add(60, cgroup=f"{folder}/user/task_0\n", comm="slurmstepd", cmdline="slurmstepd: [77.0]")
    assert table.processes().job_of(50) is None
    table.add(
        70, cgroup=f"{folder}/slurm\n", uid=0, comm="slurmstepd", cmdline="slurmstepd: [31.batch stepmgr]"
    )
    assert table.processes().job_of(50) == 31


def test_without_control_groups_the_environment_counts_for_the_jobs_own_user_only(table: Table) -> None:
    table.add(50, environ={"SLURM_JOB_ID": "12"})
    table.add(51, environ={"SLURM_JOB_ID": "12"}, uid=1001)
    table.add(52, environ={"SLURM_JOB_ID": "13"})
    table.add(53, environ={"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n2"})
    table.add(54, environ={"SLURM_JOB_ID": "12; rm"})
    found = table.processes()
    assert [found.job_of(pid) for pid in range(50, 55)] == [12, None, None, None, None]


def test_processes_of_a_job_are_the_users(table: Table) -> None:
    table.add(50, cgroup=V1)
    table.add(51, cgroup=V1, uid=0, comm="slurmstepd")
    table.add(52, cgroup=V1, uid=0, comm="sleep")
    table.add(53, cgroup=V1, state="Z")
    table.add(54, cgroup="0::/\n")
    assert table.processes().of_job(12) == (ProcessId(50, 500),)


def test_no_name_hides_a_process_of_the_user(table: Table) -> None:
    """Anybody can call a process slurmstepd (prctl). Slurm's own run as root, in root's jobs too."""
    table.add(50, cgroup=V1, comm="slurmstepd", cmdline="slurmstepd: [12.0]")
    assert table.processes().of_job(12) == (ProcessId(50, 500),)
    table.owners[12] = 0
    table.add(51, cgroup=V1, uid=0, comm="slurmstepd")
    table.add(52, cgroup=V1, uid=0)
    assert sorted(found.pid for found in table.processes().of_job(12)) == [50, 52]


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_signal_reaches_nobody_who_got_the_pid_meanwhile(
    pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look and a signal a pid can be used again: root must not stop a stranger."""
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    processes = Processes(SlurmJobs("n1", lambda _job: None))
    with subprocess.Popen(["sleep", "5"]) as child:
        start = processes.start_time_ticks(child.pid)
        assert start is not None
        ended = ProcessId(child.pid, start - 1)
        processes.send([ended], signal.SIGKILL)
        processes.send([ProcessId(child.pid, start)], signal.SIGTERM)
        assert child.wait(timeout=60) == -signal.SIGTERM, "the first signal was meant for another process"
    processes.send([ProcessId(child.pid, start)], signal.SIGTERM)


def test_stopped_and_frozen(table: Table) -> None:
    table.add(50, cgroup=V1, state="T")
    table.add(51, cgroup=V1, state="D")
    table.add(52, cgroup="0::/system.slice/slurmstepd.scope/job_12/step_0/user\n")
    table.add(53, cgroup=V1)
    found = table.processes()
    assert [found.halted(pid) for pid in (50, 51, 52, 53, 99)] == ["stopped", None, None, None, None]
    freezer = table.cgroups / "freezer/slurm/uid_1000/job_12/step_0"
    freezer.mkdir(parents=True)
    (freezer / "freezer.state").write_text("FROZEN\n")
    unified = table.cgroups / "system.slice/slurmstepd.scope/job_12/step_0/user"
    unified.mkdir(parents=True)
    (unified / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert [found.halted(pid) for pid in (50, 51, 52, 53)] == ["stopped", "frozen", "frozen", "frozen"]


def test_a_step_is_there_as_long_as_slurms_own_process_of_it(table: Table) -> None:
    """(The name and the title of a user's process can be anything.)"""
    table.add(51, comm="slurmstepd", cmdline="slurmstepd: [12.0]")
    table.add(52, uid=0, comm="slurmstepd", cmdline="slurmstepd: [120.batch]")
    table.add(53, uid=0, comm="sleep", cmdline="slurmstepd: [12.batch]")
    found = table.processes()
    assert not found.is_here(12) and found.is_here(120)
    table.add(54, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.batch]")
    assert found.is_here(12)


def test_a_job_is_here_as_long_as_a_process_of_it(table: Table) -> None:
    table.add(50, cgroup=V1, state="Z")
    found = table.processes()
    assert not found.is_here(12)
    table.add(51, cgroup=V1)
    assert found.is_here(12) and not found.is_here(120)


OF_USERS = "user.slice/user-1000.slice/slurmstepd.scope/job_12/step_0/user"


@pytest.mark.parametrize("unified", ["", "unified/"])
def test_a_step_is_frozen_where_slurm_freezes_it(table: Table, unified: str) -> None:
    table.add(50, cgroup=V1)
    table.add(51, cgroup="0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_0/own\n")
    table.add(52, cgroup=f"{V1}0::/{OF_USERS}/own\n")
    first = table.cgroups / "freezer/slurm/uid_1000/job_12/step_0/freezer.state"
    second = table.cgroups / unified / "system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/user"
    third = table.cgroups / unified / OF_USERS
    for file in (first, second / "cgroup.freeze", third / "cgroup.freeze"):
        file.parent.mkdir(parents=True)
        file.write_text("")
    found = table.processes()
    processes = [ProcessId(pid, 500) for pid in (50, 51, 52, 99)]
    for frozen in (True, False):
        found.freeze(processes, frozen)
        assert first.read_text() == ("FROZEN" if frozen else "THAWED")
        assert (second / "cgroup.freeze").read_text() == str(int(frozen))
        assert (third / "cgroup.freeze").read_text() == "", "its owner may have made it"
        assert found.halted(50) == ("frozen" if frozen else None)


def test_whatever_looks_like_a_job_counts_as_its_life(table: Table) -> None:
    found = table.processes()
    table.add(40, cgroup="0::/\n")
    assert found.living(12) == 0
    table.add(50, cgroup=V1)
    table.add(51, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.batch]")
    # Whose control block has gone has no owner here: its environment counts whoever it is of.
    table.add(52, environ={"SLURM_JOB_ID": "12"}, uid=4711)
    table.add(53, environ={"SLURM_JOB_ID": "121"})
    table.add(54, uid=0, comm="slurmstepd", cmdline="slurmstepd: [121.batch]")
    assert found.living(12) == 3
    assert found.living(121) == 2


def test_a_step_is_being_started_until_the_user_has_a_process_in_it(table: Table) -> None:
    found = table.processes()
    table.add(40, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.extern]")
    table.add(41, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.batch]")
    table.add(42, parent=41)
    table.add(43, uid=0, comm="slurmstepd", cmdline="slurmstepd: [13.0]")
    assert found.launching(12) == []
    table.add(50, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.1]")
    assert found.launching(12) == ["1"]
    # Its fork that will become the user's process is Slurm's still.
    table.add(51, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.1]", parent=50)
    assert found.launching(12) == ["1", "1"]
    table.add(52, parent=50)
    table.add(53, parent=51)
    assert found.launching(12) == []
    # A user's process can have any name.
    table.add(60, comm="slurmstepd", cmdline="slurmstepd: [12.2]")
    assert found.launching(12) == []


def test_a_step_whose_only_process_has_just_ended_is_not_counted_as_started(table: Table) -> None:
    table.add(50, uid=0, comm="slurmstepd", cmdline="slurmstepd: [12.1]")
    table.add(51, parent=50, state="Z")
    assert table.processes().launching(12) == ["1"]
