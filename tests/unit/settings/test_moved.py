# SPDX-License-Identifier: GPL-2.0-or-later
"""Deprecated keys are read as those that they are now, with one warning each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.daemon import daemon
from controller.errors import SettingsError
from controller.settings.describe import tables, to_toml
from controller.settings.loading import parse_settings
from controller.settings.moved import Moved
from controller.settings.policies import MOVED, POLICIES, PolicySettings
from controller.simulation.configure import configure

DEFAULTS = {key.path: key.default for table in tables() for key in table.keys}
ANOTHER = {
    "policy.allocation.solver": "highs",
    "policy.allocation.prices": {"k80": 0.5},
    "policy.allocation.inside_of": {"vision": "fifo"},
    "policy.tiresias.queue_limits": [60.0],
}
"""Values of keys that are neither numbers nor words."""
WORDS = {
    "agnostic": "throughputs", "fifo": "inside", "seconds": "service",
    "since-promotion": "promote_waiting", "queue-entry": "order", "at-events": "demotion",
    "never": "consolidate", "k80": "agnostic_type",
}  # fmt: skip


def another(key: str) -> Any:
    """A valid value that is not the default."""
    default, name = DEFAULTS[key], key.rpartition(".")[2]
    if key in ANOTHER:
        return ANOTHER[key]
    if isinstance(default, bool):
        return not default
    if isinstance(default, float):
        return default * 0.75 + 0.125
    if isinstance(default, int):
        return default + 1
    return next(word for word, names in WORDS.items() if name in names.split())


def in_use(old: str) -> str:
    """A file in which the table of this key is that of the policy, or of a move."""
    table = old.split(".")[1]
    if table in POLICIES:
        return f'[policy]\nname = "{table}"\n'
    return f'[policy]\nmoves = ["{table}"]\n'


def line(key: str, value: Any) -> str:
    table, _, name = key.rpartition(".")
    return f"[{table}]\n{name} = {to_toml(value)}\n"


SAME = [old for old, now in MOVED.items() if now.instead is None and old != "policy.gavel-ftf.solver"]
"""Finish times have one solver."""


@pytest.mark.parametrize("old", SAME)
def test_a_key_counts_where_it_is_now(old: str) -> None:
    now = MOVED[old].key
    value = another(now)
    read = parse_settings(in_use(old) + line(old, value))
    new = in_use(old) + (line(now, value) if now.count(".") > 1 else f"backfill = {to_toml(value)}\n")
    assert read.model_dump() == parse_settings(new).model_dump() != parse_settings(in_use(old)).model_dump()
    assert read.policy.deprecated == (f"{old} is deprecated: it is {now} now",)
    assert parse_settings(new).policy.deprecated == ()


@pytest.mark.parametrize("old", SAME)
def test_it_has_no_effect_in_the_table_of_what_is_not_in_use(old: str) -> None:
    read = parse_settings('[policy]\nname = "gandiva"\n' + line(old, another(MOVED[old].key)))
    assert read.model_dump() == parse_settings("").model_dump()
    (said,) = read.policy.deprecated
    assert said.startswith(f"{old} is deprecated: it is {MOVED[old].key} now, and has no effect")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('[policy]\nname = "fifo"\n[policy.fifo]\nskip = true', '[policy]\nname = "fifo-skip"'),
        ('[policy]\nname = "fifo"\n[policy.fifo]\nskip = false', '[policy]\nname = "fifo"'),
        (
            '[policy]\nname = "tiresias-las"\n[policy.tiresias-las]\ndiscretised = false\n'
            'order = "queue-entry"',
            '[policy]\nname = "tiresias-las"\n[policy.tiresias]\norder = "least-service"',
        ),
        (
            '[policy]\nname = "tiresias-las"\n[policy.tiresias_las]\ndiscretised = true',
            '[policy]\nname = "tiresias-las"',
        ),
        (
            '[policy]\nname = "tiresias-gittins"\n[policy.tiresias-gittins]\nlearn = false\n'
            "samples_kept = 500",
            '[policy]\nname = "tiresias-gittins"\n[policy.tiresias-gittins]\nsamples_kept = 0',
        ),
    ],
)
def test_a_value_that_is_said_with_another_key(old: str, new: str) -> None:
    assert parse_settings(old).model_dump() == parse_settings(new).model_dump()
    assert parse_settings(old).policy.deprecated


def test_gavels_own_ways_are_parts_of_a_site_now() -> None:
    chosen = '[policy]\nname = "gavel-las"\n[policy.gavel-las]\n'
    read = parse_settings(f'{chosen}formulation = "exact"\nrounds = "exact"\n').policy
    assert read.model_dump() == parse_settings(chosen).policy.model_dump()
    assert read.deprecated[0] == "policy.gavel-las.formulation is deprecated: it is nothing now"
    with pytest.raises(SettingsError, match=r'gavel-las.rounds = "reference": .*fidelity/gavel.toml'):
        parse_settings(f'{chosen}rounds = "reference"\n')
    parse_settings('[policy.gavel-las]\nrounds = "reference"\n[simulation]\nlease_seconds = 0.0')
    with pytest.raises(SettingsError, match="are progress now"):
        parse_settings("[simulation]\nlease_seconds = 360.0")


def test_a_key_that_says_what_is_so_anyway_is_nothing_now() -> None:
    read = parse_settings('[policy]\nname = "tiresias-gittins"\n[policy.tiresias-gittins]\nlearn = true')
    assert read.policy.deprecated == ("policy.tiresias-gittins.learn is deprecated: it is nothing now",)


def test_the_sample_of_the_release_before_is_read() -> None:
    """`gandiva config show` of 0.1.0: all keys with their defaults, all tables."""
    old = Path(__file__).with_name("shown_by_0_1_0.toml").read_text()
    read = parse_settings(old)
    assert read.model_dump() == parse_settings("").model_dump()


@pytest.mark.parametrize("old", ["fifo.skip", "tiresias-las.discretised", "tiresias-gittins.learn"])
def test_only_its_two_values_count(old: str) -> None:
    with pytest.raises(SettingsError, match="must be true or false"):
        parse_settings(line(f"policy.{old}", "yes"))


def test_a_change_of_one_key_keeps_another_that_is_said_with_it(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text('[policy]\nname = "fifo"\n[policy.fifo]\nskip = true\n')
    assert configure(file, None, ["policy.name=fifo"]).policy.name == "fifo-skip"
    changes = ["discretised=false", "order=queue-entry"]
    assert configure(None, "tiresias-las", changes).policy.tiresias.order == "least-service"


def test_all_of_these_are_known() -> None:
    said = {old: now for old, now in MOVED.items() if now.instead is not None}
    kinds = {"skip", "discretised", "learn", "formulation", "rounds", "seed", "pack_gain_ratio"}
    kinds |= {"type_order", "type_seed", "duration_type"}
    assert {old.rpartition(".")[2] for old in said} == kinds
    assert said["policy.fifo.skip"].words == 'policy.name = "fifo-skip"'
    assert Moved("policy.trials.gain_fraction") in MOVED.values()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[policy]\nname = "gavel-las"\n[policy.gavel-las]\nround_seconds = 60\n'
            "[policy.rounds]\nround_seconds = 90",
            "policy.gavel-las.round_seconds = 60 and policy.rounds.round_seconds = 90 contradict each other: "
            "keep policy.rounds.round_seconds alone",
        ),
        (
            '[policy]\nmoves = ["pack", "grow"]\n[policy.pack]\ntrial_seconds = 60\n'
            "[policy.grow]\ntrial_seconds = 90",
            "policy.grow.trial_seconds = 90 and policy.pack.trial_seconds = 60 contradict each other: "
            "keep policy.trials.trial_seconds alone",
        ),
        (
            '[policy]\nname = "sjf"\nbackfill = true\n[policy.sjf]\nbackfill = false',
            "policy.sjf.backfill = false and policy.backfill = true contradict each other: "
            "keep policy.backfill alone",
        ),
    ],
)
def test_two_that_contradict_each_other_are_an_error(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, "/etc/g.toml")
    assert str(caught.value) == f"/etc/g.toml: policy: {said}"


def test_the_same_twice_is_no_error() -> None:
    both = "[policy.pack]\ntrial_seconds = 9\n[policy.grow]\ntrial_seconds = 9"
    read = parse_settings(f'[policy]\nmoves = ["pack", "grow"]\n{both}').policy
    assert read.trials.trial_seconds == 9 and len(read.deprecated) == 2


def test_what_never_was_a_key_is_still_an_error() -> None:
    with pytest.raises(
        SettingsError, match=r"no table \[policy\.gavel-las\] any more, nor a key for nonsense"
    ):
        parse_settings('[policy]\nname = "gavel-las"\n[policy.gavel-las]\nround_seconds = 60\nnonsense = 1')
    with pytest.raises(SettingsError, match=r"policy\.rounds\.round_seconds = 0: must be a number from 1"):
        parse_settings('[policy]\nname = "gavel-las"\n[policy.gavel-las]\nround_seconds = 0')
    for wrong in ("moves = 3", 'moves = "pack"', "name = 3", "name = []", "rounds = 3", "gavel-las = 3"):
        with pytest.raises(SettingsError, match="policy"):
            parse_settings(f"[policy]\n{wrong}\n[policy.allox]\nround_seconds = 60")


def test_the_empty_tables_of_an_old_sample_are_named_once() -> None:
    read = parse_settings("[policy.fifo]\n[policy.gavel-las]\n[policy.gandiva]\n[policy.tiresias-las]").policy
    assert read.model_dump() == PolicySettings().model_dump()
    assert read.deprecated == (
        "there are no tables [policy.fifo], [policy.gavel-las], [policy.tiresias-las] any more: remove them",
    )


def test_a_solver_that_the_allocation_cannot_use_is_an_error() -> None:
    text = '[policy]\nname = "{}"\n[policy.allocation]\nsolver = "highs"'
    assert parse_settings(text.format("gavel-las")).policy.allocation.solver == "highs"
    with pytest.raises(SettingsError, match=r"allocation\.solver: must be 'clarabel'.* with gavel-ftf"):
        parse_settings(text.format("gavel-ftf"))


# -- where it is said -----------------------------------------------------------------------------------

OLD = '[policy]\nname = "gavel-las"\n[policy.gavel-las]\nround_seconds = 60\n'
SAID = "policy.gavel-las.round_seconds is deprecated: it is policy.rounds.round_seconds now"


def test_the_check_of_a_file_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.toml").write_text(OLD)
    assert main(["config", "check", str(tmp_path / "g.toml")]) == 0
    assert capsys.readouterr().out.count(f"note: {SAID}\n") == 1


def test_the_daemon_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.daemon.logs.configure", lambda _settings: None)
    monkeypatch.setattr("asyncio.run", lambda running: running.close())
    (tmp_path / "g.toml").write_text(OLD)
    assert daemon.run(tmp_path / "g.toml", foreground=True) == 0
    assert caplog.messages == [f"file {tmp_path / 'g.toml'}: {SAID}"]


def test_a_simulation_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.toml").write_text(OLD)
    (tmp_path / "jobs.csv").write_text("job_id,submit_seconds,duration_seconds,gpus\n1,0,60,1\n")
    words = ["simulate", "--trace", str(tmp_path / "jobs.csv"), "--trace-format", "native"]
    words += ["--cluster", "v100:4", "--settings", str(tmp_path / "g.toml")]
    assert main([*words, "--compare", "gavel-las,gavel-las:refill=false"]) == 0
    assert capsys.readouterr().err == f"gandiva: {SAID}\n"


# -- on the command line --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "change", "key", "value"),
    [
        ("gavel-las", "round_seconds=60", "policy.rounds.round_seconds", 60),
        ("gavel-cost", "prices={k80 = 0.5}", "policy.allocation.prices", {"k80": 0.5}),
        ("tiresias-las", "queue_limits=[60]", "policy.tiresias.queue_limits", [60]),
        ("tiresias-gittins", "samples_needed=3", "policy.tiresias-gittins.samples_needed", 3),
        ("sjf", "backfill=false", "policy.backfill", False),
        ("gandiva", "slice_seconds=9", "policy.gandiva.slice_seconds", 9),
        ("tiresias-las", "discretised=false", "policy.tiresias.order", "least-service"),
    ],
)
def test_a_key_of_the_policy_is_set_in_its_table(policy: str, change: str, key: str, value: Any) -> None:
    assert configure(None, policy, [change]).policy.in_use[key] == value


def test_a_policy_that_is_another_now_is_set_by_its_key() -> None:
    assert configure(None, "fifo", ["skip=true"]).policy.name == "fifo-skip"


@pytest.mark.parametrize(
    ("policy", "change", "said"),
    [
        (
            "fifo",
            "backfill=true",
            "fifo has no such setting; it has none of its own; others are named TABLE.KEY",
        ),
        ("srtf", "round_seconds=60", "srtf has no such setting; it has backfill; others are named TABLE.KEY"),
        (
            "gavel-gandiva",
            "prices={k80 = 0.5}",
            "gavel-gandiva has no such setting; it has round_seconds, reset_seconds, refill, change_types, ",
        ),
    ],
)
def test_a_key_that_the_policy_does_not_read_is_an_error(policy: str, change: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        configure(None, policy, [change])
    assert str(caught.value).startswith(f"--set {change}: {said}")


@pytest.mark.parametrize("change", ["round_seconds=90", "policy.rounds.round_seconds=90"])
def test_the_command_line_comes_before_a_deprecated_key_of_the_file(tmp_path: Path, change: str) -> None:
    (tmp_path / "g.toml").write_text(OLD)
    read = configure(tmp_path / "g.toml", None, [change]).policy
    assert read.rounds.round_seconds == 90


def test_a_decision_that_was_recorded_with_them_is_read() -> None:
    recorded = {"name": "tiresias-las", "moves": ["pack"], "tiresias_las": {"queue_limits": [60.0]}}
    assert PolicySettings.model_validate(recorded, strict=False).tiresias.queue_limits == [60.0]
