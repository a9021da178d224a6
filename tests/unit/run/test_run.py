# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva run` on a workstation: real supervisors, agents and trainings on mock GPUs, as their user."""

from __future__ import annotations

import random
import signal
import subprocess

import pytest

from controller.journal import JournalReader
from controller.run.folder import StudyFolder, Supervisor
from tests.unit.draws import draws
from tests.unit.run.conftest import PATIENCE_SECONDS, Workstation, eventually

STEPS = 60
KILLS = draws(4, 20)


def policy(text: str, workstation: Workstation, *words: str, seeds: tuple[int, ...] = (1, 2, 3, 4)) -> str:
    """A study under this policy, a training for each seed."""
    return (
        f"[policy]\n{text}\n[trial]\ncommand = '{workstation.train(STEPS, *words)}'\n"
        f"[grid]\nseed = {list(seeds)}\n"
    )


GANDIVA = 'name = "gandiva"\ngandiva.slice_seconds = 0.5'
OTHERS = """
[[trials]]
name = "no-session"
with = { seed = 5 }
command = '%s'
[[trials]]
name = "no-gpu"
command = ["sh", "-c", "sleep 0.2; echo $GANDIVA_TRIAL $CUDA_VISIBLE_DEVICES"]
"""


@pytest.mark.parametrize(
    "chosen", [GANDIVA, 'name = "tiresias-las"\ntiresias.queue_limits = [0.5]'], ids=["gandiva", "las"]
)
def test_six_trials_take_turns_on_two_gpus(workstation: Workstation, chosen: str) -> None:
    """With and without a session, and without a GPU: each computes what it does alone, and no two are on one
    GPU at the same time."""
    without = workstation.train(STEPS, "--no-step")
    file = workstation.study(policy(chosen, workstation) + OTHERS % without)
    status, said = workstation.run(file)
    assert status == 0, said
    alone = workstation.undisturbed(workstation.train(STEPS), 1, 2, 3, 4, 5)
    found = workstation.digests()
    assert found == {
        **{f"seed={seed}": [alone[seed]] for seed in (1, 2, 3, 4)},
        "no-session": [alone[5]],
        "no-gpu": [],
    }
    uuid = workstation.output(6).split()[1]
    assert workstation.output(6).split()[0] == "6" and uuid.startswith("GPU-")
    assert workstation.overlaps() == ""
    rows = JournalReader(workstation.folder / "lr" / "journal.sqlite").jobs()
    assert [row.record.state for row in rows] == ["COMPLETED"] * 6
    assert sum(row.slices for row in rows) > 8, "they have taken turns"
    assert all(trial.restarts == 0 for trial in workstation.trials().values())
    assert workstation.processes() == []
    assert list(workstation.run_dir().iterdir()) == []
    assert "ERROR" not in (workstation.folder / "lr" / "log").read_text()


@pytest.mark.parametrize("journal_lost", [False, True])
def test_supervisors_are_killed_at_any_moment(workstation: Workstation, journal_lost: bool) -> None:
    """The trials go on without one; the next one goes on with them, also where it has no more of the journal
    than the copy in the folder. Each is run to its end once."""
    file = workstation.study(policy(GANDIVA, workstation))
    moments = random.Random(29)
    for _ in range(KILLS):
        process = workstation.start(file)
        try:
            process.wait(moments.uniform(0.3, 1.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        for part in workstation.run_dir().glob("journal.sqlite*") if journal_lost else ():
            part.unlink()
    status, said = workstation.run(file)
    assert status == 0, said
    alone = workstation.undisturbed(workstation.train(STEPS), 1, 2, 3, 4)
    assert workstation.digests() == {f"seed={seed}": [alone[seed]] for seed in (1, 2, 3, 4)}
    assert {trial.restarts for trial in workstation.trials().values()} == {0}
    assert workstation.overlaps() == ""


@pytest.mark.parametrize("suspend", ["cooperative", "transparent"])
def test_a_supervisor_that_ends_saves_its_trials(workstation: Workstation, suspend: str) -> None:
    """Those on GPUs and those off them, also where the driver has their memory. The next one goes on at the
    same steps; what has no store begins anew."""
    text = policy(GANDIVA, workstation, "--store {store}", seeds=(1, 2, 3))
    text = text.replace("[trial]", f'[trial]\nsuspend = "{suspend}"')
    file = workstation.study(text + '[[trials]]\nname = "plain"\ncommand = ["sleep", "1"]\n')
    process = workstation.start(file)
    store = workstation.folder / "lr" / "checkpoints"
    running = lambda n: "step" in workstation.output(n)  # noqa: E731
    eventually("three trainings that run, or have run", lambda: all(map(running, (1, 2, 3))))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert "into their stores" in said
    assert "without a store" not in said or "begin from a checkpoint of their own or anew: plain" in said
    assert "ERROR" not in (workstation.folder / "lr" / "log").read_text()
    eventually("the end of all", lambda: workstation.processes() == [])
    left = [t.spec.name for t in workstation.trials().values() if t.state_name == "PENDING"]
    assert {name for name in left if name != "plain"} == {
        f"seed={n}" for n in (1, 2, 3) if list((store / f"seed={n}").glob("generation-*"))
    }
    assert left, said
    status, said = workstation.run(file)
    assert status == 0, said
    alone = workstation.undisturbed(workstation.train(STEPS), 1, 2, 3)
    assert workstation.digests() == {**{f"seed={n}": [alone[n]] for n in (1, 2, 3)}, "plain": []}


def test_trials_beyond_the_host_memory_of_a_study_are_stored(workstation: Workstation) -> None:
    """Each has 500 MB and a context on its GPU, which the driver takes off it: one has room in host memory.
    One without a store has its GPU to its end."""
    text = policy(GANDIVA, workstation, "--store {store}", seeds=(1, 2, 3, 4))
    plain = f'[[trials]]\nname = "plain"\nwith = {{ seed = 5 }}\ncommand = "{workstation.train(STEPS)}"\n'
    text = text.replace("[trial]", '[trial]\nsuspend = "transparent"')
    file = workstation.study(f'[study]\nhost_memory = "1200MiB"\n{text}{plain}')
    status, said = workstation.run(file)
    assert status == 0, said
    alone = workstation.undisturbed(workstation.train(STEPS), 1, 2, 3, 4, 5)
    assert workstation.digests() == {**{f"seed={n}": [alone[n]] for n in (1, 2, 3, 4)}, "plain": [alone[5]]}
    restarts = {trial.spec.name: trial.restarts for trial in workstation.trials().values()}
    assert restarts.pop("plain") == 0 and sum(restarts.values()) > 0
    assert workstation.overlaps() == ""


def reasons(workstation: Workstation) -> str:
    """Of all that was decided."""
    reader = JournalReader(workstation.folder / "lr" / "journal.sqlite")
    return " ".join(each.reason for job in reader.jobs() for each in reader.decisions(job.record.id))


@pytest.mark.nightly
def test_trials_share_gpus(workstation: Workstation) -> None:
    """Four on two GPUs: those that are packed compute what they do alone. A slice is longer than what it
    takes to measure a rate (`controller.nodes.progress`)."""
    packs = 'name = "gandiva"\nmoves = ["pack"]\ngandiva.slice_seconds = 5.0\ntrials.trial_seconds = 1.0'
    text = policy(packs, workstation, "--utilisation 30").replace(
        "[trial]", "[trial]\npack = true\nmodel = 'one'"
    )
    status, said = workstation.run(workstation.study(text.replace(f"--steps {STEPS}", "--steps 1200")))
    assert status == 0, said
    alone = workstation.undisturbed(workstation.train(1200), 1, 2, 3, 4)
    assert workstation.digests() == {f"seed={seed}": [alone[seed]] for seed in (1, 2, 3, 4)}
    assert "their memory fits together" in reasons(workstation)
    assert workstation.overlaps() != ""


def test_a_trial_grows_onto_gpus_that_no_other_needs(workstation: Workstation) -> None:
    """From its store, and computes on two what it does on one."""
    grows = 'name = "fifo"\nmoves = ["grow"]\ngrow.idle_seconds = 0.3'
    text = policy(grows, workstation, "--gpus 2 --store {store}", seeds=(1,))
    text = text.replace("[trial]", '[trial]\ngpus = "1-2"').replace(f"--steps {STEPS}", "--steps 200")
    status, said = workstation.run(workstation.study(text))
    assert status == 0, said
    alone = workstation.undisturbed(workstation.train(200, "--gpus 2"), 1)
    assert workstation.digests() == {"seed=1": [alone[1]]}
    assert "grows from 1 to 2 GPUs" in reasons(workstation)
    assert workstation.trials()["seed=1"].restarts > 0


def test_the_command_ends_as_its_trials_did(workstation: Workstation) -> None:
    """Failed ones are run again where that is asked for, and those alone."""
    file = workstation.study(
        "[[trials]]\nname = 'good'\ncommand = 'true'\n"
        "[[trials]]\nname = 'bad'\ncommand = ['sh', '-c', 'test -e mended || exit 3']\n"
    )
    status, said = workstation.run(file)
    assert status == 1 and "trials/N.out, such as 2.out" in said
    assert {n: (t.state_name, t.exit_code) for n, t in workstation.trials().items()} == {
        "good": ("COMPLETED", 0),
        "bad": ("FAILED", 3),
    }
    assert workstation.run(file)[0] == 1, "nothing is left to do"
    file = workstation.study(file.read_text().replace("test -e mended || exit 3", "true"))
    status, said = workstation.run(file, "--retry", "failed")
    assert status == 0, said
    assert "bad: completed" in said and "good" not in said.split("Trial ")[0]


def test_one_supervisor_at_a_time(workstation: Workstation) -> None:
    file = workstation.study("[[trials]]\ncommand = 'sleep 600'\n")
    first = workstation.start(file)
    eventually("a trial", lambda: (workstation.folder / "lr" / "supervisor.json").exists())
    status, said = workstation.run(file)
    assert status == 3 and f"process {first.pid} runs the study" in said


def test_two_studies_do_not_use_one_gpu(workstation: Workstation) -> None:
    """Their trials have the same numbers, and neither knows of the other's before these have memory there."""
    text = "[[trials]]\ncommand = 'sleep 600'\n"
    workstation.start(workstation.study(text), "--gpus", "0")
    eventually("a trial", lambda: (workstation.folder / "lr" / "supervisor.json").exists())
    other = workstation.study("[[trials]]\ncommand = 'true'\n", "other")
    status, said = workstation.run(other)
    assert (
        status == 1 and f"used by the study in {workstation.folder / 'lr'}: choose others with --gpus" in said
    )
    assert not (workstation.folder / "other" / "trials").exists()
    assert workstation.run(other, "--gpus", "1")[0] == 0


def test_a_study_whose_folder_is_gone_leaves_no_processes(workstation: Workstation) -> None:
    process = workstation.start(workstation.study("[[trials]]\ncommand = 'sleep 600'\n"))
    eventually("a trial", lambda: len(workstation.trials()) == 1 and workstation.trials()["trial1"].process)
    (workstation.folder / "lr").rename(workstation.folder / "elsewhere")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode != 0, said
    eventually("the end of all", lambda: workstation.processes() == [])


def test_what_cannot_run_is_said_before_anything_starts(workstation: Workstation) -> None:
    for text, status, words in (
        ("[[trials]]\ncommand = 'true'\ngpus = 3\n", 2, "gpus: it needs 3, and there are 2"),
        ("[[trials]]\n", 2, "command"),
        ("[[trials]]\ncommand = 'true'\ngpu_types = ['h100']\n", 2, "gpu_types"),
    ):
        found, said = workstation.run(workstation.study(text))
        assert found == status and words in said, said
        assert not (workstation.folder / "lr" / "trials").exists()
    status, said = workstation.run(workstation.study("[[trials]]\ncommand = 'true'\n"), "--gpus", "7")
    assert status == 1 and "there is no GPU 7" in said
    workstation.environ["GANDIVA_JOB"] = "1"
    status, said = workstation.run(workstation.study("[[trials]]\ncommand = 'true'\n"))
    assert status == 1 and "--no-gandiva" in said


def test_commands_on_standard_input(workstation: Workstation) -> None:
    commands = "# comment\n\necho 'a  b'\nsh -c 'exit 4'\n"
    status, said = workstation.run("--study", "given-lines", given=commands)
    assert status == 1, said
    assert workstation.output(1, "given-lines") == "a  b\n"
    found = {name: trial.exit_code for name, trial in workstation.trials("given-lines").items()}
    assert found == {"line3": 0, "line4": 4}


def test_commands_of_another_terminal_while_it_runs(workstation: Workstation) -> None:
    """By commands in another terminal, and by a user who types a trial's number or name."""
    file = workstation.study(
        f"[policy]\n{GANDIVA}\n[trial]\ncommand = 'sleep 600'\n[grid]\nseed = [1, 2, 3]\n"
    )
    supervisor = workstation.start(file)
    eventually("the supervisor's note", (workstation.folder / "lr" / "supervisor.json").exists)
    eventually("its answer", lambda: "seed=3" in workstation.gandiva("top", "--once", "--study", "lr"))
    eventually("its reason", lambda: "seed=3" in workstation.gandiva("explain", "--study", "lr", "3"))
    workstation.gandiva("trials", "stop", "--study", "lr", "3")
    workstation.gandiva("trials", "priority", "--study", "lr", "seed=2", "4")
    eventually("its end", lambda: workstation.trials()["seed=3"].state_name == "CANCELLED")
    eventually("its priority", lambda: "priority=4" in workstation.trials()["seed=2"].spec.word)
    assert list((workstation.folder / "lr" / "asked").iterdir()) == []
    listed = workstation.gandiva("trials", "list", "--study", "lr")
    assert "seed=2" in listed and "CANCELLED" in listed
    supervisor.send_signal(signal.SIGTERM)
    said, _ = supervisor.communicate(timeout=PATIENCE_SECONDS)
    assert supervisor.returncode == 75, said
    assert "not running" in workstation.gandiva("top", "--once", "--study", "lr")
    assert "seed=1" in workstation.gandiva("report", "--study", "lr")
    elsewhere = Supervisor(host="n7", pid=7, socket="/run/api", started=1.0)
    StudyFolder(workstation.folder / "lr").write_note(elsewhere)
    told = workstation.gandiva("explain", "--study", "lr", "seed=1")
    assert "Trial 1 (seed=1," in told and "'gandiva run' on host n7 knows more" in told
    assert "ssh -t n7 gandiva top --study" in workstation.gandiva("top", "--study", "lr")


@pytest.mark.parametrize(
    ("command", "more_time", "status"), [("sleep 600", False, 75), ("true", True, 0)], ids=["ends", "goes on"]
)
def test_an_allocation_that_ends_is_left_in_time(
    workstation: Workstation, command: str, more_time: bool, status: int
) -> None:
    """What Slurm says of the end counts, and what it says then: its user may have given the job more time."""
    asked, later = workstation.folder / "asked", "+1 hour" if more_time else "+33 seconds"
    workstation.program(
        "scontrol",
        f"when='+33 seconds'; grep -qs '..' {asked} && when='{later}'; printf . >> {asked}\n"
        'end=$(date -d "$when" +%Y-%m-%dT%H:%M:%S)\n'
        'echo "JobState=RUNNING EndTime=$end Nodes=ws CPU_IDs=0 Mem=9"',
    )
    workstation.program("srun", "exit 1")
    workstation.environ["SLURM_JOB_ID"] = "77"
    file = workstation.study(f"[study]\nlaunch = 'child'\n[[trials]]\ncommand = '{command}'\n")
    found, said = workstation.run(file)
    assert found == status, said
    assert ("the allocation ends in" in said) == (not more_time)


def test_an_agent_that_slurm_does_not_start_at_once(workstation: Workstation) -> None:
    """As on a node that has just come back."""
    refused = workstation.folder / "refused"
    workstation.program("scontrol", 'echo "JobState=RUNNING EndTime=Unknown Nodes=ws CPU_IDs=0 Mem=9"')
    workstation.program(
        "srun",
        f"test -e {refused} || {{ touch {refused}; exit 1; }}\n"
        'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    )
    workstation.environ["SLURM_JOB_ID"] = "77"
    status, said = workstation.run(workstation.study("[[trials]]\ncommand = 'true'\n"), "--dry-run")
    assert (status, "ws" in said) == (0, True), said
    assert refused.exists()
