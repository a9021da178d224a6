# SPDX-License-Identifier: GPL-2.0-or-later
"""A site keeps the names of its GPU types, and what its NodeName and PartitionName lines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.model import GpuId
from controller.slurm.gres import bound_gres, indices_of, node_gpus
from controller.slurm_config.description import DescriptionError, parse
from controller.slurm_config.fragments import render
from tests.unit.slurm_config.test_description import GOOD

PUBLIC = Path(__file__).parents[2] / "public"
NAMES = (PUBLIC / "gpu-type-names.txt").read_text().split()


def words_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"NodeName={name} ")]
    return line.split()


@pytest.mark.public
@pytest.mark.parametrize(
    "name", [*NAMES, "3090", "rtx_8000", "nvidia_rtx_pro_6000_blackwell_max-q_workstation"]
)
def test_a_site_keeps_its_gpu_type_names(name: str) -> None:
    files = render(parse(GOOD.replace('"a100"', f'"{name}"')))
    words = words_of(files["gandiva/slurm.conf"], "n[1-2]")
    assert f"Feature=gandiva_{name}" in words
    assert f'models = {{ "{name}" }}' in files["gandiva/gandiva_settings.lua"]
    (configured,) = [word.removeprefix("Gres=") for word in words if word.startswith("Gres=")]
    assert [(gpu.index, gpu.model, gpu.shards) for gpu in node_gpus(configured)] == [
        (index, name, 16) for index in range(4)
    ]
    binding = frozenset({GpuId("n1", 1), GpuId("n1", 3)})
    asked = ",".join(f"gres/{each}:1" for each in bound_gres(binding, {"n1": name}))
    assert indices_of("shard", asked) == {1, 3}


@pytest.mark.public
@pytest.mark.parametrize("name", NAMES)
def test_a_site_is_simulated_with_its_names(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("job,submit_seconds,gpus,duration_seconds\n1,0,1,10\n")
    words = ["--trace", str(PUBLIC / "gang-wider-than-a-type.csv"), "--trace-format", "native"]
    assert main(["simulate", *words, "--cluster", f"{name}:8", "--policy", "fifo"]) == 0


@pytest.mark.parametrize(
    "name", ["", "a 100", "a:b", "a,b", "a=1", "a(1)", "-a", "x" * 65, "a&b", "a+b", "ä"]
)
def test_what_slurm_takes_apart_is_no_name(name: str) -> None:
    with pytest.raises(DescriptionError, match=r"nodes\[0\]\.gpu_model: "):
        parse(GOOD.replace('"a100"', f'"{name}"'))


def test_aliases_are_names_of_described_models() -> None:
    text = GOOD + '[gandiva]\ngpu_aliases = { A100 = "a100", "Tesla-A100" = "a100" }\n'
    told = render(parse(text))["gandiva/gandiva_settings.lua"]
    assert 'aliases = { A100 = "a100", ["Tesla-A100"] = "a100" }' in told
    for wrong, said in (
        ('{ A100 = "h100" }', "'h100' is no gpu_model: expected a100"),
        ('{ a100 = "a100" }', "'a100' is a gpu_model itself"),
    ):
        with pytest.raises(DescriptionError, match=said):
            parse(GOOD + f"[gandiva]\ngpu_aliases = {wrong}\n")
