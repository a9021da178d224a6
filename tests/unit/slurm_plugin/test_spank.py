# SPDX-License-Identifier: GPL-2.0-or-later
"""The SPANK plugin, loaded by a small host that does for it what sbatch, srun and slurmstepd do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PLUGIN_SOURCES = Path(__file__).parents[3] / "slurm_plugin"
BATCH_STEP = 0xFFFFFFFB
PLAIN = {"PATH": "/usr/bin:/bin"}


@dataclass(frozen=True)
class Result:
    """What became of one run."""

    refused: bool
    messages: tuple[str, ...]
    environment: Mapping[str, str]


class Host:
    """Runs the plugin in one of Slurm's contexts."""

    def __init__(self, build: Path) -> None:
        self.plugin = build / "spank_gandiva.so"
        self._host = build / "fake_slurm"

    def run(
        self,
        context: str,
        *options: str,
        words: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        program: str = "",
        **items: int,
    ) -> Result:
        """Start it with plugstack words, flags (`gandiva-weight=2`) and job=, step=, task= numbers, under
        the name of a `program`."""
        return self.end(self.start(context, *options, words=words, env=env, program=program, **items))

    def start(
        self,
        context: str,
        *options: str,
        words: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        program: str = "",
        **items: int,
    ) -> subprocess.Popen[str]:
        """As `run`, which also waits for the end."""
        argv = [program or str(self._host), str(self.plugin), context]
        for word in words:
            argv += ["-a", word]
        for option in options:
            argv += ["-o", option]
        for name, value in items.items():
            argv += ["-i", f"{name}={value}"]
        pipe = subprocess.PIPE
        environ = {**PLAIN, **(env or {})}
        return subprocess.Popen(argv, executable=self._host, stdout=pipe, stderr=pipe, text=True, env=environ)

    @staticmethod
    def end(process: subprocess.Popen[str]) -> Result:
        """What became of it."""
        try:
            stdout, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode in (0, 1), stderr
        pairs = (line.partition("=") for line in stdout.splitlines())
        return Result(
            refused=process.returncode == 1,
            messages=tuple(stderr.splitlines()),
            environment={name: value for name, _, value in pairs},
        )


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """The plugin and its host, built once."""
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("no make or no C compiler")
    build = tmp_path_factory.mktemp("spank")
    make = ["make", "-s", "-C", str(PLUGIN_SOURCES), f"BUILD={build}", f"SBIN_DIR={build}"]
    if subprocess.run([*make, "headers"], capture_output=True).returncode:
        pytest.skip("Slurm's headers are missing: install libslurm-dev")
    subprocess.run([*make, "all", f"{build}/fake_slurm"], check=True, timeout=120)
    return Host(build)


def test_only_what_slurm_looks_for_is_visible(host: Host) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(host.plugin)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    wanted = {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"}
    wanted |= {"slurm_spank_init", "slurm_spank_init_post_opt"}
    wanted |= {"slurm_spank_task_post_fork", "slurm_spank_task_init"}
    # Older headers have no such thing as a failure mode.
    assert names - {"slurm_spank_init_failure_mode"} == wanted


# --- sbatch, salloc, srun -----------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        *[f"gandiva-weight={value}" for value in ("0.1", "1", "2.5", "100", "100.0", "0.10000")],
        *[f"gandiva-gpus={value}" for value in ("1-1", "1-4096", "2-8")],
        *["gandiva-pack=yes", "gandiva-migrate=no", "gandiva-suspend=transparent", "gandiva", "no-gandiva"],
        *[
            "gandiva-gpu-types=a100",
            "gandiva-gpu-types=A100,h100_80gb,2080ti",
            "gandiva-gpu-types=" + ",".join(f"{i:064}" for i in range(9)),
            "gandiva-model=GPT-2_x.1+" + "y" * 50,
        ],
        *["gandiva-search=lr", "gandiva-search=GPT-2_x.1+" + "y" * 50],
    ],
)
def test_allowed_values(host: Host, option: str) -> None:
    result = host.run("allocator", option)
    assert not result.refused and result.messages == ()


def test_scrontab_which_hands_no_flag_on_takes_none(host: Host) -> None:
    asks = host.run("allocator", "gandiva", program="scrontab")
    assert asks.refused and "job of scrontab cannot be time-sliced" in asks.messages[0]
    assert not host.run("allocator", "no-gandiva", program="scrontab").refused


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        *[
            ("gandiva-weight", value, "a number from 0.1 to 100")
            for value in (
                "",
                "0",
                "0.09",
                "100.01",
                "101",
                "1e1",
                "0x1",
                "nan",
                "1,5",
                "1.",
                ".5",
                "-1",
                " 1",
                "1" * 400,
            )
        ],
        *[
            ("gandiva-gpus", value, "MIN-MAX")
            for value in ("2", "0-1", "2-1", "1-4097", "1-", "-1", "1-2-3", "1-2x")
        ],
        *[("gandiva-pack", value, "yes or no") for value in ("", "true", "YES")],
        ("gandiva-migrate", "perhaps", "yes or no"),
        ("gandiva-suspend", "Requeue", "cooperative, transparent or requeue"),
        *[
            ("gandiva-gpu-types", value, "different GPU models")
            for value in (
                "",
                "a100 ",
                "a100,",
                ",a100",
                "a100,,b",
                "a100,a100",
                "a/b",
                "x" * 65,
                ",".join("abcdefghijklmnopq"),
            )
        ],
        *[
            (flag, value, "1 to 64 letters")
            for flag in ("gandiva-model", "gandiva-search")
            for value in ("", "a b", "x" * 65, 'x"', "x\ny", "é")
        ],
    ],
)
def test_wrong_values_are_refused_with_one_message(host: Host, flag: str, value: str, allowed: str) -> None:
    result = host.run("allocator", f"{flag}={value}")
    assert result.refused
    assert len(result.messages) == 1
    assert result.messages[0].startswith(f"error: gandiva: --{flag}=")
    assert allowed in result.messages[0]
    assert len(result.messages[0]) < 300


@pytest.mark.parametrize("options", [("gandiva", "no-gandiva"), ("no-gandiva", "gandiva-weight=2")])
def test_contradictions(host: Host, options: tuple[str, str]) -> None:
    result = host.run("allocator", *options)
    assert result.refused
    assert len(result.messages) == 1 and "contradicts" in result.messages[0]
    assert "--no-gandiva" in result.messages[0] and "give one of them" in result.messages[0]


@pytest.mark.parametrize(
    "word",
    ["jobside=relative", "jobside=/a:b", "run_dir=", "default=maybe", "typo=1", "run_dir=/" + "x" * 600],
)
def test_wrong_words_in_plugstack(host: Host, word: str) -> None:
    local = host.run("allocator", words=(word,))
    assert local.refused and len(local.messages) == 1 and "gandiva: plugstack: " in local.messages[0]
    # On a node init must not fail (Slurm would drain the node); the task does.
    remote = host.run("remote", words=(word,))
    assert remote.refused and "plugstack.conf is wrong on this node" in remote.messages[-1]


JOB_OF_STEP = {"SLURM_JOB_ID": "7", "GANDIVA_JOB": "1"}
GIVEN = "SLURM_SPANK__SLURM_SPANK_OPTION_gandiva_"


def test_a_step_takes_its_jobs_flags_and_no_others(host: Host) -> None:
    # Slurm hands the job's flags on through the environment, as if srun had got them.
    inherited = {**JOB_OF_STEP, GIVEN + "gandiva_weight": "2", GIVEN + "gandiva": "(null)"}
    assert not host.run("local", "gandiva-weight=2", "gandiva", env=inherited).refused
    for options in (("gandiva-weight=3",), ("gandiva-weight=2", "gandiva-pack=yes")):
        result = host.run("local", *options, env=inherited)
        assert result.refused and "srun starts a step of job 7" in result.messages[0]
    assert not host.run("local", "gandiva-weight=3").refused


def test_a_job_submitted_from_within_a_job_has_no_flags_but_its_own(host: Host) -> None:
    names = re.findall(r"GANDIVA_[A-Z_]+", (PLUGIN_SOURCES / "spank/options.c").read_text())
    assert "GANDIVA_MAX_GPUS" in names
    inherited = {**dict.fromkeys(names, "1"), GIVEN + "gandiva": "(null)", GIVEN + "gandiva_weight": "2"}
    inherited["_SLURM_SPANK_OPTION_gandiva_gandiva_gpu_types"] = "a100"  # as in a step, and in salloc's shell
    inherited["_SLURM_SPANK_OPTION_gandiva_no_gandiva"] = ""
    job = {"SLURM_JOB_ID": "7", "SLURM_SPANK__SLURM_SPANK_OPTION_other_gandiva": "1"}
    assert host.run("allocator", env={**inherited, **job}).environment == {**PLAIN, **job}
    # Outside a job they are the user's own.
    assert host.run("allocator", env=inherited).environment == {**PLAIN, **inherited}


def test_steps_do_not_ask_again_for_gpus(host: Host) -> None:
    asked = {
        "SLURM_GPUS": "2",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_CPUS_PER_GPU": "4",
        "SLURM_TRES_PER_TASK": "cpu:2,gres/gpu=3",
        "SLURM_NTASKS": "2",
    }
    step = host.run("local", env={**JOB_OF_STEP, **asked}).environment
    assert not {"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_CPUS_PER_GPU"} & set(step)
    assert step["SLURM_TRES_PER_TASK"] == "cpu:2"
    assert step["GANDIVA_GPUS_PER_TASK"] == "3"
    assert step["SLURM_NTASKS"] == "2"
    # salloc's shell is not on a node: the flags tell.
    shell = {"SLURM_JOB_ID": "7", GIVEN + "gandiva": "(null)", "SLURM_GPUS_PER_TASK": "a100:1"}
    step = host.run("local", env=shell).environment
    assert "SLURM_GPUS_PER_TASK" not in step and step["GANDIVA_GPUS_PER_TASK"] == "1"


def test_steps_of_ordinary_jobs_lose_the_type_only(host: Host) -> None:
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS": "a100:2",
        "SLURM_GPUS_PER_NODE": "2",
        "SLURM_GPUS_PER_TASK": "a100_1:1",
    }
    step = host.run("local", env=job).environment
    assert {name: step[name] for name in job} == {**job, "SLURM_GPUS": "2"}
    outside = host.run("local", env={"SLURM_GPUS": "a100:2"}).environment
    assert outside["SLURM_GPUS"] == "a100:2", "slurmctld has not rewritten that yet"


def test_an_srun_of_its_own_says_so(host: Host) -> None:
    assert host.run("local", "gandiva").environment["JOB_CONTROL_GANDIVA_CLIENT"] == "srun"
    assert "JOB_CONTROL_GANDIVA_CLIENT" not in host.run("allocator", "gandiva").environment
    assert "JOB_CONTROL_GANDIVA_CLIENT" not in host.run("local", env=JOB_OF_STEP).environment


# --- slurmstepd ----------------------------------------------------------------


class Block:
    """A control block as the node agent makes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "7"
        self.folder.mkdir(mode=0o755)
        self.visible = self.folder / "visible"
        self.turn = self.folder / "turn"
        self.take("on\n")

    @property
    def words(self) -> tuple[str, ...]:
        return (f"run_dir={self.root}", "jobside=/opt/job side")

    def take(self, text: str) -> None:
        """Write `turn`, as the agent does it: as a whole."""
        draft = self.folder / ".turn.new"
        draft.write_text(text)
        draft.chmod(0o644)
        draft.replace(self.turn)

    def show(self, text: str) -> None:
        """Write `visible`."""
        self.visible.write_text(text)
        self.visible.chmod(0o644)


@pytest.fixture
def block(tmp_path: Path) -> Block:
    if os.geteuid() != 0:
        pytest.skip("control blocks are root's: run as root")
    tmp_path.chmod(0o755)
    return Block(tmp_path)


GPUS4 = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "GPU_DEVICE_ORDINAL": "4,5,6,7", "SLURM_JOB_GPUS": "4,5,6,7"}
SHARDS4 = {**GPUS4, "SLURM_SHARDS_ON_NODE": "4"}
"""Of a job that shares GPUs."""


def test_a_jobs_turn_narrows_its_gpus(host: Host, block: Block) -> None:
    block.show("2,0\n")
    task = host.run("remote", "gandiva", words=block.words, env=GPUS4).environment
    assert task["CUDA_VISIBLE_DEVICES"] == task["GPU_DEVICE_ORDINAL"] == "6,4"
    assert task["SLURM_GPUS_ON_NODE"] == "2"
    assert task["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "as the agent counts positions"
    assert task["GANDIVA_JOB"] == "1"
    assert task["GANDIVA_CONTROL_DIR"] == str(block.folder)
    assert task["PYTHONPATH"] == "/opt/job side"


def test_without_visible_all_gpus_stay(host: Host, block: Block) -> None:
    task = host.run("remote", "gandiva", words=block.words, env=GPUS4).environment
    assert task["CUDA_VISIBLE_DEVICES"] == "4,5,6,7" and task["SLURM_GPUS_ON_NODE"] == "4"


@pytest.mark.parametrize("turn", ["off\n", None])
def test_a_step_waits_until_its_job_is_on_its_gpus(host: Host, block: Block, turn: str | None) -> None:
    """Off its GPUs, or started by Slurm when no controller chose it: the prolog's block says nothing."""
    if turn is None:
        block.turn.unlink()
    else:
        block.take(turn)
    task = host.start("remote", "gandiva", words=block.words, env=SHARDS4)
    assert task.stderr is not None
    message = task.stderr.readline()  # said after a while, and nothing ends before
    assert "waits until the Gandiva controller puts it onto its GPUs" in message
    assert ("is off its GPUs" if turn else "nobody has prepared this start") in message
    block.show("1")
    block.take("on\n")
    assert host.end(task).environment["CUDA_VISIBLE_DEVICES"] == "5"


def test_whole_gpus_are_slurms_to_give(host: Host, block: Block) -> None:
    """A controller that stops for good gives jobs that wait back to Slurm: nobody prepares these."""
    block.turn.unlink()
    task = host.run("remote", "gandiva", words=block.words, env=GPUS4).environment
    assert task["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


@pytest.mark.parametrize(("option", "word"), [(("gandiva",), ()), ((), ("default=on",))])
def test_a_job_with_shards_waits_for_its_control_block(
    host: Host, block: Block, option: tuple[str, ...], word: tuple[str, ...]
) -> None:
    """A node that lost it, or that has no prolog. (Shards are held by Gandiva's jobs only where the site has
    time-slicing on by default.)"""
    elsewhere = block.folder.rename(block.root / "8")
    task = host.start("remote", *option, words=(*block.words, *word), env=SHARDS4)
    assert task.stderr is not None and "nobody has prepared this start" in task.stderr.readline()
    elsewhere.rename(block.folder)
    assert host.end(task).environment["GANDIVA_CONTROL_DIR"] == str(block.folder)


def test_a_step_that_cannot_be_confined_does_not_run(host: Host, block: Block) -> None:
    """This process is no job's: the tool has no control group to close devices in."""
    block.take("on +195:6 -195:4 -195:5 -195:7\n")
    refused = host.run("remote", words=block.words, env=GPUS4)
    assert refused.refused and "ConstrainDevices=yes" in refused.messages[0]
    assert "cannot keep this step off the GPUs of other jobs, so it does not run" in refused.messages[1]


def test_positions_count_the_jobs_gpus_also_in_a_step_with_fewer(host: Host, block: Block) -> None:
    block.show("2")
    step = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5,6,7", "SLURM_STEP_GPUS": "5,6"}
    assert host.run("remote", words=block.words, env=step).environment["CUDA_VISIBLE_DEVICES"] == "1"
    block.show("0")
    refused = host.run("remote", words=block.words, env=step)
    assert (
        refused.refused and "the job's turn is on GPU 4, but this step was given 5,6" in refused.messages[0]
    )


def test_a_step_without_gpus_stays_without(host: Host, block: Block) -> None:
    block.show("1")
    task = host.run("remote", words=block.words).environment
    assert "CUDA_VISIBLE_DEVICES" not in task and "SLURM_GPUS_ON_NODE" not in task


@pytest.mark.parametrize(
    "text", ["", "\n", "a", "1,", ",1", "1 2", "1,1", "-1", "256", "0001", "4", "1\n\n", "1;2", "1,2," * 400]
)
def test_a_senseless_visible_fails_the_task(host: Host, block: Block, text: str) -> None:
    block.show(text)
    result = host.run("remote", words=block.words, env=GPUS4)
    assert result.refused
    assert len(result.messages) == 1 and str(block.visible) in result.messages[0]


def test_only_roots_files_count(host: Host, block: Block) -> None:
    def refused(reason: str) -> None:
        result = host.run("remote", words=block.words, env=GPUS4)
        assert result.refused and reason in result.messages[0], result.messages

    block.show("1")
    block.visible.chmod(0o666)
    refused("nobody else can write")
    block.visible.chmod(0o644)
    os.chown(block.visible, 12345, 0)
    refused("owner 12345")
    block.visible.unlink()
    (block.root / "other").write_text("1")
    block.visible.symlink_to(block.root / "other")
    refused("cannot open")
    block.visible.unlink()
    os.mkfifo(block.visible)
    refused("not a regular file")
    block.visible.unlink()
    block.visible.mkdir()
    refused("not a regular file")
    block.visible.rmdir()
    block.folder.chmod(0o777)
    refused("is not root's alone")
    block.folder.chmod(0o755)
    os.chown(block.folder, 12345, 0)
    refused("is not root's alone")
    block.turn.unlink()
    block.folder.rmdir()
    block.folder.symlink_to(block.root)
    refused("cannot open")


def test_flags_become_variables_and_stale_ones_go(host: Host, block: Block) -> None:
    stale = {
        "GANDIVA_WEIGHT": "9",
        "GANDIVA_PACK": "no",
        "GANDIVA_SEARCH": "that-of-another-job",
        "GANDIVA_MIN_GPUS": "9",
        "GANDIVA_CONTROL_DIR": "/elsewhere",
    }
    options = (
        "gandiva-weight=2.5",
        "gandiva-gpus=1-4",
        "gandiva-suspend=requeue",
        "gandiva-gpu-types=a100,h100",
    )
    task = host.run("remote", *options, "gandiva-model=m", words=block.words, env=stale).environment
    ours = {name: value for name, value in task.items() if name.startswith("GANDIVA_")}
    assert ours == {
        "GANDIVA_JOB": "1",
        "GANDIVA_CONTROL_DIR": str(block.folder),
        "GANDIVA_WEIGHT": "2.5",
        "GANDIVA_MIN_GPUS": "1",
        "GANDIVA_MAX_GPUS": "4",
        "GANDIVA_SUSPEND": "requeue",
        "GANDIVA_GPU_TYPES": "a100,h100",
        "GANDIVA_MODEL": "m",
    }


def test_a_wrong_flag_that_came_past_sbatch_is_left_out(host: Host, block: Block) -> None:
    result = host.run("remote", "gandiva-weight=1e9", "gandiva", words=block.words)
    assert not result.refused and "GANDIVA_WEIGHT" not in result.environment


@pytest.mark.parametrize(
    ("old", "new"),
    [(None, "/j"), ("", "/j"), ("/a:/b", "/j:/a:/b"), ("/j", "/j"), ("/j:/a", "/j:/a"), ("/jj", "/j:/jj")],
)
def test_python_path(host: Host, block: Block, old: str | None, new: str) -> None:
    env = {} if old is None else {"PYTHONPATH": old}
    task = host.run("remote", words=(f"run_dir={block.root}", "jobside=/j"), env=env).environment
    assert task["PYTHONPATH"] == new


@pytest.mark.parametrize(
    ("each", "task", "expected"),
    [
        ("1", 0, "4"),
        ("1", 3, "7"),
        ("2", 1, "6,7"),
        ("1", 4, "4"),
        ("9", 0, "4,5,6,7"),
        ("x", 1, "4,5,6,7"),
        ("0", 1, "4,5,6,7"),
    ],
)
def test_gpus_per_task(host: Host, block: Block, each: str, task: int, expected: str) -> None:
    env = {**GPUS4, "GANDIVA_GPUS_PER_TASK": each}
    step = host.run("remote", words=block.words, env=env, task=task).environment
    assert step["CUDA_VISIBLE_DEVICES"] == expected
    script = host.run("remote", words=block.words, env=env, step=BATCH_STEP).environment
    assert script["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


def test_the_nodes_name_in_run_dir(host: Host, block: Block) -> None:
    words = (f"run_dir={block.root.parent}/%n",)
    task = host.run("remote", words=words, env={"SLURMD_NODENAME": block.root.name}).environment
    assert task["GANDIVA_CONTROL_DIR"] == str(block.folder)
    hostile = host.run("remote", "gandiva", words=words, env={"SLURMD_NODENAME": "../.."})
    assert hostile.refused and "cannot tell the job's control block" in hostile.messages[0]


def test_ordinary_jobs_are_left_as_they_are(host: Host, tmp_path: Path) -> None:
    words = (f"run_dir={tmp_path}",)
    inherited = {"GANDIVA_JOB": "1", "GANDIVA_CONTROL_DIR": "/run/gandiva/6", "GANDIVA_WEIGHT": "2"}
    for options in ((), ("no-gandiva",)):
        task = host.run("remote", *options, words=words, env={**GPUS4, **inherited}).environment
        assert task == {**PLAIN, **GPUS4}


def test_a_gandiva_job_without_control_block(host: Host, tmp_path: Path) -> None:
    words = (f"run_dir={tmp_path}",)
    task = host.run("remote", "gandiva", words=words, env=GPUS4).environment
    assert task["GANDIVA_JOB"] == "1" and "GANDIVA_CONTROL_DIR" not in task
    assert "GANDIVA_JOB" not in host.run("remote", words=(*words, "default=on"), env=GPUS4).environment
    assert "GANDIVA_JOB" not in host.run("remote", words=(*words, "default=off"), env=SHARDS4).environment
