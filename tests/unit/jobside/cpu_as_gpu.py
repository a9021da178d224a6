# SPDX-License-Identifier: GPL-2.0-or-later
"""Tensors of the CPU stand in for those of the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from gandiva._accelerator import Accelerator
from gandiva._heap import living
from gandiva._tensors import storage_of


class CpuAsGpu(Accelerator):
    """Owns the tensors that have been put on the "GPU"."""

    pinned = False

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.on_gpu: set[int] = set()
        self.unsupported: str = ""

    def put(self, *tensors: Any) -> None:
        self.on_gpu |= {storage_of(tensor)._cdata for tensor in tensors}

    def initialized(self) -> bool:
        return True

    def owns(self, tensor: Any) -> bool:
        return storage_of(tensor)._cdata in self.on_gpu

    def synchronize(self) -> None: ...

    def release_caches(self) -> None: ...

    def left_bytes(self) -> int:
        return 17

    def allocated_bytes(self) -> int:
        owned: dict[int, int] = {}
        for tensor in living(self.torch.Tensor):
            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse
                storage = storage_of(tensor)
                if storage._cdata in self.on_gpu:
                    owned[storage._cdata] = int(storage.nbytes())
        return 1000 + sum(owned.values())

    def check_supported(self, objects: Iterable[Any]) -> None:
        if self.unsupported:
            raise RuntimeError(self.unsupported)
