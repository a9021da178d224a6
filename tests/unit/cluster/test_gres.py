# SPDX-License-Identifier: GPL-2.0-or-later
"""GRES strings as Slurm 26.05 and 24.11 write them, and bindings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.gres import (
    Gres,
    binding_of,
    bound_gres,
    indices_of,
    node_gpus,
    parse_gres,
    split_type,
    taken_for_one,
    tres_memory_mib,
)
from controller.cluster.port import ClusterGpu
from controller.model import GpuId, GpuSet

NODE = "gpu:a100_0:1(S:0-1),gpu:a100_1:1(S:0-1),shard:a100_0:16(S:0-1),shard:a100_1:16(S:0,1)"
USED = (
    "gpu:a100_0:1(IDX:0),gpu:a100_1:1(IDX:1),gpu:a100_2:0(IDX:N/A),"
    "shard:a100_0:0(-/16),shard:a100_1:0(-/16),shard:a100_2:1(1/16)"
)
JOB_ON_NODE = "shard:a100_2:1(0/16,0/16,1/16,0/16),shard:a100_3:1(0/16,0/16,0/16,1/16)"
ORDINARY_ON_NODE = "gpu:a100_0:1(IDX:0),gpu:a100_1:1(IDX:1),gpu:a100_2:0(IDX:),gpu:a100_3:0(IDX:)"


def test_node_gpus_come_by_index_with_their_shards() -> None:
    assert node_gpus(NODE) == (ClusterGpu(0, "a100", 16), ClusterGpu(1, "a100", 16))


def test_gpus_whose_type_names_no_single_gpu_are_left_out() -> None:
    assert node_gpus("gpu:a100:4,gpu:2,craynetwork:4") == ()


def test_a_gpu_without_shards_has_none() -> None:
    assert node_gpus("gpu:v100_0:1") == (ClusterGpu(0, "v100", 0),)


@pytest.mark.parametrize(
    "configured",
    [
        "gpu:rtx_8000:4",
        "gpu:gtx_1080:1",
        "gpu:a100_80:8,shard:a100_80:64",
        "gpu:rtx_8000:1,shard:rtx_8000:8",
        "gpu:a100_80:1,shard:a100_80:16",
        "gpu:v100_32:1,shard:v100_32:8",
    ],
)
def test_a_sites_own_name_is_no_gpu_of_ours(configured: str) -> None:
    assert node_gpus(configured) == ()
    assert node_gpus(f"gpu:a100_0:1,{configured}")[0] == ClusterGpu(0, "a100", 0)


def test_indices_of_a_sites_own_name_are_those_that_slurm_says() -> None:
    assert indices_of("gpu", "gpu:rtx_8000:1(IDX:0)") == {0}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["h100_0", "h100_1", "h200_0"], "Slurm takes h100_1 for h200_0"),
        (["A100_0", "_100A0"], "Slurm takes A100_0 for _100A0"),
        (["a100_0", "a100_1", "a100_0", "l4", "a100"], ""),
    ],
)
def test_types_that_slurm_takes_for_one(types: list[str], expected: str) -> None:
    assert taken_for_one([*types, *types]).partition(": ")[0] == expected


def test_whole_gpus_in_use_are_those_with_a_count() -> None:
    assert indices_of("gpu", USED) == {0, 1}
    assert indices_of("gpu", ORDINARY_ON_NODE) == {0, 1}


def test_untyped_and_model_typed_gpus_are_found_by_index() -> None:
    assert indices_of("gpu", "gpu:2(IDX:0,2-3)") == {0, 2, 3}
    assert indices_of("gpu", "gpu:a100:2(IDX:1,3)") == {1, 3}


def test_shares_of_a_job_on_a_node() -> None:
    first, second = parse_gres(JOB_ON_NODE)
    assert (first.type, first.indices) == ("a100_2", (2,))
    assert (second.type, second.indices) == ("a100_3", (3,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("(null)", ()),
        ("N/A", ()),
        ("gpu", (Gres("gpu", "", 1),)),
        ("gres/gpu:2", (Gres("gpu", "", 2),)),
        ("gres:gpu:a100:2", (Gres("gpu", "a100", 2),)),
        ("gres/gpu=2", (Gres("gpu", "", 2),)),
        ("gpu:(null):0(IDX:N/A)", (Gres("gpu", "", 0),)),
        ("bandwidth:lustre:no_consume:4G", (Gres("bandwidth", "lustre", 4 * 2**30),)),
        ("gres/gpu:1,gres/shard:a100_2:1", (Gres("gpu", "", 1), Gres("shard", "a100_2", 1))),
    ],
)
def test_spellings(text: str, expected: tuple[Gres, ...]) -> None:
    assert parse_gres(text) == expected


@pytest.mark.parametrize("text", ["gpu:a:b:c:1", ":2", "gpu:1,,shard:2", "gpu:1(IDX:x)"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_gres(text)


def test_indices() -> None:
    several, none = parse_gres("gpu:5(IDX:0,2-4,7),gpu:0(IDX:N/A)")
    assert several.indices == (0, 2, 3, 4, 7)
    assert none.indices == ()


@pytest.mark.parametrize("type_", ["a100", "a100_", "_1", "-_1", "a b_1", "a100_x", "a100_64", "rtx_8000"])
def test_types_of_no_single_gpu(type_: str) -> None:
    assert split_type(type_) is None


def test_memory_in_trackable_resources() -> None:
    assert tres_memory_mib("cpu=1,mem=100M,node=1,billing=1,gres/gpu=1") == 100
    assert tres_memory_mib("cpu=1,mem=8G") == 8192
    assert tres_memory_mib("mem=1.50T,cpu=1") == 3 * 2**19
    assert tres_memory_mib("cpu=1,node=1") is None


def test_binding_of_a_request_without_shards_is_empty() -> None:
    assert binding_of("gres/gpu:2", ("n1",)) == frozenset()


slugs = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,8}", fullmatch=True)


@given(slugs, st.integers(0, 63))
def test_types_round_trip(model: str, index: int) -> None:
    assert split_type(f"{model}_{index}") == (model, index)


@given(
    model=slugs,
    nodes=st.sets(st.from_regex(r"n[0-9]{1,3}", fullmatch=True), min_size=1, max_size=5),
    indices=st.sets(st.integers(0, 15), min_size=1, max_size=8),
)
def test_a_binding_survives_being_asked_for_and_read_back(
    model: str, nodes: set[str], indices: set[int]
) -> None:
    binding = frozenset(GpuId(node, index) for node in nodes for index in indices)
    gres = bound_gres(binding, dict.fromkeys(nodes, model))
    # slurmctld shows what was asked for with this prefix.
    shown = ",".join(f"gres/{each}:1" for each in gres)
    assert binding_of(shown, tuple(nodes)) == binding
    assert indices_of("shard", shown) == indices


@pytest.mark.parametrize(
    ("binding", "problem"),
    [
        (frozenset(), "at least one GPU"),
        (frozenset({GpuId("n1", 0), GpuId("n2", 1)}), r"same indices on each: n1: \[0\]; n2: \[1\]"),
        (frozenset({GpuId("n1", 0), GpuId("n3", 0)}), "one GPU model, not of a100, h100"),
    ],
)
def test_bindings_slurm_cannot_express(binding: GpuSet, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        bound_gres(binding, {"n1": "a100", "n2": "a100", "n3": "h100"})
