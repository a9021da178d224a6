# SPDX-License-Identifier: MIT
"""A training job for the mini cluster's mock GPUs, as a user would write one.

    sbatch --gres=gpu:1 train_mock.sbatch
    python train_mock.py --steps 200 --minibatch-ms 100 --utilisation 60 --memory-mb 4096

Each GPU holds a small state (the "weights"), which every mini-batch transforms on the GPU, and a large
rest (the "activations"), whose contents do not matter between mini-batches. All ranks and GPUs combine
their results after every mini-batch (an all-reduce) and the result goes into the next one. So the final
digest depends on every single mini-batch of every rank: a run that was suspended, moved or restarted from
its checkpoint must end with exactly the digest of a run that was left alone.

Runs unchanged with and without Slurm and with and without Gandiva.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from examples import mockcuda
else:
    import mockcuda

MIB = 1 << 20
WORD = 0xFFFFFFFFFFFFFFFF
SAMPLES_PER_STEP = 32


def mix(*numbers: int) -> int:
    """One 64-bit number that depends on all of these and their order."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


# --- ranks -------------------------------------------------------------------------------------------------


class Group:
    """All ranks of the job: rank 0 adds up what the others send over TCP and sends the sum back.

    There are no time-outs: a rank that is suspended for an hour is waited for.
    """

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self.rank = rank
        self.world_size = world_size
        self._peers: list[socket.socket] = []
        if world_size == 1:
            return
        # One meeting point per run of the step: a restarted job must not find the address of its last life.
        meeting = folder / f".train_mock-{_start()}"
        if rank == 0:
            self._listen(meeting)
        else:
            self._join(meeting)

    def _listen(self, meeting: Path) -> None:
        with socket.create_server(("", 0)) as server:
            draft = meeting.with_name(meeting.name + ".new")
            draft.write_text(f"{_own_address()}:{server.getsockname()[1]}")
            draft.rename(meeting)
            peers: dict[int, socket.socket] = {}
            while len(peers) < self.world_size - 1:
                connection, _ = server.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peers[struct.unpack("<I", _receive(connection, 4))[0]] = connection
            self._peers = [peers[rank] for rank in sorted(peers)]
        meeting.unlink(missing_ok=True)

    def _join(self, meeting: Path) -> None:
        while True:
            try:
                host, port = meeting.read_text().rsplit(":", 1)
                connection = socket.create_connection((host, int(port)))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.05)  # rank 0 is not there yet
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(struct.pack("<I", self.rank))
        self._peers = [connection]

    def _reduce(self, value: int, combine: Callable[[int, int], int]) -> int:
        if self.world_size == 1:
            return value
        if self.rank == 0:
            for peer in self._peers:
                value = combine(value, struct.unpack("<Q", _receive(peer, 8))[0])
            for peer in self._peers:
                peer.sendall(struct.pack("<Q", value))
            return value
        self._peers[0].sendall(struct.pack("<Q", value))
        return int(struct.unpack("<Q", _receive(self._peers[0], 8))[0])

    def sum(self, value: int) -> int:
        """The sum over all ranks, modulo 2^64; every rank gets it."""
        return self._reduce(value & WORD, lambda a, b: (a + b) & WORD)

    def minimum(self, value: int) -> int:
        return self._reduce(value, min)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def _own_address() -> str:
    return socket.gethostname() if "SLURM_JOB_ID" in os.environ else "127.0.0.1"


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("another rank has gone")
        data += piece
    return data


# --- the model ---------------------------------------------------------------------------------------------


class Model:
    """State on one or more GPUs, with the two hooks that let a scheduler take the GPUs away and give them
    (or others) back between two mini-batches."""

    def __init__(self, options: argparse.Namespace, rank: int, devices: Callable[[int], list[int]]) -> None:
        self._devices = devices
        self._options = options
        self._state_bytes: int = options.state_kb * 1024
        # The state stands for all memory: so much is in use on the GPU, and is copied at every switch.
        self._memory_bytes = max(options.memory_mb * MIB, self._state_bytes)
        # Whether nothing of this process stays on the GPU after offload(), not even the CUDA context.
        self.releases_context = not options.keep_context
        # Whether snapshot() works while everything is in host memory.
        self.saves_offloaded = True
        self._contexts: list[mockcuda.Context] = []
        self._shards: int = options.gpus
        # Each shard starts from its own numbers, on whatever GPU it is.
        self._host: list[bytes] = [
            hashlib.shake_128(f"{options.seed} {rank} {shard}".encode()).digest(self._state_bytes)
            for shard in range(self._shards)
        ]
        # Per shard: where it is now. Empty while everything is in host memory.
        self._placed: list[tuple[mockcuda.Context, int]] = []

    @property
    def state_bytes(self) -> int:
        return self._state_bytes * self._shards

    @property
    def largest_tensor_bytes(self) -> int:
        return round(self._state_bytes * float(self._options.skew))

    def offload(self) -> int:
        """Everything to host memory, contexts included where they are not kept; the number of bytes of the
        state left on the GPUs."""
        self._host = self.snapshot()
        if self.releases_context:
            self._destroy()
        else:
            for context, address in self._placed:
                context.free(address)
        self._placed = []
        return 0

    def _destroy(self) -> None:
        for context in self._contexts:
            context.destroy()
        self._contexts = []

    def _create(self) -> None:
        for device in self._devices(self._shards):
            context = mockcuda.Context(device)
            self._contexts.append(context)
            for _ in range(self._options.communicators):
                context.create_communicator()

    def restore(self) -> None:
        """Back onto the GPUs that the job may use now."""
        placed: list[tuple[mockcuda.Context, int]] = []
        try:
            if not self._contexts:
                self._create()
            for shard, context in enumerate(self._contexts):
                address = context.alloc(self._state_bytes, self._memory_bytes)
                placed.append((context, address))
                context.copy_in(address, self._host[shard])
        except BaseException:
            self._destroy()
            raise
        self._placed = placed

    def snapshot(self) -> list[bytes]:
        """The state of every shard, from where it is."""
        if not self._placed:
            return self._host
        return [context.copy_out(address, self._state_bytes) for context, address in self._placed]

    def load(self, states: list[bytes]) -> None:
        """State to be put on the GPUs by the next restore()."""
        self._host = states

    def train_step(self, seed: int) -> int:
        """One mini-batch on all GPUs at once; a number that depends on the new state."""
        microseconds = round(self._options.minibatch_ms * 1000)
        if self._options.host_ms:
            time.sleep(self._options.host_ms / 1000)
        for shard, (context, address) in enumerate(self._placed):
            context.step(
                microseconds, self._options.utilisation, address, self._state_bytes, mix(seed, shard)
            )
        result = 0
        for context, address in self._placed:
            context.synchronize()
            tail = context.copy_out(address + self._state_bytes - 8, 8)
            result = (result + int.from_bytes(tail, "little")) & WORD
        return result

    def uuids(self) -> list[str]:
        return [mockcuda.device_uuid(context.device) for context, _ in self._placed]


class GpuProcess:
    """A model whose GPUs are used by a process of its own, which ends when the job leaves them. CUDA looks
    for GPUs once in each process: so it comes back on others, and on another number of them."""

    releases_context = True
    starts_processes = True
    saves_offloaded = True

    def __init__(self, options: argparse.Namespace, rank: int, session: Any) -> None:
        self._options, self._rank = options, rank
        self._devices: Any = None
        if session is not None and session.active:
            from gandiva.ranks import Devices

            self._devices = Devices(os.environ, session)
        self._model = Model(options, rank, lambda _shards: [])
        """The state, while it is in host memory."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def state_bytes(self) -> int:
        return self._model.state_bytes

    @property
    def largest_tensor_bytes(self) -> int:
        return self._model.largest_tensor_bytes

    def _ask(self, method: str, *arguments: Any) -> Any:
        assert self._process is not None and self._process.stdin and self._process.stdout
        pickle.dump((method, arguments), self._process.stdin)
        self._process.stdin.flush()
        problem, answer = pickle.load(self._process.stdout)
        if problem:
            raise RuntimeError(problem)
        return answer

    def restore(self) -> None:
        environ = dict(os.environ)
        if self._devices is not None and (names := self._devices.now()) != [""]:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, __file__, WORKER], env=environ, stdin=pipe, stdout=pipe
        )
        try:
            self._ask("begin", self._options, self._rank)
            self._ask("load", self._model.snapshot())
            self._ask("restore")
        except BaseException:
            self._end()
            raise

    def offload(self) -> int:
        self._model.load(self._ask("snapshot"))
        self._end()
        return 0

    def _end(self) -> None:
        if self._process is not None and self._process.stdin and self._process.stdout:
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
        self._process = None

    def snapshot(self) -> list[bytes]:
        return self._model.snapshot() if self._process is None else list(self._ask("snapshot"))

    def load(self, states: list[bytes]) -> None:
        self._model.load(states)

    def train_step(self, seed: int) -> int:
        return int(self._ask("train_step", seed))

    def uuids(self) -> list[str]:
        return list(self._ask("uuids"))


WORKER = "--gpu-worker"


def serve() -> int:
    """The process of GpuProcess: does what it is asked for until nobody asks any more."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # they mean the training
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    model: Model | None = None
    while True:
        try:
            method, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return 0
        problem, answer = "", None
        try:
            if method == "begin":
                mockcuda.init()
                model = Model(arguments[0], arguments[1], device_chooser(None))
            else:
                answer = getattr(model, method)(*arguments)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        pickle.dump((problem, answer), answers)
        answers.flush()


# --- checkpoints on disk -----------------------------------------------------------------------------------


class Checkpoints:
    """The last two checkpoints of one rank: written beside, synced, then renamed."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def _path(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"rank{self._rank}-step{step:09d}.ckpt"

    def steps(self) -> list[int]:
        if self._folder is None:
            return []
        return sorted(
            int(path.stem.rpartition("step")[2]) for path in self._folder.glob(f"rank{self._rank}-step*.ckpt")
        )

    def save(self, step: int, reduced: int, states: list[bytes]) -> None:
        if self._folder is None:
            return
        body = struct.pack("<QQI", step, reduced, len(states))
        body += b"".join(struct.pack("<Q", len(state)) + state for state in states)
        draft = self._path(step).with_suffix(".new")
        with draft.open("wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path(step))
        for old in self.steps()[:-2]:
            self._path(old).unlink(missing_ok=True)

    def load(self, step: int) -> tuple[int, list[bytes]]:
        raw = self._path(step).read_bytes()
        digest, body = raw[:32], raw[32:]
        if hashlib.sha256(body).digest() != digest:
            raise ValueError(f"{self._path(step)} is damaged")
        _, reduced, count = struct.unpack_from("<QQI", body)
        states, offset = [], 20
        for _ in range(count):
            (size,) = struct.unpack_from("<Q", body, offset)
            states.append(body[offset + 8 : offset + 8 + size])
            offset += 8 + size
        return reduced, states


# --- a checkpoint store ------------------------------------------------------------------------------------


class Training:
    """What the next mini-batch needs: the state of every shard, and the last result of all ranks."""

    def __init__(self, model: Model | GpuProcess) -> None:
        self._model = model
        self.reduced = 0

    def state_dict(self) -> dict[str, Any]:
        return {"reduced": self.reduced, "shards": self._model.snapshot()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reduced = state["reduced"]
        self._model.load(state["shards"])


def open_store(folder: Path, training: Training, options: argparse.Namespace) -> tuple[Any, Any]:
    """The store, and the state that goes there."""
    from checkpointing.store import Store
    from checkpointing.store.state import State

    return Store(folder, rank=options.rank, world_size=options.ranks, run=_start()), State(training=training)


def _start() -> str:
    """A word that all ranks of this start have in common and no other start has."""
    return "-".join(
        os.environ.get(name, "0")
        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "GANDIVA_TRIAL", "SLURM_RESTART_COUNT")
    )


# --- the job -----------------------------------------------------------------------------------------------


def attach(options: argparse.Namespace, rank: int, world_size: int) -> Any:
    """The scheduler's session, or None: a job that does not want one, or a Python without the package."""
    if options.no_step:
        return None
    try:
        import gandiva
    except ImportError:
        return None
    return gandiva.attach(rank=rank, world_size=world_size)


def device_chooser(session: Any) -> Callable[[int], list[int]]:
    """A function that says on which CUDA devices to put n shards, now.

    A job that Gandiva may move starts with CUDA_VISIBLE_DEVICES narrowed to its first GPUs, and CUDA reads
    that only once. So before CUDA starts, all GPUs of the job are made visible again, and the session says
    at each restore which of them to use.
    """
    in_step = os.environ.get("SLURM_LOCALID", "0") if in_srun_step() else "0"
    local_rank = int(os.environ.get("LOCAL_RANK", in_step))
    positions = session.visible_positions() if session is not None and session.active else None
    of_all = "GANDIVA_GPUS" if "GANDIVA_TRIAL" in os.environ else "SLURM_JOB_GPUS"
    if positions is not None:
        narrowed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if narrowed == [str(position) for position in positions]:
            os.environ.pop("CUDA_VISIBLE_DEVICES")  # counted from 0 among those the job's cgroup allows
        elif of_all in os.environ:
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ[of_all]
        else:
            positions = None  # as they were given, then

    def choose(shards: int) -> list[int]:
        available = list(range(mockcuda.device_count()))
        if positions is not None:
            now = session.visible_positions()
            if now is not None:
                available = [position for position in now if position < len(available)]
        # Ranks on one node share its GPUs out among them, as LOCAL_RANK does elsewhere. With fewer GPUs than
        # shards (the job was shrunk) some GPUs take several.
        first = local_rank * shards
        return [available[(first + shard) % len(available)] for shard in range(shards)]

    return choose


def in_srun_step() -> bool:
    """Whether srun started this process (in the batch script itself there is one rank)."""
    return "SLURM_PROCID" in os.environ and os.environ.get("SLURM_STEP_ID", "").isdigit()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="mini-batches to do (%(default)s)")
    parser.add_argument("--minibatch-ms", type=float, default=100.0, help="GPU time of one (%(default)s)")
    parser.add_argument("--host-ms", type=float, default=0.0, help="host time of one, first (%(default)s)")
    parser.add_argument("--utilisation", type=int, default=60, help="share of the GPU in %% (%(default)s)")
    parser.add_argument(
        "--memory-mb", type=int, default=1024, help="per GPU, without the context (%(default)s)"
    )
    parser.add_argument(
        "--state-kb",
        type=int,
        default=64,
        help="bytes that really are there and move, and stand for all of it (%(default)s)",
    )
    parser.add_argument(
        "--gpu-process",
        action="store_true",
        help="a process of its own uses the GPUs: another one comes back on others, or on more or fewer",
    )
    parser.add_argument(
        "--keep-context",
        action="store_true",
        help="CUDA contexts and communicators stay on the GPUs while the job is off them, as PyTorch's do",
    )
    parser.add_argument(
        "--communicators", type=int, help="NCCL communicators per GPU; default: 1 with several ranks, else 0"
    )
    parser.add_argument("--skew", type=float, default=0.1, help="largest tensor / state (%(default)s)")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs in this process (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rank", type=int, help="default: RANK, else that of an srun step, else 0")
    parser.add_argument("--ranks", type=int, help="default: WORLD_SIZE, else that of an srun step, else 1")
    parser.add_argument("--meeting", type=Path, default=Path.cwd(), help="folder all ranks see (here)")
    parser.add_argument("--no-step", action="store_true", help="an unmodified training: never calls step()")
    parser.add_argument("--checkpoint-dir", type=Path, help="save there, and continue from there")
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps (%(default)s)")
    parser.add_argument("--store", type=Path, help="checkpoint store: a scheduler that asks has it written")
    parser.add_argument("--state-out", type=Path, help="JSON with the final digest; %%r is the rank")
    parser.add_argument("--log", type=Path, help="one JSON line per step; %%r is the rank")
    options = parser.parse_args(arguments)
    rank, ranks = _started_as()
    options.rank = rank if options.rank is None else options.rank
    options.ranks = ranks if options.ranks is None else options.ranks
    if options.communicators is None:
        options.communicators = int(options.ranks > 1)
    if options.store is not None and options.checkpoint_dir is not None:
        parser.error("give --store or --checkpoint-dir, not both")
    if not 0 <= options.rank < options.ranks or options.gpus < 1 or options.state_kb < 1:
        parser.error("need 0 <= rank < ranks, gpus >= 1 and state-kb >= 1")
    return options


def _started_as() -> tuple[int, int]:
    """Rank and number of ranks, as a launcher such as torchrun or mockrun.py says, or srun."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if in_srun_step():
        return int(os.environ["SLURM_PROCID"]), int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    return 0, 1


def _for_rank(path: Path, rank: int) -> Path:
    return Path(str(path).replace("%r", str(rank)))


class Stop:
    """SIGTERM: Slurm is about to requeue or cancel the job. Save at the next boundary."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def train(options: argparse.Namespace, log: TextIO | None) -> int:
    rank = options.rank
    stop = Stop() if options.checkpoint_dir is not None else None
    session = attach(options, rank, options.ranks)
    group = Group(rank, options.ranks, options.meeting)
    model: Model | GpuProcess
    if options.gpu_process:
        model = GpuProcess(options, rank, session)
    else:
        choose = device_chooser(session)
        mockcuda.init()
        model = Model(options, rank, choose)
    checkpoints = Checkpoints(options.checkpoint_dir, rank)

    # All ranks go on from the newest step that all of them have.
    training, done = Training(model), group.minimum(max(checkpoints.steps(), default=0))
    if done > 0:
        training.reduced, states = checkpoints.load(done)
        model.load(states)
    if options.store is not None:
        store, state = open_store(options.store, training, options)
        done = session.register_store(store, state) if session is not None else state.restore(store) or 0
        print(f"rank {rank}: goes on from step {done}", flush=True)
    model.restore()
    if session is not None:
        session.register(model)
        # The shards are spread over however many GPUs there are.
        session.on_resize(lambda gpus: print(f"rank {rank}: goes on with {gpus} GPUs", flush=True))

    started = time.monotonic()
    first, limit = done, 0
    while done < options.steps:
        training.reduced = group.sum(model.train_step(mix(options.seed, done, training.reduced)))
        done += 1
        if log is not None:
            reduced = f"{training.reduced:016x}"
            line = {"time": time.time(), "step": done, "gpus": model.uuids(), "reduced": reduced}
            print(json.dumps(line), file=log, flush=True)
        if done % max(1, options.steps // 10) == 0 and rank == 0:
            rate = (done - first) / max(time.monotonic() - started, 1e-9)
            print(f"step {done}/{options.steps}, {rate:.2f} steps/s", flush=True)
        stopping = group.sum(int(stop.asked)) > 0 if stop is not None else False
        if stopping or (options.checkpoint_dir is not None and done % options.checkpoint_every == 0):
            checkpoints.save(done, training.reduced, model.snapshot())
        if stopping:
            print(f"rank {rank}: stopped at step {done}, saved", flush=True)
            return 128 + signal.SIGTERM
        if session is not None:
            session.step(samples=SAMPLES_PER_STEP)
            if limit != session.memory_limit_bytes:
                limit = session.memory_limit_bytes
                print(f"rank {rank}: memory limit of each GPU is {limit // MIB} MiB", flush=True)

    digest = hashlib.sha256(training.reduced.to_bytes(8, "little"))
    for state in model.snapshot():
        digest.update(state)
    if options.state_out is not None:
        result = {"digest": digest.hexdigest(), "steps": done, "rank": rank, "ranks": options.ranks}
        _for_rank(options.state_out, rank).write_text(json.dumps(result) + "\n")
    print(f"rank {rank}: done, digest {digest.hexdigest()}", flush=True)
    if session is not None:
        session.finish()
    group.close()
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.log is None:
        return train(options, None)
    with _for_rank(options.log, options.rank).open("a") as log:
        return train(options, log)


if __name__ == "__main__":
    sys.exit(serve() if sys.argv[1:] == [WORKER] else main())
