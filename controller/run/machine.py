# SPDX-License-Identifier: GPL-2.0-or-later
"""What a study has to run on: this machine, or the nodes of an allocation, as their agents see them."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from controller.agent.files import make_own, opened, rewrite, try_lock
from controller.cluster.allocation import Part
from controller.cluster.port import ClusterGpu, ClusterNode
from controller.errors import GandivaError
from controller.model import GpuId, value
from controller.nodes.protocol import GpuInfo
from controller.run import limits

TRIALS_PER_GPU = 16
"""So many trials at most have their state on one GPU, or are off it in host memory."""
_TEMPORARY = Path("/tmp")


@value
class Machine:
    """What there is."""

    nodes: tuple[ClusterNode, ...]
    uuids: Mapping[GpuId, str]
    """Of their GPUs, in PCI order on each node."""

    @property
    def node(self) -> ClusterNode:
        """The first."""
        return self.nodes[0]

    def fits(self, gpus: int) -> bool:
        """Whether a gang of so many has room: on one node, or on several with the same indices on each."""
        sets = [frozenset(gpu.index for gpu in node.gpus) for node in self.nodes]
        for indices in sets:
            alike = sum(other >= indices for other in sets)
            if any(gpus % nodes == 0 and gpus // nodes <= len(indices) for nodes in range(1, alike + 1)):
                return True
        return False


def node_name() -> str:
    """This host's, as a node may be called."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", os.uname().nodename).lstrip("._-")[:64] or "here"


def machine(found: Sequence[GpuInfo], wanted: Sequence[str], environ: Mapping[str, str]) -> Machine:
    """This host with the GPUs that are wanted: by index or UUID; none: those of CUDA_VISIBLE_DEVICES, or all.

    Raises GandivaError: there are no such GPUs, or they are of several models.
    """
    name = node_name()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not wanted and visible is not None:
        gpus = _visible(found, visible)
    else:
        gpus = [gpu for gpu in found if not wanted or {str(gpu.index), gpu.uuid} & {*wanted}]
        known = {each for gpu in found for each in (str(gpu.index), gpu.uuid)}
        if unknown := [each for each in wanted if each not in known]:
            there = ", ".join(str(gpu.index) for gpu in found) or "none"
            raise GandivaError(f"there is no GPU {', '.join(unknown)} on {name}; there are: {there}")
    if not gpus:
        said = f"CUDA_VISIBLE_DEVICES={visible} leaves none of" if found else "the driver shows no GPU;"
        raise GandivaError(f"no GPU to use on {name}: {said} {len(found)} (see nvidia-smi)")
    return _together([_node(name, gpus, Part(limits.cpus(), limits.memory_bytes()))])


def machines(found: Mapping[str, Sequence[GpuInfo]], parts: Mapping[str, Part]) -> Machine:
    """Nodes of an allocation with all GPUs that the job has there. Raises GandivaError: it has none."""
    if none := [name for name in parts if not found[name]]:
        raise GandivaError(f"the job has no GPU on node {', '.join(none)}: submit it with --gres=gpu:N")
    return _together([_node(name, found[name], part) for name, part in parts.items()])


_Found = tuple[ClusterNode, Mapping[GpuId, str]]


def _together(nodes: Sequence[_Found]) -> Machine:
    return Machine(
        tuple(node for node, _ in nodes), {gpu: u for _, uuids in nodes for gpu, u in uuids.items()}
    )


def _node(name: str, gpus: Sequence[GpuInfo], part: Part) -> _Found:
    """A node with these GPUs. Raises GandivaError: they are of several models."""
    models = sorted({gpu.model for gpu in gpus})
    if len(models) > 1:
        choice = "; ".join(f"{gpu.index}: {gpu.model}" for gpu in gpus)
        raise GandivaError(f"the GPUs are of several models: choose those of one with --gpus ({choice})")
    model = re.sub(r"[^A-Za-z0-9._-]+", "_", models[0].lower())[:64]
    node = ClusterNode(
        name=name,
        gpus=tuple(
            ClusterGpu(gpu.index, model, TRIALS_PER_GPU) for gpu in sorted(gpus, key=lambda g: g.index)
        ),
        up=True,
        state="UP",
        reason="",
        cpus=part.cpus,
        memory_bytes=part.memory_bytes,
        memory_allocated_bytes=0,
        ordinary_gpus={},
        address=name,
    )
    return node, {GpuId(name, gpu.index): gpu.uuid for gpu in gpus}


def _visible(found: Sequence[GpuInfo], visible: str) -> list[GpuInfo]:
    """As CUDA reads the variable: indices in PCI order, or UUIDs of which a beginning will do; the first that
    is neither, or is there twice, ends the list."""
    chosen: list[GpuInfo] = []
    for word in map(str.strip, visible.split(",")):
        if word.isdecimal():
            named = [*found[int(word[:9]) :][:1]]
        else:
            named = [gpu for gpu in found if word and gpu.uuid.startswith(word)]
        if len(named) != 1 or named[0] in chosen:
            break
        chosen += named
    return [gpu for gpu in found if gpu in chosen]


def _own_folder() -> Path:
    """This user's folder for what is of this host only, mode 0700. Raises GandivaError: another user has
    taken its place.

    Not in XDG_RUNTIME_DIR, nor in /dev/shm: systemd-logind empties both when the user's last session ends
    (RemoveIPC), and what runs in a job, by cron or as a service is no session of the user's. Not where a
    variable says, since all of the user's processes here must find it.
    """
    return _made(_TEMPORARY / f"gandiva-{os.geteuid()}")


def _made(folder: Path) -> Path:
    try:
        make_own(folder)
    except OSError as error:
        raise GandivaError(f"cannot have folder {folder} for this user alone: {error.strerror}") from error
    return folder


@contextlib.contextmanager
def held(machine: Machine, study: Path) -> Iterator[None]:
    """Its GPUs are this study's meanwhile. Raises GandivaError: another study of this user, whose supervisor
    lives on this host, has one of them."""
    folder = _own_folder()
    with contextlib.ExitStack() as stack:
        for gpu, uuid in machine.uuids.items():
            try:
                file = stack.enter_context(opened(folder / f"{uuid}.lock", os.O_RDWR | os.O_CREAT))
            except OSError as error:
                raise GandivaError(f"cannot write into {folder}: {error.strerror}") from error
            if not try_lock(file):
                other = os.pread(file, 4096, 0).decode("utf-8", "replace")
                raise GandivaError(f"GPU {gpu} is used by the study in {other}: choose others with --gpus")
            with contextlib.suppress(OSError):  # a full disk: the lock counts
                rewrite(file, os.fsencode(study))
        yield


def run_dir(study: Path) -> Path:
    """The folder of a study's control blocks and socket, and of its journal: the same for each supervisor of
    the study on this host, and on the other nodes of an allocation. Raises GandivaError."""
    import hashlib

    digest = hashlib.sha256(os.fsencode(study.resolve())).hexdigest()[:12]
    return _made(_own_folder() / f"gandiva-{digest}")
