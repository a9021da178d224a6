# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster description: what is taken, and one clear message for each thing that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.slurm_config.description import DescriptionError, SlurmConfigError, load, parse

GOOD = """
[cluster]
name = "mini"

[[nodes]]
names = "n[1-2]"
cpus = 16
memory_mib = 8192
gpu_model = "a100"
gpus = 4

[[partitions]]
name = "gpu"
nodes = "n[1-2]"
"""


def test_defaults_are_the_documented_ones() -> None:
    description = parse(GOOD)
    assert description.cluster.oversubscription_depth == 16
    assert description.gandiva.default == "off"
    assert description.gandiva.controller_users == ("gandiva",)
    assert description.cgroup.constrain_devices is True
    assert description.nodes[0].gpu_device == "/dev/nvidia%d"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "mini"', 'name = "mi ni"', "cluster.name: "),
        (
            'name = "mini"',
            'name = "mini"\nnode = 1',
            "cluster.node: unknown key; allowed are name, controller_host",
        ),
        ('name = "mini"', 'name = "mini"\noversubscription_depth = "16"', "cluster.oversubscription_depth: "),
        ('name = "mini"', 'name = "mini"\noversubscription_depth = 1', "greater than or equal to 2 (got 1)"),
        (
            "[cluster]",
            "[clusters]\n[cluster]",
            "clusters: unknown key; allowed are cluster, nodes, partitions",
        ),
        ("cpus = 16", "cpus = 0", "nodes[0].cpus: must be greater than or equal to 1 (got 0)"),
        ("cpus = 16", "cpus = true", "nodes[0].cpus: "),
        ("cpus = 16\n", "", "nodes[0].cpus: missing"),
        ("memory_mib = 8192", "memory_mib = 8.5", "nodes[0].memory_mib: "),
        ('gpu_model = "a100"', 'gpu_model = "A100 80"', "nodes[0].gpu_model: "),
        ('gpu_model = "a100"\n', "", "nodes[0]: gpu_model is None but gpus is 4: give both"),
        ("gpus = 4", "gpus = 0", "gpu_model is 'a100' but gpus is 0"),
        ("gpus = 4", 'gpus = 4\ngpu_device = "/dev/nvidia0"', "nodes[0].gpu_device: "),
        ("gpus = 4", 'gpus = 4\nfeatures = ["a b"]', "nodes[0].features[0]: "),
        ("gpus = 4", 'gpus = 4\nports = "[1-3]"', "ports '[1-3]' gives 3 values for 2 nodes"),
        ("gpus = 4", 'gpus = 4\nhost = "h1"', "several nodes on one host need ports"),
        ('names = "n[1-2]"', 'names = "n[1-"', "nodes[0].names: 'n[1-' is no host list"),
        ('names = "n[1-2]"', 'names = "n[2-1]"', "its end is below its start"),
        ('names = "n[1-2]"', 'names = "n[1-999999999]"', "has more than 65536 names"),
        ('names = "n[1-2]"', 'names = "n1,n1,n2"', "names n1 twice"),
        ('nodes = "n[1-2]"', 'nodes = "n[1-3]"', "partitions: gpu has the node n3, in no [[nodes]] table"),
        ('nodes = "n[1-2]"', 'nodes = "n1"\noptions = {MaxTime = "1 Default=YES"}', "options.MaxTime: "),
        (
            "[cluster]",
            '[gandiva]\ndefault = "yes"\n[cluster]',
            "gandiva.default: must be 'on' or 'off'",
        ),
        ("[cluster]", "[gandiva]\nmax_weight = 101\n[cluster]", "gandiva.max_weight: "),
        ("[cluster]", '[gandiva]\npartitions = ["x"]\n[cluster]', "'x' is not a partition: expected gpu"),
        ("[cluster]", "[gandiva]\ncontroller_users = [true]\n[cluster]", "gandiva.controller_users[0]: "),
        ("gpus = 4", "gpus = 4\nmem_spec_limit = 8192", "mem_spec_limit is 8192 of 8192 MiB"),
        ("gpus = 4", 'gpus = 4\nstate = "FOO"', "nodes[0].state: must be 'CLOUD'"),
        ("gpus = 4", 'gpus = 4\noptions = {Boards = "1", boards = "2"}', "a key is there twice"),
        (
            "[[part",
            '[[nodes]]\nnames = "DEFAULT"\ncpus = 1\nmemory_mib = 1\n[[part',
            "nodes: DEFAULT is",
        ),
        ('name = "gpu"', 'name = "Default"', "partitions: Default is"),
        ("[[part", '[[node_sets]]\nname = "default"\nnodes = "n1"\n[[part', "node_sets: default is"),
        ("[[part", '[[node_sets]]\nname = "s"\n[[part', "node_sets: s has neither nodes nor feature"),
        (
            "[[part",
            '[[node_sets]]\nname = "s"\nnodes = "n1"\n' * 2 + "[[part",
            "node_sets: s is described twice",
        ),
        ("[cluster]", "[cluster", "not valid TOML"),
    ],
)
def test_each_mistake_is_named_once(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    with pytest.raises(DescriptionError) as caught:
        parse(GOOD.replace(old, new, 1), "site.toml")
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith("site.toml: ")
    assert any(part in str(caught.value) for part in expected.split("|"))


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(DescriptionError) as caught:
        parse(GOOD.replace("cpus = 16", "cpus = 0").replace("gpus = 4", "gpus = 257"))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["nodes[0].cpus", "nodes[0].gpus"]


def test_a_node_is_described_once() -> None:
    again = '[[nodes]]\nnames = "n2"\ncpus = 1\nmemory_mib = 1\n'
    with pytest.raises(DescriptionError, match="nodes: n2 is described twice"):
        parse(GOOD + again)


@pytest.mark.parametrize("state", ["CLOUD", "DRAIN", "UNKNOWN", "FUTURE"])
def test_states_of_slurm_conf(state: str) -> None:
    assert parse(GOOD.replace("gpus = 4", f'gpus = 4\nstate = "{state}"')).nodes[0].state == state


def test_two_default_partitions() -> None:
    text = GOOD + "default = true\n[[partitions]]\nname = 'b'\nnodes = 'n1'\ndefault = true\n"
    with pytest.raises(DescriptionError, match="gpu and b have default = true"):
        parse(text)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(SlurmConfigError, match=r"cannot read .*none\.toml: No such file"):
        load(missing)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(DescriptionError, match="is not UTF-8"):
        load(binary)
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (1 << 21))
    with pytest.raises(SlurmConfigError, match="is larger than 1048576 bytes"):
        load(huge)
