# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that goes on within an epoch of a real DataLoader draws the random numbers of an undisturbed one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpointing.store import Store
from checkpointing.store.state import State
from gandiva.batches import Batches
from tests.unit.jobside.need_torch import need_torch

torch: Any = need_torch()

SAMPLES = 12
BATCH = 4
STEPS = 8


class Data(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.arange(8.0) + index


class Noisy(Data):
    """Draws in the process that it is asked in."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand(8)


class Training:
    """A model with dropout, whose losses say which random numbers it got."""

    def __init__(self, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.losses: list[float] = []

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        loss = self.model(batch).sum()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


class Endless:
    """All batches come from one loader without an end."""

    def __init__(self, training: Training, data: Data, workers: int) -> None:
        self.position = Batches(SAMPLES, global_batch=BATCH, rank=0, world_size=1)
        self.loader = torch.utils.data.DataLoader(data, batch_sampler=self.position, num_workers=workers)
        self.parts = {"model": training.model, "optimizer": training.optimizer, "position": self.position}

    def __iter__(self) -> Iterator[Any]:
        return self.position.counted(self.loader)


class Rest(torch.utils.data.Sampler):  # type: ignore[misc]
    """What is left of an epoch; what was given out is counted by `Epochs`."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.done, SAMPLES))

    def __len__(self) -> int:
        return SAMPLES - self.done

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class Epochs:
    """A loader that is begun for each epoch, with another one for validation at its end."""

    rolls_over = False

    def __init__(self, training: Training, data: Data, workers: int) -> None:
        self.sampler = Rest()
        self.loader = torch.utils.data.DataLoader(
            data, batch_size=BATCH, sampler=self.sampler, num_workers=workers
        )
        self.validation = torch.utils.data.DataLoader(data, batch_size=BATCH)
        self.parts = {"model": training.model, "optimizer": training.optimizer, "position": self.sampler}

    def __iter__(self) -> Iterator[Any]:
        while True:
            done = self.sampler.done
            for batch in self.loader:
                done += BATCH
                # (Within an epoch the iterator has begun, and the sampler may say what is next.)
                self.sampler.done = done % SAMPLES if self.rolls_over else done
                yield batch
            self.sampler.done = 0
            if not self.rolls_over:
                sum(batch.sum() for batch in self.validation)


class RollingOver(Epochs):
    """After the last batch of an epoch the position is the beginning of the next one. No validation."""

    rolls_over = True


def run(kind: Any, data: Data, workers: int, folder: Path, steps: int, seed: int = 1) -> list[float]:
    """The losses of a job that goes on from what is in the folder, and leaves what it has come to there."""
    training = Training(seed)
    source = kind(training, data, workers)
    store = Store(folder, rank=0, world_size=1)
    state = State(**source.parts)
    state.restore(store)
    batches = iter(source)
    for batch in itertools.islice(batches, steps):
        training.step(batch)
    state.save(store, 1).result(60)
    return training.losses


@pytest.mark.parametrize(
    ("kind", "data", "workers"),
    [
        (Endless, Data(), 0),
        (Endless, Data(), 2),
        (Endless, Noisy(), 0),
        (Epochs, Noisy(), 0),
        (Epochs, Data(), 1),
        (RollingOver, Noisy(), 0),
    ],
    ids=["endless", "workers", "noisy", "epochs", "epochs-workers", "rolling-over"],
)
def test_it_goes_on_bit_for_bit(kind: Any, data: Data, workers: int, tmp_path: Path) -> None:
    undisturbed = run(kind, data, workers, tmp_path / "undisturbed", STEPS)
    for saved_at in (2, 3, 4) if workers == 0 else (2,):
        folder = tmp_path / str(saved_at)
        before = run(kind, data, workers, folder, saved_at)
        after = run(kind, data, workers, folder, STEPS - saved_at, seed=99)
        assert before + after == undisturbed, saved_at


def test_it_goes_on_again_and_again(tmp_path: Path) -> None:
    undisturbed = run(Endless, Noisy(), 0, tmp_path / "undisturbed", STEPS)
    found = [run(Endless, Noisy(), 0, tmp_path / "moved", 2, seed=seed) for seed in (1, 5, 6, 7)]
    assert list(itertools.chain(*found)) == undisturbed


def test_a_save_before_the_first_batch_changes_nothing(tmp_path: Path) -> None:
    undisturbed = run(Endless, Noisy(), 0, tmp_path / "undisturbed", STEPS)
    found = [run(Endless, Noisy(), 0, tmp_path / "moved", steps) for steps in (2, 0, 0, 6)]
    assert list(itertools.chain(*found)) == undisturbed


class Unsaid(Rest):
    def __len__(self) -> int:
        raise RuntimeError("nobody knows before the first epoch")


class Whole(Rest):
    def __len__(self) -> int:
        return SAMPLES


@pytest.mark.parametrize(
    ("sampler", "saved"), [(Unsaid, (1, 2)), (Whole, (3,))], ids=["no-length", "length-of-whole-epochs"]
)
def test_a_sampler_may_say_little_of_its_length(sampler: Any, saved: tuple[int, ...], tmp_path: Path) -> None:
    class Kind(Epochs):
        def __init__(self, training: Training, data: Data, workers: int) -> None:
            super().__init__(training, data, workers)
            self.sampler = self.parts["position"] = sampler()
            self.loader = torch.utils.data.DataLoader(data, batch_size=BATCH, sampler=self.sampler)

    undisturbed = run(Kind, Noisy(), 0, tmp_path / "undisturbed", STEPS)
    for saved_at in saved:
        folder = tmp_path / str(saved_at)
        before = run(Kind, Noisy(), 0, folder, saved_at)
        assert before + run(Kind, Noisy(), 0, folder, STEPS - saved_at, seed=99) == undisturbed


class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Its loader knows no length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


def seeded_epochs(loader: Any, epochs: Rest) -> Iterator[None]:
    """Goes on with a whole epoch, whose seed is its own."""
    while True:
        torch.manual_seed(100 + epochs.done)
        for _ in loader:
            yield
        epochs.done += 1


def short_epochs(loader: Any, epochs: Rest) -> Iterator[None]:
    """Holds the iterator of an epoch that is over, though it has batches left."""
    while True:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        epochs.done += 1
        yield


def whole_epochs(loader: Any, epochs: Rest) -> Iterator[None]:
    """Holds the iterator of an epoch that is over."""
    while True:
        batches = iter(loader)
        assert len(list(batches)) == SAMPLES // BATCH
        epochs.done += 1
        yield


@pytest.mark.parametrize(
    ("script", "data", "done", "again"),
    [
        (seeded_epochs, Data(), 4, 3),
        (seeded_epochs, Stream(), 4, 3),
        (short_epochs, Data(), 2, 2),
        (whole_epochs, Data(), 2, 2),
        (whole_epochs, Stream(), 2, 2),
    ],
)
def test_an_epoch_that_is_begun_draws_what_it_draws(
    script: Any, data: Any, done: int, again: int, tmp_path: Path
) -> None:
    """`done`: steps before the save; `again`: that of them which is the next one afterwards."""

    def drawn(folder: Path, steps: int) -> list[float]:
        torch.manual_seed(steps)
        epochs = Rest()
        store = Store(folder, rank=0, world_size=1)
        state = State(epochs=epochs)
        if state.restore(store) is None:
            torch.manual_seed(1)
        batches = script(torch.utils.data.DataLoader(data, batch_size=BATCH), epochs)
        found = [torch.rand(1).item() for _ in itertools.islice(batches, steps)]
        state.save(store, 1).result(60)
        batches.close()
        return found

    undisturbed = drawn(tmp_path / "undisturbed", STEPS)
    assert drawn(tmp_path / "moved", done) == undisturbed[:done]
    assert drawn(tmp_path / "moved", STEPS - again) == undisturbed[again:]


def test_a_loader_of_torchdata_is_a_part(tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    class Stateful:
        def __init__(self, training: Training, data: Data, workers: int) -> None:
            self.loader = stateful(data, batch_size=BATCH, shuffle=True, num_workers=workers)
            self.parts = {"model": training.model, "loader": self.loader}

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from self.loader

    for workers, saved in ((0, (1, 2, 3, 4)), (2, (2,))):
        undisturbed = run(Stateful, Data(), workers, tmp_path / f"undisturbed{workers}", STEPS)
        for saved_at in saved:
            folder = tmp_path / f"{workers}-{saved_at}"
            before = run(Stateful, Data(), workers, folder, saved_at)
            after = run(Stateful, Data(), workers, folder, STEPS - saved_at, seed=1)
            assert before + after == undisturbed, (workers, saved_at)
