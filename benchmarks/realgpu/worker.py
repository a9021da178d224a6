# SPDX-License-Identifier: GPL-2.0-or-later
"""A deterministic training job: what `benchmarks.realgpu` suspends, resumes and compares.

Stands alone: it is copied to where the job's user can read it, together with the package `gandiva` and
`mockcuda`, and knows nothing else of the project. Every step changes all of its state on the GPU, in a way
that depends on all earlier steps, and logs the bits of its loss. At the end it writes one digest each of
parameters, optimizer, padding, losses and random number generators: a run that was suspended must end with
exactly the digests of a run of as many steps that was left alone.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from examples import mockcuda
else:
    import mockcuda

MIB = 1 << 20
MODELS = ("mock", "mlp", "gpt", "resnet")
HAZARDS = ("helper", "graph", "frozen-graph", "default-device", "dtensor", "ddp")
LAST_STEP = 2**31


class Model(Protocol):
    """What the loop below trains."""

    samples: int

    def step(self, number: int) -> str:
        """One mini-batch; the bits of its loss, in hexadecimal."""
        ...

    def long_kernel(self, seconds: float) -> None:
        """Start a kernel that takes this long; does not wait for it."""
        ...

    def registered(self) -> list[Any]:
        """What a session is told of."""
        ...

    def digests(self) -> dict[str, str]:
        """SHA-256 of each part of the state."""
        ...


# --- without PyTorch ---------------------------------------------------------------------------------------


class MockModel:
    """State in a CUDA context of the mock driver, which keeps the context, as PyTorch does."""

    samples = 1

    def __init__(self, options: argparse.Namespace) -> None:
        mockcuda.init()
        self._context = mockcuda.Context(0)
        self._core_bytes = 64 * 1024
        self._rest_bytes = max(0, options.state_mib * MIB - self._core_bytes)
        self._core = hashlib.shake_128(str(options.seed).encode()).digest(self._core_bytes)
        self._rest = hashlib.shake_128(f"rest {options.seed}".encode()).digest(4096)
        self._rest *= -(-self._rest_bytes // 4096)
        self._rest = self._rest[: self._rest_bytes]
        self._losses = hashlib.sha256()
        self._addresses = (0, 0)
        self.restore()
        if options.hazard == "helper":
            start_helper()

    def step(self, number: int) -> str:
        core = self._addresses[0]
        self._context.step(2000, 50, core, self._core_bytes, number)
        self._context.synchronize()
        loss = self._context.copy_out(core + self._core_bytes - 8, 8)
        self._losses.update(loss)
        return loss.hex()

    def long_kernel(self, seconds: float) -> None:
        self._context.spin(int(seconds * 1e6), 50)

    def registered(self) -> list[Any]:
        return [self]

    @property
    def state_bytes(self) -> int:
        size: int = self._core_bytes + self._rest_bytes
        return size

    def offload(self) -> int:
        core, rest = self._addresses
        self._core = self._context.copy_out(core, self._core_bytes)
        self._context.free(core)
        if self._rest_bytes:
            self._rest = self._context.copy_out(rest, self._rest_bytes)
            self._context.free(rest)
        return 0

    def restore(self) -> None:
        core = self._context.alloc(self._core_bytes)
        self._context.copy_in(core, self._core)
        rest = 0
        if self._rest_bytes:
            rest = self._context.alloc(self._rest_bytes)
            self._context.copy_in(rest, self._rest)
        self._addresses = (core, rest)

    def digests(self) -> dict[str, str]:
        core, rest = self._addresses
        state = hashlib.sha256(self._context.copy_out(core, self._core_bytes))
        if self._rest_bytes:
            state.update(self._context.copy_out(rest, self._rest_bytes))
        return {"state": state.hexdigest(), "losses": self._losses.hexdigest()}


# --- PyTorch -----------------------------------------------------------------------------------------------

PAD_BUFFER_BYTES = 1 << 30
MULTIPLIER = 6364136223846793005
"""Odd: multiplication by it loses no bit of a 64-bit number."""


class Padding:
    """GPU memory of any size, each word of which changes in every step and never loses its history."""

    def __init__(self, torch: Any, device: str, nbytes: int, seed: int) -> None:
        self._torch = torch
        self.buffers: list[Any] = []
        while nbytes >= 8:
            words = min(nbytes, PAD_BUFFER_BYTES) // 8
            buffer = torch.arange(words, dtype=torch.int64, device=device)
            self.buffers.append(buffer.mul_(MULTIPLIER).add_(seed + len(self.buffers)))
            nbytes -= words * 8

    def step(self, number: int) -> None:
        for buffer in self.buffers:
            buffer.mul_(MULTIPLIER).add_(number)

    def digest(self) -> str:
        """Made of a sum over pieces in which every word has a weight of its own: integers, so the order in
        which a GPU adds them up does not matter."""
        sums = []
        for buffer in self.buffers:
            for piece in buffer.split(1 << 23):
                weights = self._torch.arange(1, 2 * len(piece), 2, dtype=piece.dtype, device=piece.device)
                sums.append(int(weights.mul_(piece).sum()))
        return hashlib.sha256(repr(sums).encode()).hexdigest()


class Tokens:
    """A data set without end: every item depends on the seed and its index alone."""

    def __init__(self, torch: Any, seed: int, vocabulary: int, length: int) -> None:
        self._torch, self._seed, self._vocabulary, self._length = torch, seed, vocabulary, length

    def __len__(self) -> int:
        return LAST_STEP

    def __getitem__(self, index: int) -> Any:
        generator = self._torch.Generator(device="cpu").manual_seed(self._seed * 1_000_003 + index)
        return self._torch.randint(self._vocabulary, (self._length,), generator=generator, device="cpu")


class TorchModel:
    """A network, AdamW, a learning rate schedule, mixed precision where there is a GPU, and padding."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self._torch = torch
        self._device: str = options.device
        self._on_gpu = self._device == "cuda"
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        if self._on_gpu:  # On the CPU threads that wait for each other spin, and stand in each other's way.
            torch.set_num_threads(2)
        if options.hazard == "default-device":
            torch.set_default_device(self._device)
        torch.manual_seed(options.seed)
        make = {"mlp": make_mlp, "gpt": make_gpt, "resnet": make_resnet}[options.model]
        self._network, self._loss, self.samples = make(torch, self._device, options.seed, options.small)
        self._losses = hashlib.sha256()
        self._extra: list[Any] = []
        self._extra_step: Callable[[], None] = lambda: None
        self._add_hazard(options)
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-3)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, lambda n: 1.0 / (1.0 + n / 100))
        self._scaler = torch.amp.GradScaler(self._device, enabled=self._on_gpu)
        self._padding = Padding(torch, self._device, options.state_mib * MIB, options.seed)

    def step(self, number: int) -> str:
        torch = self._torch
        self._padding.step(number)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device, dtype=torch.float16, enabled=self._on_gpu):
            loss = self._loss()
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._schedule.step()
        self._extra_step()
        bits: str = raw_bytes(torch, loss.detach().float()).hex()
        self._losses.update(bits.encode())
        return bits

    def long_kernel(self, seconds: float) -> None:
        torch = self._torch
        if not self._on_gpu:
            return
        trial = 200_000_000
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.cuda._sleep(trial)
        torch.cuda.synchronize()
        torch.cuda._sleep(int(trial * seconds / (time.perf_counter() - begin)))

    def registered(self) -> list[Any]:
        return [self._network, self._optimizer, self._scaler, self._padding.buffers]

    def digests(self) -> dict[str, str]:
        torch = self._torch
        found = {
            "parameters": digest_of(torch, self._network.state_dict()),
            "optimizer": digest_of(torch, [self._optimizer.state_dict(), self._scaler.state_dict()]),
            "padding": self._padding.digest(),
            "cpu_rng": digest_of(torch, torch.get_rng_state()),
            "losses": self._losses.hexdigest(),
        }
        if self._on_gpu:
            found["cuda_rng"] = digest_of(torch, torch.cuda.get_rng_state())
        if self._extra:
            found["hazard"] = digest_of(torch, self._extra)
        return found

    def _add_hazard(self, options: argparse.Namespace) -> None:
        """Something that a session must refuse, or keep right."""
        torch, hazard = self._torch, options.hazard
        if hazard == "helper":
            start_helper()
        if hazard in ("graph", "frozen-graph"):
            self._extra, self._extra_step = capture_graph(torch)
            if hazard == "frozen-graph":
                gc.collect()
                gc.freeze()
        if hazard in ("dtensor", "ddp"):
            meeting = f"file://{options.out}.meeting"
            backend = "nccl" if self._on_gpu else "gloo"
            torch.distributed.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        if hazard == "ddp":
            network = torch.nn.parallel.DistributedDataParallel(self._network)
            self._network = network
            self._loss = mlp_loss(torch, network, self._device, options.seed, options.small)
        if hazard == "dtensor":
            self._extra, self._extra_step = make_dtensor(torch, self._device)


Made = tuple[Any, Callable[[], Any], int]
"""A network, a function that gives the loss of the next mini-batch, and samples in one."""


def mlp_loss(torch: Any, network: Any, device: str, seed: int, small: bool) -> Callable[[], Any]:
    """Its batches are made on the CPU."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    shape = (16, 64) if small else (1024, 2048)

    def loss() -> Any:
        inputs = torch.randn(shape, generator=generator, device="cpu").to(device)
        targets = inputs.square().mean(dim=1, keepdim=True)
        return torch.nn.functional.mse_loss(network(inputs).float(), targets)

    return loss


def make_mlp(torch: Any, device: str, seed: int, small: bool) -> Made:
    """Large matrices and nothing else."""
    nn, width = torch.nn, 64 if small else 2048
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(width, 1)).to(device)
    return network, mlp_loss(torch, network, device, seed, small), 16 if small else 1024


def make_gpt(torch: Any, device: str, seed: int, small: bool) -> Made:
    """A small transformer with dropout; its data come from two forked workers through pinned memory."""
    nn, functional = torch.nn, torch.nn.functional
    vocabulary, width, length, batch = (256, 64, 32, 2) if small else (8192, 512, 256, 16)
    heads, depth = 8, 2 if small else 8
    blocks = nn.ModuleList(
        nn.ModuleDict(
            {
                "before": nn.LayerNorm(width),
                "mix": nn.Linear(width, 3 * width),
                "out": nn.Linear(width, width),
                "between": nn.LayerNorm(width),
                "up": nn.Linear(width, 4 * width),
                "down": nn.Linear(4 * width, width),
            }
        )
        for _ in range(depth)
    )
    network = nn.ModuleDict(
        {
            "tokens": nn.Embedding(vocabulary, width),
            "places": nn.Embedding(length, width),
            "blocks": blocks,
            "head": nn.Linear(width, vocabulary),
        }
    ).to(device)
    loader = torch.utils.data.DataLoader(
        Tokens(torch, seed, vocabulary, length + 1),
        batch_size=batch,
        num_workers=2,
        pin_memory=device == "cuda",
        multiprocessing_context="fork",
        generator=torch.Generator(device="cpu").manual_seed(seed),
    )
    batches = iter(loader)
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()

    def attend(block: Any, hidden: Any) -> Any:
        # Written out: the fused kernels are not deterministic on every GPU.
        query, key, value = (
            part.view(len(hidden), length, heads, width // heads).transpose(1, 2)
            for part in block["mix"](hidden).chunk(3, dim=-1)
        )
        weights = (query @ key.transpose(-1, -2)) * (width // heads) ** -0.5
        weights = weights.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        mixed = functional.dropout(weights, 0.1) @ value
        return block["out"](mixed.transpose(1, 2).reshape(hidden.shape))

    def loss() -> Any:
        tokens = next(batches).to(device, non_blocking=True)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        hidden = network["tokens"](inputs) + network["places"](torch.arange(length, device=device))
        for block in network["blocks"]:
            hidden = hidden + attend(block, block["before"](hidden))
            mixed = block["down"](functional.gelu(block["up"](block["between"](hidden))))
            hidden = hidden + functional.dropout(mixed, 0.1)
        logits = network["head"](hidden).float()
        return functional.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1))

    return network, loss, batch


def make_resnet(torch: Any, device: str, _seed: int, small: bool) -> Made:
    """Convolutions with batch norm; its data are made on the GPU, from the GPU's generator."""
    nn, functional = torch.nn, torch.nn.functional
    widths = (64, 128, 256, 512)
    stages = nn.ModuleList()
    before = 3
    for width in widths:
        stages.append(
            nn.ModuleDict(
                {
                    "first": nn.Conv2d(before, width, 3, stride=2, padding=1),
                    "norm": nn.BatchNorm2d(width),
                    "second": nn.Conv2d(width, width, 3, padding=1),
                    "norm2": nn.BatchNorm2d(width),
                }
            )
        )
        before = width
    network = nn.ModuleDict({"stages": stages, "head": nn.Linear(before, 100)}).to(device)
    batch, side = (4, 32) if small else (128, 96)

    def loss() -> Any:
        hidden = torch.randn(batch, 3, side, side, device=device)
        targets = torch.randint(100, (batch,), device=device)
        for stage in network["stages"]:
            hidden = functional.relu(stage["norm"](stage["first"](hidden)))
            hidden = hidden + functional.relu(stage["norm2"](stage["second"](hidden)))
        return functional.cross_entropy(network["head"](hidden.mean(dim=(2, 3))).float(), targets)

    return network, loss, batch


def capture_graph(torch: Any) -> tuple[list[Any], Callable[[], None]]:
    """A CUDA graph that changes a tensor at a fixed address."""
    tensor = torch.arange(1 << 20, dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        tensor.mul_(MULTIPLIER).add_(1)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.mul_(MULTIPLIER).add_(1)
    return [tensor], graph.replay


def make_dtensor(torch: Any, device: str) -> tuple[list[Any], Callable[[], None]]:
    """A tensor spread over a mesh of one device, as FSDP2 makes them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(device, (1,))
    tensor = distribute_tensor(torch.ones(1 << 20, device=device), mesh, [Shard(0)])

    def change() -> None:
        tensor.mul_(1.0009765625).add_(0.25)

    return [tensor], change


def raw_bytes(torch: Any, tensor: Any) -> bytes:
    """What a tensor holds."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return bytes(flat.numpy().tobytes())


def digest_of(torch: Any, value: Any) -> str:
    """SHA-256 over tensors and plain values in containers, whatever order a dictionary is in."""
    result = hashlib.sha256()

    def fold(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            result.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            result.update(raw_bytes(torch, part))
        elif isinstance(part, dict):
            for key in sorted(part, key=str):
                result.update(f"{key}: ".encode())
                fold(part[key])
        elif isinstance(part, (list, tuple)):
            for item in part:
                fold(item)
        else:
            result.update(f"{part!r} ".encode())

    fold(value)
    return result.hexdigest()


# --- hazards without PyTorch -------------------------------------------------------------------------------


def start_helper() -> None:
    """A second process with a CUDA context, which no session speaks for. It ends with this one's pipe."""
    code = "import sys, mockcuda; mockcuda.init(); c = mockcuda.Context(0); print('ready', flush=True)"
    helper = subprocess.Popen(
        [sys.executable, "-c", f"{code}; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert helper.stdout is not None
    if helper.stdout.readline() != b"ready\n":
        raise RuntimeError("the second process has no CUDA context")
    _HELPERS.append(helper)


_HELPERS: list[subprocess.Popen[bytes]] = []


# --- where the time of a switch goes -----------------------------------------------------------------------


class Stopwatch:
    """Adds up the time that named calls take within a switch, and logs it with the switch."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self._seconds: dict[str, float] = {}

    def part(self, owner: Any, name: str, part: str) -> None:
        """Count this call as a part of a switch. A name that is not there is left out."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - begin

        setattr(owner, name, timed)

    def whole(self, owner: Any, name: str, switch: str) -> None:
        """This call is a switch, or a step before one: log what it took, in all and by part."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._seconds = {}
            begin = time.perf_counter()
            result = original(*args, **kwargs)
            seconds = time.perf_counter() - begin
            say(self._log, {"switch": switch, "seconds": seconds, "parts": self._seconds})
            return result

        setattr(owner, name, timed)


def time_switches(log: TextIO, torch: bool) -> None:
    """Put a stopwatch on the job's side of a switch, where it is in memory only."""
    from gandiva import _accelerator, _host_copy, _registry, _torch

    watch = Stopwatch(log)
    if torch:
        watch.part(gc, "collect", "gc")
        watch.part(_torch.TorchState, "prepare", "wait")
        watch.part(_torch.TorchState, "_plan", "plan")
        watch.part(_host_copy.Arena, "reserve", "reserve")
        watch.part(_accelerator.Accelerator, "release_caches", "caches")
    watch.whole(_registry.Registry, "host_bytes", "count")
    watch.whole(_registry.Registry, "offload", "offload")
    watch.whole(_registry.Registry, "restore", "restore")


# --- the job -----------------------------------------------------------------------------------------------


def say(log: TextIO, entry: dict[str, Any]) -> None:
    print(json.dumps(entry), file=log, flush=True)


def train(options: argparse.Namespace, log: TextIO) -> None:
    model: Model = MockModel(options) if options.model == "mock" else TorchModel(options)
    session = None
    if not options.no_session:
        import gandiva

        time_switches(log, torch=options.model != "mock")
        session = gandiva.attach(rank=0, world_size=1)
        session.register(*model.registered())
    done = 0
    for number in itertools.count(1):
        if done >= options.steps or (options.until is not None and options.until.exists()):
            break
        begin = time.time()
        if number == options.kernel_at:
            model.long_kernel(options.kernel_seconds)
        loss = model.step(number)
        done = number
        say(log, {"step": number, "begin": begin, "end": time.time(), "loss": loss})
        if options.pace_ms:
            time.sleep(options.pace_ms / 1000)
        if session is not None:
            session.step(samples=model.samples)
    result = {"steps": done, "digests": model.digests()}
    draft = options.out.with_suffix(".new")
    draft.write_text(json.dumps(result) + "\n")
    draft.rename(options.out)
    if session is not None:
        session.finish()
    for helper in _HELPERS:
        helper.kill()
    # Forked data workers and communicators need no orderly end, and some would take seconds for it.
    log.flush()
    os._exit(0)


def check(options: argparse.Namespace) -> None:
    """Can this user import what the job needs, and use the GPU? Raises whatever is wrong."""
    if options.model == "mock":
        mockcuda.init()
        mockcuda.Context(0).destroy()
        return
    import torch

    if options.device == "cuda":
        torch.ones(1, device="cuda").sum().item()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, default="gpt")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--state-mib", type=int, default=0, help="besides the network (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=LAST_STEP)
    parser.add_argument(
        "--until", type=Path, help="end at the first step boundary at which this file is there"
    )
    parser.add_argument("--pace-ms", type=float, default=0.0, help="sleep after each step")
    parser.add_argument("--small", action="store_true", help="a network for the CPU")
    parser.add_argument("--no-session", action="store_true", help="an unmodified job")
    parser.add_argument("--hazard", choices=HAZARDS)
    parser.add_argument("--kernel-at", type=int, default=0, help="step that starts a long kernel")
    parser.add_argument("--kernel-seconds", type=float, default=20.0)
    parser.add_argument("--log", type=Path, help="a JSON line for each step and switch")
    parser.add_argument("--out", type=Path, help="JSON with the digests")
    parser.add_argument("--check", action="store_true", help="only see whether the GPU can be used")
    options = parser.parse_args()
    if options.check:
        check(options)
        return 0
    if options.log is None or options.out is None:
        parser.error("name --log and --out")
    with options.log.open("a") as log:
        train(options, log)
    return 0


if __name__ == "__main__":
    sys.exit(main())
