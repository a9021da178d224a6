# SPDX-License-Identifier: GPL-2.0-or-later
"""Models and optimizers of fully_shard() through the store: each rank writes and reads its part of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.store import InvalidGeneration, Store
from checkpointing.store.state import TENSORS, VALUES, State
from checkpointing.store.tensor_file import Packer
from tests.unit.checkpointing.torch_ranks import torch_ranks
from tests.unit.jobside.need_torch import need_torch

torch: Any = need_torch()

JOB = """
import json, sys
import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as Classic, StateDictType, fully_shard
from checkpointing.store import InvalidGeneration, Store
from checkpointing.store.state import State, run_word

folder, words = sys.argv[1], sys.argv[2:]
distributed.init_process_group("gloo")
rank = distributed.get_rank()


class Both:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))

    def load_state_dict(self, state):
        both = dict(model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        set_state_dict(self.model, self.optimizer, **both)


class Training:
    def __init__(self, classic=False):
        torch.manual_seed(0 if words else 99)
        # 7 rows are no multiple of a number of ranks, and of 1 row all ranks but the first have nothing.
        layers = torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.2), torch.nn.Linear(7, 1)
        self.model = torch.nn.Sequential(*layers)
        if classic:
            mesh = distributed.device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
            where = dict(device_mesh=mesh, device_id=torch.device("cpu"))
            self.model = Classic(self.model, use_orig_params=True, **where)
            Classic.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)
        else:
            for layer in (*layers, self.model):
                fully_shard(layer)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05, amsgrad=True)
        torch.manual_seed(rank)

    def train(self):
        losses = []
        for _ in range(3):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(6, 5)).pow(2).sum()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item().hex())
        return losses


def numbers(value):
    if isinstance(value, dict):
        return {str(key): numbers(item) for key, item in value.items()}
    if torch.is_tensor(value):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        return whole.double().tolist()
    return None


def run(name, training, **parts):
    whole = lambda: {name: numbers(part.state_dict()) for name, part in parts.items()}
    store = Store(f"{folder}/{name}", run=run_word())
    state = State(replicated=[] if name == "own" else parts, **parts)
    said = {}
    try:
        if words:
            training.train()
            saving = state.save(store, 3)
        else:
            said["step"] = state.restore(store)
        said["whole"] = whole()
        said["losses"] = training.train()
        said["end"] = whole()
        if words:
            saving.result(60)
    except InvalidGeneration as error:
        said["error"] = str(error)
    store.close()
    return said


said = {}
for name in ("own", "common"):
    training = Training()
    said[name] = run(name, training, model=training.model, optimizer=training.optimizer)
for name in ("helper", "classic"):
    training = Training(name == "classic")
    said[name] = run(name, training, both=Both(training.model, training.optimizer))
print(json.dumps(said))
distributed.destroy_process_group()
"""


def job(folder: Path, ranks: int, *words: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in torch_ranks(JOB, ranks, str(folder), *words)]


def without_statistics(states: dict[str, Any]) -> dict[str, Any]:
    """Each rank's batches have their own mean: what all ranks have in common is rank 0's."""
    return {
        key: without_statistics(value) if isinstance(value, dict) else value
        for key, value in states.items()
        if "running" not in key
    }


STORES = ("own", "common", "helper", "classic")
Trained = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps of two ranks, a generation, and three steps more, for each of four stores."""
    folder = tmp_path_factory.mktemp("store")
    for name in STORES:
        (folder / name).mkdir()
    return folder, job(folder, 2, "train")


def test_fsdp_training_goes_on_bit_for_bit(trained: Trained) -> None:
    folder, undisturbed = trained
    for was, found in zip(undisturbed, job(folder, 2), strict=True):
        assert found["own"] == {"step": 3, **was["own"]}
        for name in STORES[1:]:
            assert found[name]["step"] == 3
            assert found[name]["whole"] == undisturbed[0][name]["whole"]
            assert found[name]["losses"] == was[name]["losses"]
            assert without_statistics(found[name]["end"]) == without_statistics(was[name]["end"])


def test_fsdp_state_in_another_number_of_ranks(trained: Trained) -> None:
    folder, undisturbed = trained
    for rank, found in enumerate(job(folder, 3)):
        assert f"generation 1 of 2 ranks: no part model for rank {rank} of 3" in found["own"]["error"]
        for name in STORES[1:]:
            assert found[name]["step"] == 3
            assert found[name]["whole"] == undisturbed[0][name]["whole"]


def test_fsdp_state_in_a_model_that_is_not_spread(trained: Trained) -> None:
    folder, undisturbed = trained
    parts = whole_parts()
    assert State(replicated=parts, **parts).restore(Store(folder / "common", rank=0, world_size=1)) == 3
    was = undisturbed[0]["common"]["whole"]
    assert lists(parts["model"].state_dict()) == was["model"]
    assert lists(parts["optimizer"].state_dict()["state"]) == was["optimizer"]["state"]


def lists(state: dict[Any, Any]) -> dict[str, Any]:
    return {
        str(key): lists(value) if isinstance(value, dict) else value.tolist() for key, value in state.items()
    }


def test_each_fsdp_rank_writes_its_part_and_rank_0_the_rest(trained: Trained) -> None:
    folder = trained[0] / "common" / "generation-00000001"
    first, second = (json.loads((folder / f"rank-0000{n}" / VALUES).read_text()) for n in range(2))
    assert [
        (each["model"]["0.weight"]["shape"], each["model"]["0.weight"]["offset"]) for each in (first, second)
    ] == [
        ([7, 5], [0, 0]),
        ([7, 5], [4, 0]),
    ]
    assert set(first["model"]) - set(second["model"]) == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }
    assert set(second["optimizer"]) == {"state"}


def whole_parts() -> dict[str, Any]:
    layers = torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.2), torch.nn.Linear(7, 1)
    model = torch.nn.Sequential(*layers)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.05, amsgrad=True)}


# -- files that lie ----------------------------------------------------------------------------


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One process that is a whole job."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def spread_parts() -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(5, 7)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(torch.randn(2, 5)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def local_tensors(parts: dict[str, Any]) -> list[Any]:
    kept = [*parts["model"].state_dict().values()]
    for state in parts["optimizer"].state_dict()["state"].values():
        kept += state.values()
    return [(one.to_local() if hasattr(one, "to_local") else one).clone() for one in kept]


def changed(**keys: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        values["model"]["weight"].update(keys)

    return change


def replaced(value: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        values["model"]["weight"] = value

    return change


def of_the_optimizer(number: int, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        pairs = values["optimizer"]["state"]["$mapping"]
        pairs[0][0] = number
        pairs[0][1]["exp_avg"][key] = value

    return change


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(shape=[5, 7]), "none of a tensor of shape"),
        (changed(shape=[14, 5]), r"model.weight has .*shape \(14, 5\).* the shape \(7, 5\) here"),
        (changed(shape=[2**62, 2**62]), "model.weight has"),
        (changed(shape=[7, 5, 1], offset=[0, 0, 0]), "none of a tensor of shape"),
        (changed(shape=[7.0, 5]), "not the sizes"),
        (changed(shape=[True, 5]), "not the sizes"),
        (changed(shape="75"), "not the sizes"),
        (changed(shape=None), "not the sizes"),
        (changed(offset=[1, 0]), "none of a tensor of shape"),
        (changed(offset=[-1, 0]), "none of a tensor of shape"),
        (changed(offset=[0]), "none of a tensor of shape"),
        (changed(**{"$block": 3}), "without a tensor"),
        (changed(**{"$block": {"$tensor": "99"}}), "there is no tensor"),
        (changed(**{"$block": {"$tensor": "1"}}), "none of a tensor of shape"),
        (
            changed(**{"$block": {"$block": {"$tensor": "0"}, "shape": [7, 5], "offset": [0, 0]}}),
            "without a tensor",
        ),
        (replaced({"$tensor": "0"}), "model.weight is no block"),
        (of_the_optimizer(0, "shape", [14, 5]), "optimizer.state.0.exp_avg has"),
        (
            of_the_optimizer(7, "shape", [7, 5]),
            "optimizer.state.7.exp_avg is spread over ranks, and there is no",
        ),
    ],
)
def test_values_of_a_spread_tensor_that_lie(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    store = Store(tmp_path, rank=0, world_size=1)
    parts = spread_parts()
    state = State(**parts)
    state.save(store, 1).result(60)
    files = store.restore().files[0]  # type: ignore[union-attr]
    values = json.loads(bytes(files[VALUES]))
    change(values)
    store.save(2, {**files, VALUES: json.dumps(values).encode()})
    parts = spread_parts()
    before = local_tensors(parts)
    with pytest.raises(InvalidGeneration, match=message):
        State(**parts).restore(store)
    assert all(torch.equal(*pair) for pair in zip(before, local_tensors(parts), strict=True)), (
        "nothing was loaded"
    )


def generation_of_two(folder: Path, offset: int, numbers: Any) -> None:
    """Rank 0 has rows 0 to 3 of a weight of 7; rank 1 has `numbers`, and says that they begin at `offset`."""
    stores = [Store(folder, rank=rank, world_size=2, run="two") for rank in range(2)]
    rows = [torch.zeros(4, 5), numbers]
    saves = []
    for store, tensor, begin in zip(stores, rows, (0, offset), strict=True):
        packer = Packer(torch)
        block = {"$block": packer.pack(tensor, "rows"), "shape": [7, 5], "offset": [begin, 0]}
        values = json.dumps({"model": {"weight": block, "bias": packer.pack(torch.zeros(7), "bias")}})
        saves.append(
            store.save_async(
                1, {VALUES: values.encode(), TENSORS: bytes(packer.file(lambda n: memoryview(bytearray(n))))}
            )
        )
    assert [save.result(60) for save in saves] == [1, 1]


@pytest.mark.parametrize(
    ("offset", "numbers", "message"),
    [
        (3, torch.ones(3, 5), r"model.weight: 5 elements of this rank's part are in no block"),
        (4, torch.ones(3, 4), r"model.weight: 3 elements"),
        (4, torch.ones(3, 5, dtype=torch.float64), "float64"),
        (4, torch.ones(4, 5), "files of rank 1 are not"),
    ],
)
def test_blocks_that_leave_a_gap(tmp_path: Path, offset: int, numbers: Any, message: str) -> None:
    generation_of_two(tmp_path, offset, numbers)
    model = torch.nn.Linear(5, 7)
    before = model.weight.detach().clone()
    with pytest.raises(InvalidGeneration, match=message):
        State(replicated=["model"], model=model).restore(Store(tmp_path, rank=0, world_size=1))
    assert torch.equal(model.weight, before)


def test_blocks_of_all_ranks_make_the_whole(tmp_path: Path) -> None:
    generation_of_two(tmp_path, 4, torch.ones(3, 5))
    model = torch.nn.Linear(5, 7)
    assert State(replicated=["model"], model=model).restore(Store(tmp_path, rank=0, world_size=1)) == 1
    assert torch.equal(model.weight, torch.cat([torch.zeros(4, 5), torch.ones(3, 5)]))


# -- what cannot be written --------------------------------------------------------------------


@pytest.mark.usefixtures("group")
def test_what_is_spread_in_other_ways_is_refused_with_its_place() -> None:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed.tensor import DTensor, Partial

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    with pytest.raises(TypeError, match=r"^model\.sum: .*[Pp]artial"):
        Packer(torch).pack({"sum": DTensor.from_local(torch.ones(2), mesh, [Partial()])}, "model")
    classic = sharded_tensor.ones(ChunkShardingSpec(0, ["rank:0/cpu"]), 4)
    with pytest.raises(
        TypeError, match=r"^model\.classic is a ShardedTensor: only plain tensors and DTensors"
    ):
        Packer(torch).pack({"classic": classic}, "model")
