# SPDX-License-Identifier: GPL-2.0-or-later
"""A site keeps the names of its GPU types, and what its NodeName and PartitionName lines say."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cluster.gres import bound_gres, indices_of, node_gpus
from controller.model import GpuId
from controller.slurm_config.description import DescriptionError, parse
from controller.slurm_config.fragments import render
from tests.unit.slurm_config.test_description import GOOD

PUBLIC = Path(__file__).parents[2] / "public"
NAMES = (PUBLIC / "gpu-type-names.txt").read_text().split()


def words_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"NodeName={name} CPUs=")]
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


def test_an_ordinary_job_finds_gpus_of_the_model_that_are_not_shared() -> None:
    own = '[[nodes]]\nnames = "o1"\ncpus = 8\nmemory_mib = 64000\ngres = "gpu:A100:4,gpu:l4:2"\n'
    for name, features in (("A100", []), ("a100", ["Feature=gandiva_a100"])):
        words = words_of(render(parse(GOOD + own.replace("A100", name)))["gandiva/slurm.conf"], "o1")
        assert [word for word in words if word.startswith("Feature=")] == features


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
        ('{ A100 = "h100" }', "A100 = 'h100': expected another name, no node's, for one of a100"),
        ('{ a100 = "a100" }', "a100 = 'a100': expected another name"),
        ('{ a100_0 = "a100" }', "a100_0: Slurm takes it for a100_0"),
    ):
        with pytest.raises(DescriptionError, match=said):
            parse(GOOD + f"[gandiva]\ngpu_aliases = {wrong}\n")


SITE = (PUBLIC / "cluster-site-keys.toml").read_text()


@pytest.mark.public
def test_a_site_says_what_its_lines_have(capsys: pytest.CaptureFixture[str]) -> None:
    path = PUBLIC / "cluster-site-keys.toml"
    assert main(["config", "slurm", "--cluster", str(path)]) == 0
    told = capsys.readouterr().out
    words = words_of(told, "gpu[01-04]")
    assert {"Weight=100", "MemSpecLimit=8192", "CoreSpecCount=2", "TmpDisk=800000", "State=CLOUD"} <= set(
        words
    )
    (gres,) = [word for word in words if word.startswith("Gres=")]
    assert gres.endswith(",shard:a100_3:16,localtmp:3000")
    assert "GresTypes=gpu,shard,localtmp\n" in told
    assert "PartitionName=gpu Nodes=ALL\n" in told
    assert "DefMemPerCPU=7918\n" in told, "without what is the system's"
    assert '{ model = "a100", gpus = 4, count = 4 }' in told
    trace = ["--trace", str(PUBLIC / "gang-wider-than-a-type.csv"), "--trace-format", "native"]
    assert main(["simulate", *trace, "--cluster", str(path), "--policy", "fifo"]) == 0


def test_further_keys_of_a_line_are_handed_on() -> None:
    text = SITE.replace('state = "CLOUD"', 'options = { Reason = "new", TopologyAddress = "s1" }')
    told = render(parse(text))["gandiva/slurm.conf"]
    assert words_of(told, "gpu[01-04]")[-2:] == ["Reason=new", "TopologyAddress=s1"]
    assert "State=" not in told, "a DEFAULT line of the site may say it"
    for key in ("Gres", "feature", "CPUs", "NodeName", "Weight"):
        with pytest.raises(DescriptionError, match=f"nodes.0..options: {key} has a key of its own here"):
            parse(text.replace("Reason", key))
    with pytest.raises(DescriptionError, match=r"partitions.0..options: Nodes has a key of its own here"):
        parse(text + 'options = { Nodes = "gpu01" }')


@pytest.mark.parametrize(
    "gres", ["gpu:a100:1", "localtmp:3000,shard:2", "localtmp:3000,mps:400", "(null)", "a:b:c:d", ""]
)
def test_further_gres_of_nodes_with_shared_gpus_are_others(gres: str) -> None:
    with pytest.raises(DescriptionError, match=r"nodes\[0\]"):
        parse(SITE.replace("localtmp:3000", gres))


def test_shards_of_the_sites_own_keep_their_type() -> None:
    own = '[[nodes]]\nnames = "l[1-9]"\ncpus = 8\nmemory_mib = 64000\ngres = "gpu:l4:4,shard:l4:40,vmem:2G"\n'
    files = render(parse(SITE.replace("[[partitions]]", f"{own}[[partitions]]")))
    assert "GresTypes=gpu,shard,localtmp,vmem\n" in files["gandiva/slurm.conf"]
    assert "Gres=gpu:l4:4,shard:l4:40,vmem:2G" in words_of(files["gandiva/slurm.conf"], "l[1-9]")
    assert 'shard_types = { "l4" }' in files["gandiva/gandiva_settings.lua"]
    assert "l[1-9]" not in files["gres.conf"], "device files are the site's to name"


@pytest.mark.parametrize(
    ("gres", "said"),
    [
        ("gpu:a100_0:1,shard:a100_0:16", "a100_0: Slurm takes it for a100_0"),
        ("gpu:_100a0:1", "_100a0: Slurm takes it for a100_0"),
        ("gpu:A100:4", "A100 = 'a100': expected another name, no node's"),
    ],
)
def test_types_of_the_sites_own_are_told_from_shared_gpus(gres: str, said: str) -> None:
    own = f'[[nodes]]\nnames = "o1"\ncpus = 8\nmemory_mib = 64000\ngres = "{gres}"\n'
    with pytest.raises(DescriptionError, match=said):
        parse(f'{GOOD}{own}[gandiva]\ngpu_aliases = {{ A100 = "a100" }}\n')
    with pytest.raises(DescriptionError, match="type a100_3: Slurm takes it for a100_3"):
        parse(GOOD + own.replace(f'gres = "{gres}"', 'gpu_model = "a100_3"\ngpus = 2'))
    parse(GOOD + own.replace(gres, "gpu:a100:4,shard:a100:40,localtmp:5"))


def test_models_that_slurm_takes_for_one_are_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    other = '[[nodes]]\nnames = "h1"\ncpus = 8\nmemory_mib = 64000\ngpu_model = "h200"\ngpus = 2\n'
    path.write_text(GOOD.replace('"a100"', '"h100"') + other)
    assert main(["config", "slurm", "--cluster", str(path), "--part", "gres"]) == 0
    told = capsys.readouterr()
    assert "Slurm takes h100_1 for h200_0" in told.err and "h100_1" in told.out
    path.write_text(GOOD + other)
    assert main(["config", "slurm", "--cluster", str(path), "--part", "gres"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("nodes", ["ALL", "all"])
def test_all_nodes_are_a_word_of_slurms(nodes: str) -> None:
    (counted,) = parse(GOOD.replace('nodes = "n[1-2]"', f'nodes = "{nodes}"')).partitions
    assert parse(GOOD).members(counted) == ["n1", "n2"]


def test_partitions_of_node_sets() -> None:
    more = (
        '[[nodes]]\nnames = "h[1-2]"\ncpus = 8\nmemory_mib = 64000\ngpu_model = "h100"\ngpus = 8\n'
        'features = ["ib"]\n'
        '[[node_sets]]\nname = "fast"\nfeature = "ib"\n[[node_sets]]\nname = "some"\nnodes = "gpu[02-03]"\n'
        '[[node_sets]]\nname = "old"\nfeature = "gandiva_a100"\n'
        '[[partitions]]\nname = "mix"\nnodes = "fast,some,gpu04"\n'
        '[[partitions]]\nname = "old"\nnodes = "old"\n'
    )
    description = parse(SITE + "\n" + more)
    told = render(description)["gandiva/slurm.conf"].splitlines()
    assert told.index("NodeSet=fast Feature=ib") < told.index("PartitionName=mix Nodes=fast,some,gpu04")
    assert "NodeSet=some Nodes=gpu[02-03]" in told
    counts = [[(group.gpu_model, n) for group, n in description.nodes_of(p)] for p in description.partitions]
    assert counts == [[("a100", 4), ("h100", 2)], [("a100", 3), ("h100", 2)], [("a100", 4)]]
    unused = "\n".join(line for line in more.splitlines() if "fast,some" not in line).rpartition("[[part")[0]
    with pytest.raises(DescriptionError, match="node_sets: some has the node gpu09"):
        parse(SITE + "\n" + unused.rpartition("[[part")[0].replace("gpu[02-03]", "gpu09"))
    with pytest.raises(DescriptionError, match="partitions: mix has the node gpu09"):
        parse(SITE + "\n" + more.replace("gpu[02-03]", "gpu09"))
    with pytest.raises(DescriptionError, match="mix has the node fast"):
        parse(SITE + "\n" + more.replace('name = "fast"', 'name = "slow"'))
