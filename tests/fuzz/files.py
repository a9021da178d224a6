# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that people write or keep: settings, descriptions, traces, decisions, journals."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from controller.errors import GandivaError, JournalError, SettingsError
from controller.journal import JobFilter, Journal, JournalReader
from controller.model import JobId
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.replay import replay
from controller.simulation.snapshot_file import read_decision
from controller.simulation.traces.base import TraceError
from controller.simulation.traces.formats import FORMATS, read_trace
from controller.slurm_config import description
from controller.slurm_config.description import DescriptionError
from tests.fuzz import mutations
from tests.fuzz.target import Target, unchanged
from tests.unit.api import scene

ROOT = Path(__file__).resolve().parents[2]
TOO_MANY_NODES = 100_000


@functools.cache
def _text(name: str) -> str:
    return (ROOT / name).read_text()


def _settings(dice: random.Random, _folder: Path) -> bool:
    lines = _text("configs/gandiva.toml").splitlines(keepends=True)
    kept = [
        line.removeprefix("# ").removeprefix("#") for line in lines if "=" in line or line.startswith("[")
    ]
    sample = dice.choice(('[policy]\nname = "tiresias-las"\n', "".join(lines), "".join(kept)))
    try:
        parse_settings(mutations.toml(dice, sample), "fuzz.toml")
    except SettingsError as error:
        assert str(error).startswith("fuzz.toml"), f"does not say where: {error}"
        return False
    return True


def _description(dice: random.Random, _folder: Path) -> bool:
    sample = _text(dice.choice(("configs/slurm/cluster.toml", "configs/slurm/mini.toml")))
    try:
        description.parse(mutations.toml(dice, sample), "fuzz.toml")
    except DescriptionError as error:
        assert str(error), "no message"
        return False
    return True


def _cluster_spec(dice: random.Random, folder: Path) -> bool:
    try:
        if dice.random() < 0.5:
            text = mutations.text(dice, "v100:36,k80:12")
            if "/" in text or text.startswith("~"):
                return False  # would be a file of this machine
            parse_cluster(text, 4)
        else:
            path = folder / "spec.toml"
            sample = (
                '[[nodes]]\ncount = 2\ngpu_model = "v100"\ngpus = 4\nswitch = "s1"\ncpus = 8\nmemory = 64\n'
            )
            path.write_text(mutations.toml(dice, sample * 2), errors="surrogatepass")
            with unchanged(path):
                parse_cluster(str(path), 4)
    except GandivaError as error:
        assert str(error), "no message"
        return False
    return True


TRACES = {
    "tiresias": "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    "1,2,0,10,resnet50,100,1\n2,1,5,10,vgg16,50,1\n",
    "gavel": "ResNet-18 (batch size 32)\tcmd\tdir\t--n\t1\t100\t1\t1\t-1.0\t0.0\n",
    "philly": "timestamp,num_gpus,duration,status,jobid\n2017-10-09 07:05:34,1,100,Pass,a\n",
    "sacct": "JobID|Submit|Start|End|ElapsedRaw|AllocTRES|State\n"
    "1|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T01:00:00|3540|gres/gpu=2|COMPLETED\n",
    "native": "job_id,submit_seconds,gpus,duration_seconds\n1,0,1,100\n2,10.5,4,1e3\n",
}


def _trace(dice: random.Random, folder: Path) -> bool:
    assert set(TRACES) == set(FORMATS)
    path = folder / "trace"
    kind = dice.choice(list(TRACES))
    sample = mutations.text(dice, TRACES[kind], 2).encode("utf-8", "surrogatepass")
    path.write_bytes(mutations.raw(dice, sample) if dice.random() < 0.3 else sample)
    try:
        with unchanged(path):
            read_trace(path, kind if dice.random() < 0.8 else dice.choice(list(FORMATS)))
    except TraceError as error:
        assert str(path) in str(error)
        return False
    except GandivaError as error:
        assert str(error), "no message"
        return False
    return True


@functools.cache
def _decisions() -> tuple[str, ...]:
    """Real decisions of each policy."""
    from controller.loop.loop import Cycle
    from controller.simulation.driver import Simulation
    from controller.simulation.snapshot_file import RecordedDecision, dump_decision
    from tests.unit.simulation.test_simulation import trace

    made = []
    for name in ("gandiva", "tiresias-las", "tiresias-gittins", "fifo", "srtf"):
        settings = parse_settings(f'[policy]\nname = "{name}"\n')
        cycles: list[Cycle] = []

        def keep(cycle: Cycle, cycles: list[Cycle] = cycles) -> None:
            cycles.append(replace(cycle, snapshot=cycle.snapshot.kept()))

        Simulation(Path("t"), trace(12), parse_cluster("v100:8", 4), settings, on_cycle=keep).run()
        cycle = cycles[len(cycles) // 2]
        decision = RecordedDecision(settings.policy, cycle.snapshot, cycle.memory, cycle.plan)
        made.append(dump_decision(decision).decode())
    return tuple(made)


def _decision(dice: random.Random, folder: Path) -> bool:
    path = folder / "decision.json"
    sample = json.loads(dice.choice(_decisions()))
    path.write_text(mutations.dumped(dice, sample, dice.choice((1, 1, 3))), errors="surrogatepass")
    try:
        with unchanged(path):
            recorded = read_decision(path)
            replay(recorded)
    except GandivaError as error:
        assert str(path) in str(error)
        return False
    return True


def _journal(dice: random.Random, folder: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path = Path(own) / "journal.sqlite"
        sample = folder / "sample.sqlite"
        if not sample.exists():
            scene.write_journal(sample)
        shutil.copy(sample, path)
        damage = dice.random()
        if damage < 0.5:
            path.write_bytes(mutations.raw(dice, path.read_bytes(), 12))
        else:
            _spoil_rows(dice, path)
        try:
            with unchanged(path):
                reader = JournalReader(path)
                for row in reader.jobs(JobFilter()):
                    reader.slices(row.record.id)
                    reader.decisions(row.record.id)
                reader.events()
                reader.timeline(0.0, 2e9)
        except JournalError:
            pass  # the reader may say that it cannot
        try:
            with Journal(path) as journal:
                journal.open_operations()
                journal.totals()
                journal.last_heartbeat()
                journal.notes("gandiva")
                journal.load_state("policy-memory:gandiva")
                journal.close_open_slices(1.8e9)
                journal.heartbeat(1.8e9)
                journal.commit()
        except JournalError as error:
            assert str(path) in str(error)
            return False
        return JournalReader(path).jobs(JobFilter(job_ids=(JobId(1),))) is not None


def _spoil_rows(dice: random.Random, path: Path) -> None:
    """What a program with write access, or a flipped bit, could leave."""
    import sqlite3

    connection = sqlite3.connect(path)
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for _ in range(dice.randint(1, 3)):
        table = dice.choice(tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        new = dice.choice((None, -1, 2**62, 1e308, "x", "{", "[1", b"\xff\x00", "nan", "n1", ":", "n1:x 3"))
        with_error = f"UPDATE OR IGNORE {table} SET {dice.choice(columns)} = ?"
        try:
            connection.execute(with_error, (new,))
        except sqlite3.Error:
            continue
    connection.commit()
    connection.close()


TARGETS = (
    Target("settings", "gandiva.toml", _settings),
    Target("description", "cluster TOML for gandiva config slurm", _description),
    Target("cluster-spec", "--cluster of gandiva simulate", _cluster_spec, 6),
    Target("trace", "traces in all formats", _trace),
    Target("decision", "recorded decisions, replayed", _decision, 6),
    Target("journal", "journals with damaged pages and rows", _journal, 5),
)
