# SPDX-License-Identifier: GPL-2.0-or-later
"""One rank of examples/train_ddp.py as it would be on GPUs: on a mock GPU, and at a pace.

It holds memory on the mock GPU of its rank, and its model's tensors, which are the CPU's, leave their memory
where a GPU's would. Each step takes PACE_SECONDS more until the file `hurry` is there.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gandiva
from gandiva import _accelerator, _tensors

EXAMPLES = "/opt/gandiva/src/examples"
PACE_SECONDS = 0.4
MIB = 1 << 20


class OnGpu:
    """What NVML sees of this process."""

    saves_offloaded = True

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self.restore()

    def restore(self) -> None:
        self._context = self._cuda.Context(int(os.environ["LOCAL_RANK"]))
        self._context.alloc(64 * MIB)

    def offload(self) -> None:
        self._context.destroy()


class CpuAsGpu(_accelerator.Accelerator):
    """Tensors of what was registered count as the GPU's."""

    pinned = False
    targets: ClassVar[list[Any]] = []

    def initialized(self) -> bool:
        return True

    def owns(self, tensor: Any) -> bool:
        registered = _tensors.registered(self.torch, self.targets)
        storages = {_tensors.storage_of(each)._cdata for each in registered}
        return _tensors.storage_of(tensor)._cdata in storages

    def synchronize(self) -> None: ...

    def release_caches(self) -> None: ...

    def left_bytes(self) -> int:
        return 0

    def allocated_bytes(self) -> int:
        return 1 << 40

    def check_supported(self, objects: Any) -> None: ...


def main() -> None:
    sys.path.insert(0, EXAMPLES)
    import mockcuda  # type: ignore[import-not-found, unused-ignore]

    mockcuda.init()
    _accelerator.Accelerator = CpuAsGpu  # type: ignore[misc]
    session = gandiva.attach()
    session.register(OnGpu(mockcuda), name="mock GPU")
    register, step = session.register, session.step

    def register_and_note(*objects: Any, name: str = "") -> None:
        CpuAsGpu.targets += objects
        register(*objects, name=name)

    def step_at_a_pace(samples: float = 0) -> None:
        if not Path("hurry").exists():
            time.sleep(PACE_SECONDS)
        step(samples)

    session.register = register_and_note  # type: ignore[method-assign]
    session.step = step_at_a_pace  # type: ignore[method-assign]
    runpy.run_path(f"{EXAMPLES}/train_ddp.py", run_name="__main__")


if __name__ == "__main__":
    main()
