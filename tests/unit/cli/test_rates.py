# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva rates`: what is listed, declared and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.journal import Journal
from controller.loop.state_store import MODELS_KEY
from controller.model import Configuration, JobId, Provenance, Rate
from controller.observe.declared import DeclaredFile, RatesFileError, declared_path, read_rates
from controller.observe.rates import Rates

ORACLE = {
    "v100": {
        "('LM (batch size 10)', 1)": {"null": 8.0, "('A3C', 1)": [6.0, 2.0], "('A3C', 2)": [5.0, 1.0]},
        "('LM (batch size 10)', 4)": {"null": 20.0},
        "('A3C', 1)": {"null": 0.0},
    },
    "v100_unconsolidated": {"('LM (batch size 10)', 4)": {"null": 10.0}},
}
LM = "LM-batch-size-10"
STAY = (JobId(1), 0.0)


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = tmp_path / "gandiva.toml"
    settings.write_text(f'[journal]\npath = "{tmp_path}/journal.sqlite"\n')
    monkeypatch.setenv("GANDIVA_CONFIG", str(settings))
    (tmp_path / "oracle.json").write_text(json.dumps(ORACLE))
    return tmp_path


def measure(folder: Path, samples_per_second: float) -> None:
    """A controller has done so."""
    rates = Rates()
    rates.see(LM, Configuration("a100", 1), Rate(samples_per_second, 12.5, 1000.0, mini_batches=100), STAY)
    with Journal(folder / "journal.sqlite") as journal:
        journal.save_state(MODELS_KEY, {"models": {}, "rates": rates.dump()})
        journal.commit()


def test_an_oracle_is_declared_for_the_types_of_the_site(folder: Path) -> None:
    assert main(["rates", "import", f"{folder}/oracle.json", "--types", "v100=a100", "--batch-sizes"]) == 0
    declared = read_rates(declared_path(folder / "journal.sqlite"))
    assert {where: rate.samples_per_second for where, rate in declared[LM].items()} == {
        Configuration("a100", 1): 80.0,
        Configuration("a100", 1, 1, ("A3C",)): 60.0,
        Configuration("a100", 4): 200.0,
        **{Configuration("a100", 4, nodes): 100.0 for nodes in (2, 3, 4)},
    }
    assert {rate.provenance for rate in declared[LM].values()} == {Provenance.DECLARED}


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("v100=a,k80=a", ": k80 and v100 would both be a: give each a type of its own"),
        ("v100=k80", ": k80 and v100 would both be k80: give each a type of its own"),
        ("p100=a", " has no type 'p100'; it has k80, v100"),
    ],
)
def test_each_type_of_the_file_becomes_one_of_the_site(
    types: str, message: str, ours: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, declared = folder / "two.json", declared_path(folder / "journal.sqlite")
    file.write_text(json.dumps({name: {"('A3C', 1)": {"null": 1.0}} for name in ("v100", "k80")}))
    if ours:
        assert main(["rates", "import", str(file)]) == 0
        file = declared.rename(file)
    capsys.readouterr()
    assert main(["rates", "import", str(file), "--types", types]) == 1
    assert capsys.readouterr().err == f"gandiva: {file}{message}\n"
    assert not declared.exists()


def test_a_type_has_one_type_of_the_site(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["rates", "import", f"{folder}/oracle.json", "--types", "v100=a,v100=b"])
    assert "v100 is there twice" in capsys.readouterr().err


def test_measured_and_declared_are_listed_and_what_counts_is_exported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(folder, 7.0)
    main(["rates", "import", f"{folder}/oracle.json", "--types", "v100=a100"])
    assert capsys.readouterr().out == f"declared in {folder}/rates.json: 6 rates of 1 model\n"
    assert main(["rates", "list", "-P", LM]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "Model|GPUType|GPUs|Nodes|Beside|Rate|Window|Batches|Provenance|Age"
    assert lines[0].startswith(f"{LM}|a100|1|1||7/s|00:00:12|100|measured|")
    assert lines[1] == f"{LM}|a100|1|1||8/s|||declared|"
    main(["rates", "list", "--json", LM])
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["mini_batches"], first["provenance"]) == (100, "measured")
    assert main(["rates", "export", f"{folder}/out.json"]) == 0
    assert read_rates(folder / "out.json")[LM][Configuration("a100", 1)].samples_per_second == 7.0
    assert main(["rates", "import", f"{folder}/out.json", "--replace"]) == 0
    declared = read_rates(declared_path(folder / "journal.sqlite"))
    assert declared[LM][Configuration("a100", 1)].provenance is Provenance.DECLARED


def test_pairs_that_never_ran_are_listed_as_estimated_until_they_are_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, other = Configuration("a100", 1), "A3C"
    beside = Configuration("a100", 1, 1, (other,))
    rates = Rates()
    for model, alone in ((LM, 8.0), (other, 4.0)):
        rates.see(model, where, Rate(alone, 12.5, 1000.0, mini_batches=100), STAY)
    rates.see(other, beside, Rate(3.0, 12.5, 1000.0, mini_batches=100), STAY)

    def listed() -> list[str]:
        with Journal(folder / "journal.sqlite") as journal:
            journal.save_state(MODELS_KEY, {"models": {}, "rates": rates.dump()})
            journal.commit()
        assert main(["rates", "list", "-nP", "--estimated", LM]) == 0
        return capsys.readouterr().out.splitlines()

    assert f"{LM}|a100|1|1|A3C|6/s|||estimated|" in listed()
    rates.see(LM, beside, Rate(5.0, 12.5, 1000.0, mini_batches=100), STAY)
    of_pair = [line for line in listed() if "|A3C|" in line]
    assert [("|5/s|" in line, line.split("|")[-2]) for line in of_pair] == [
        (True, "measured"),
        (False, "estimated"),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"gandiva_rates": 1, "rates": [{"model": "m", "gpu_type": "a", "gpus": 0}]}', "rates.0.gpus"),
        ('{"gandiva_rates": 1, "rates": []}', "has no rates"),
        ('{"gandiva_rates": 1, "rates": [], "rates": []}', "the key 'rates' is there twice"),
        (
            '{"gandiva_rates": 1, "rates": [{"model": "m", "gpu_type": "a", "gpus": 1, "gpus": 2, '
            '"samples_per_second": 1.0}]}',
            "rates[0]: the key 'gpus' is there twice",
        ),
        (
            '{"gandiva_rates": 1, "rates": [{"model": "m", "gpu_type": "a", "gpus": 1, "samples_per_second": '
            '10.0}, {"model": "m", "gpu_type": "a", "gpus": 1, "samples_per_second": 99.0}]}',
            "rates[1]: a rate of m in the same configuration stands before it",
        ),
        ('{"v100": {"x": {"null": 1.0}}}', "is not of the form"),
        ("{", "Invalid JSON"),
    ],
)
def test_what_is_no_file_of_rates_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str, words: str
) -> None:
    (folder / "bad.json").write_text(content)
    assert main(["rates", "import", f"{folder}/bad.json"]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert main(["rates", "import", f"{folder}/oracle.json", "--types", "b=c"]) == 1
    assert "has no type 'b'; it has v100" in capsys.readouterr().err


def test_a_running_controller_sees_each_change_once(folder: Path) -> None:
    file = DeclaredFile(declared_path(folder / "journal.sqlite"))
    assert file.changed() is None, "there is none"
    main(["rates", "import", f"{folder}/oracle.json"])
    assert LM in (file.changed() or {})
    assert file.changed() is None
    file.path.write_text("{}{")
    with pytest.raises(RatesFileError):
        file.changed()
    assert file.changed() is None, "said once"
    file.path.unlink()
    assert file.changed() == {}
