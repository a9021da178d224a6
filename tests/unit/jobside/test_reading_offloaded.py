# SPDX-License-Identifier: GPL-2.0-or-later
"""What PyTorch's state is saved as while it is off the "GPU": the host's copy of it, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpointing.store import Store
from checkpointing.store.state import State
from gandiva import _host_copy
from gandiva._tensors import storage_of
from gandiva._torch import TorchState

from .cpu_as_gpu import CpuAsGpu
from .need_torch import need_torch
from .test_torch import build, everything, leave, train

torch: Any = need_torch()


class Scaler:
    """As PyTorch's gradient scaler: its state is a number that it reads from the GPU."""

    def __init__(self) -> None:
        self.scale = torch.full((1,), 65536.0)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale.item()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = torch.full((1,), state["scale"])


class Odd:
    """Views, strides, types, a tensor without elements, and two storages of one shape."""

    def __init__(self) -> None:
        base = torch.arange(60, dtype=torch.float64).reshape(6, 10)
        complex_numbers = torch.complex(torch.arange(40.0), torch.arange(40.0) + 0.5)
        self.tensors = {
            "base": base,
            "rows": base[2:4],
            "turned": base.t()[3:7, ::2],
            "halves": torch.arange(7).to(torch.bfloat16),
            "bytes": torch.arange(5, dtype=torch.uint8)[1:],
            "none": torch.empty(0, 3),
            "number": torch.tensor(3.25),
            "twin": torch.full((6, 10), 2.5, dtype=torch.float64),
            "complex": complex_numbers,
            "conjugated": complex_numbers.conj(),
            "negated": complex_numbers.conj()[3:].imag,
        }

    def state_dict(self) -> dict[str, Any]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = state


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CpuAsGpu:
    monkeypatch.setattr(_host_copy, "CHUNK_BYTES", 1 << 8)  # nearly every tensor is in two chunks
    return CpuAsGpu(torch)


def parts() -> dict[str, Any]:
    net, optimizer = build("adam")
    train(net, optimizer, range(4))
    return {"net": net, "optimizer": optimizer, "scaler": Scaler(), "odd": Odd()}


def on_gpu(made: dict[str, Any]) -> list[Any]:
    tensors = everything(made["net"], made["optimizer"])
    return [*tensors, made["scaler"].scale, *made["odd"].tensors.values()]


def files(store: Store, made: dict[str, Any]) -> dict[str, bytes]:
    return {name: bytes(content) for name, content in State(**made).capture(store).items()}


def test_the_files_are_those_of_a_state_on_the_gpu(gpu: CpuAsGpu, tmp_path: Path) -> None:
    store, made = Store(tmp_path, rank=0, world_size=1), parts()
    expected = files(store, made)
    gpu.put(*on_gpu(made))
    state = TorchState(torch, gpu)
    for part in made.values():
        state.add(part.tensors if isinstance(part, Odd) else part)
    state.add(made["scaler"].scale)
    leave(state)
    assert not any(storage_of(tensor).nbytes() for tensor in on_gpu(made))
    assert state.reads_offloaded
    with state.reading():
        found = files(store, made)
    assert found == expected
    assert not any(storage_of(tensor).nbytes() for tensor in on_gpu(made)), "all of it is still off the GPU"
    state.restore()
    with state.reading():
        assert files(store, made) == expected
    assert files(store, made) == expected


def test_what_is_conjugated_or_negated_lazily_is_read_so(gpu: CpuAsGpu) -> None:
    odd, state = Odd(), TorchState(torch, gpu)
    expected = {name: tensor.tolist() for name, tensor in odd.tensors.items()}
    assert expected["conjugated"] != expected["complex"]
    gpu.put(*odd.tensors.values())
    state.add(odd.tensors)
    leave(state)
    with state.reading():
        assert {name: (tensor + 0).tolist() for name, tensor in odd.tensors.items()} == expected
        assert {name: tensor.clone().tolist() for name, tensor in odd.tensors.items()} == expected
    state.restore()
    assert {name: tensor.tolist() for name, tensor in odd.tensors.items()} == expected


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_read_off_the_gpu_is_named(gpu: CpuAsGpu) -> None:
    tensors = [torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)]
    if hasattr(torch, "nested"):
        tensors.append(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
    gpu.put(*tensors)
    values = torch.ones(2)  # what sparse tensors are made of is found where Python knows it, and moved
    gpu.put(values)
    tensors.append(torch.sparse_coo_tensor(torch.tensor([[0, 1], [0, 1]]), values, (2, 2)))
    tensors.append(torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), values, (2, 2)))
    state = TorchState(torch, gpu)
    state.add(tensors)
    leave(state)
    for tensor in tensors:
        with state.reading(), pytest.raises(TypeError, match=f"{tensor.dtype}.* cannot be read"):
            tensor.clone()
    there = torch.eye(2).to_sparse()
    with state.reading():
        assert there.clone().to_dense().tolist() == torch.eye(2).tolist(), "this one was not moved"
    state.restore()
    assert tensors[0].dequantize().tolist() == [1.0, 1.0]
    assert [tensor.to_dense().tolist() for tensor in tensors[-2:]] == [torch.eye(2).tolist()] * 2


def test_a_saved_state_comes_back(gpu: CpuAsGpu, tmp_path: Path) -> None:
    made, state = parts(), TorchState(torch, gpu)
    expected = [tensor.clone() for tensor in on_gpu(made)]
    gpu.put(*on_gpu(made))
    for part in made.values():
        state.add(part.tensors if isinstance(part, Odd) else part)
    state.add(made["scaler"].scale)
    leave(state)
    store = Store(tmp_path, rank=0, world_size=1)
    with state.reading():
        saving = State(**made).save(store, 4)
    assert saving.result(20) == 1
    again = parts()
    train(again["net"], again["optimizer"], range(9))
    assert State(**again).restore(store) == 4
    found = on_gpu(again)
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))


def test_nothing_waits_for_the_gpu_while_all_is_off_it(gpu: CpuAsGpu, monkeypatch: Any) -> None:
    made, state, waited = parts(), TorchState(torch, gpu), list[int]()
    gpu.put(*on_gpu(made))
    state.add(made["net"])
    leave(state)
    monkeypatch.setattr(gpu, "synchronize", lambda: waited.append(1))
    state.synchronize()
    assert not waited
    state.restore()
    waited.clear()
    state.synchronize()
    assert waited
