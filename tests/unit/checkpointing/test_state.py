# SPDX-License-Identifier: GPL-2.0-or-later
"""State of PyTorch through the checkpoint store: training goes on bit for bit, and nothing is unpickled."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from checkpointing.store import InvalidGeneration, Store
from checkpointing.store.state import State
from checkpointing.store.tensor_file import Packer, tensors_of, unpack
from tests.unit.checkpointing.torch_ranks import torch_ranks
from tests.unit.jobside.need_torch import need_torch

torch: Any = need_torch()


class Loader:
    """A data loader's position."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "order": (3, 1, 2), "name": "loader", "nothing": None, "share": 0.1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["order"] == (3, 1, 2) and state["share"] == 0.1 and state["nothing"] is None
        self.at = state["at"]


def build(seed: int = 1) -> dict[str, Any]:
    torch.manual_seed(seed)
    random.seed(seed)
    layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": Loader()}


def train(parts: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        batch = torch.randn(4, 8) + random.random() + parts["loader"].at
        parts["loader"].at += 1
        loss = parts["model"](batch).pow(2).sum()
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        parts["schedule"].step()
        losses.append(loss.item())
    return losses


def test_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    undisturbed = train(build(), 10)
    store = Store(tmp_path, rank=0, world_size=1)
    parts = build()
    assert State(**parts).restore(store) is None
    before = train(parts, 5)
    saving = State(**parts).save(store, 5)
    assert before + train(parts, 5) == undisturbed, "a save changes nothing"
    assert saving.result(60) == 1

    parts = build(seed=99)
    train(parts, 2)
    assert State(**parts).restore(Store(tmp_path, rank=0, world_size=1)) == 5
    assert before + train(parts, 5) == undisturbed


def test_a_state_that_was_staged_in_memory_of_the_node(tmp_path: Path) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("no /dev/shm")
    store = Store(tmp_path, rank=0, world_size=1, staging="/dev/shm")
    parts = build()
    State(**parts).save(store, 1).result(60)
    weight = parts["model"][0].weight.detach().clone()
    parts["model"][0].weight.data.zero_()
    assert State(**parts).restore(store) == 1
    assert torch.equal(parts["model"][0].weight, weight)


def test_replicated_parts_are_written_once_and_read_by_more_ranks(tmp_path: Path) -> None:
    stores = [Store(tmp_path, rank=rank, world_size=2, run="two") for rank in range(2)]
    model = torch.nn.Linear(2, 2)
    states = [State(replicated=["model"], model=model) for _ in stores]
    saves = [state.save(store, 7) for state, store in zip(states, stores, strict=True)]
    assert [saving.result(60) for saving in saves] == [1, 1]
    sizes = [(tmp_path / f"generation-00000001/rank-0000{n}/state.json").stat().st_size for n in range(2)]
    assert "model" not in json.loads((tmp_path / "generation-00000001/rank-00001/state.json").read_text())
    assert min(sizes) > 0
    for rank in range(4):
        grown = torch.nn.Linear(2, 2)
        store = Store(tmp_path, rank=rank, world_size=4, run="four")
        assert State(replicated=["model"], model=grown).restore(store) == 7
        assert torch.equal(grown.weight, model.weight)


def test_parts_of_each_rank_need_as_many_ranks(tmp_path: Path) -> None:
    State(model=torch.nn.Linear(2, 2)).save(Store(tmp_path, rank=0, world_size=1), 1).result(60)
    with pytest.raises(InvalidGeneration, match=r"of 1 ranks: no part model for rank 0 of 2"):
        State(model=torch.nn.Linear(2, 2)).restore(Store(tmp_path, rank=0, world_size=2, run="more"))
    with pytest.raises(InvalidGeneration, match="no part other"):
        State(other=torch.nn.Linear(2, 2)).restore(Store(tmp_path, rank=0, world_size=1))


RANK = """
import sys, torch
from checkpointing.store import InvalidGeneration, Store
from checkpointing.store.state import State, run_word
torch.distributed.init_process_group("gloo")
torch.manual_seed(torch.distributed.get_rank())
store = Store(sys.argv[1], run=run_word())
state = State(model=torch.nn.Linear(3, 3))
try:
    print("restored", state.restore(store), flush=True)
except InvalidGeneration as error:
    print(error, flush=True)
for step in (1, 2) if sys.argv[2:] else ():
    print("saved", state.save(store, step).result(60), flush=True)
torch.distributed.destroy_process_group()
"""


def ranks(folder: Path, *words: str) -> list[str]:
    return torch_ranks(RANK, 2, str(folder), *words)


def test_ranks_of_torch_distributed_use_the_same_generation(tmp_path: Path) -> None:
    assert ranks(tmp_path, "save") == ["restored None\nsaved 1\nsaved 2\n"] * 2
    with (tmp_path / "generation-00000002/rank-00001/tensors.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert ranks(tmp_path) == ["restored 1\n"] * 2


def test_ranks_load_a_generation_together_or_not_at_all(tmp_path: Path) -> None:
    """A rank that went on alone would wait for the others in its first collective."""
    stores = [Store(tmp_path, rank=rank, world_size=2, run="two") for rank in range(2)]
    states = [State(model=torch.nn.Linear(3, 3)), State()]
    saves = [state.save(store, 7) for state, store in zip(states, stores, strict=True)]
    assert [saving.result(60) for saving in saves] == [1, 1]
    said = ranks(tmp_path)
    assert "generation 1 of 2 ranks: another rank cannot load it" in said[0]
    assert "generation 1 of 2 ranks: no part model for rank 1 of 2" in said[1]


# -- tensors in a file -------------------------------------------------------------------------


def packed(value: Any) -> tuple[Any, bytearray]:
    packer = Packer(torch)
    text = json.dumps(packer.pack(value, "value"))
    return json.loads(text), bytearray(packer.file(lambda size: memoryview(bytearray(size))))


DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "complex64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
]


def test_tensors_of_every_type_and_shape() -> None:
    ones = [torch.ones(shape, dtype=getattr(torch, name)) for name in DTYPES for shape in ((), (3,), (0, 2))]
    strided = torch.arange(12.0).reshape(3, 4).t()
    value = {"all": ones, "strided": strided, 7: (strided, {"$x": 1}), "inf": float("inf")}
    plain, data = packed(value)
    found = unpack(plain, tensors_of(torch, data))
    assert list(found) == list(value) and found["inf"] == float("inf") and found[7][1] == {"$x": 1}
    for left, right in zip(found["all"], ones, strict=True):
        assert left.dtype == right.dtype and torch.equal(left, right)
    assert torch.equal(found["strided"], strided) and found[7][0] is found["strided"]


def test_what_is_conjugated_or_negated_lazily_comes_back_so() -> None:
    """PyTorch notes it in the tensor, beside a storage that it shares."""
    number = torch.tensor([1 + 2j, 3 - 4j])
    turned = number.conj()
    assert turned.is_conj() and turned.imag.is_neg()
    values = [number, turned, number.imag, turned.imag, torch._neg_view(torch.ones(3)), turned[1:], turned]
    assert [tensor.tolist() for tensor in values[:4]] == [
        [1 + 2j, 3 - 4j],
        [1 - 2j, 3 + 4j],
        [2, -4],
        [-2, 4],
    ]
    plain, data = packed(values)
    found = unpack(plain, tensors_of(torch, data))
    assert [tensor.tolist() for tensor in found] == [tensor.tolist() for tensor in values]
    assert found[-1] is found[1], "what is the same is written once"


NOT_WRITTEN = {
    "sparse": lambda: torch.eye(2).to_sparse(),
    "rows": lambda: torch.eye(2).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "without-data": lambda: torch.empty(2, device="meta"),
    "complex128": lambda: torch.ones(2, dtype=torch.complex128),
}


@pytest.mark.parametrize("kind", NOT_WRITTEN)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_that_cannot_be_kept_is_named(kind: str) -> None:
    if kind == "nested" and not hasattr(torch, "nested"):
        pytest.skip("a PyTorch without nested tensors")
    with pytest.raises(TypeError, match=r"^value\.a\[1\]: .* cannot be written"):
        packed({"a": [torch.ones(1), NOT_WRITTEN[kind]()]})


def test_the_library_reads_the_file() -> None:
    library = pytest.importorskip("safetensors.torch")
    tensor = torch.randn(5, 3)
    assert torch.equal(library.load(bytes(packed([tensor])[1]))["0"], tensor)


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, [bytearray(b"bytes")], torch.eye(2).to_sparse()])
def test_what_is_not_plain_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^value"):
        packed(value)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "save", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2"},
        [],
    ],
)
def test_headers_that_lie(entry: Any) -> None:
    text = json.dumps({"0": entry}).encode()
    with pytest.raises(ValueError, match="tensor '0'"):
        tensors_of(torch, bytearray(len(text).to_bytes(8, "little") + text + bytes(8)))


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, b"\x09" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]"])
def test_files_that_are_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        tensors_of(torch, bytearray(data))
