# SPDX-License-Identifier: MIT
"""What a session moves off the GPU: hooks of the user's, objects with `to()`, and PyTorch state."""

import contextlib
import sys
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, List, Optional

from ._accelerator import limit_memory, watch_graphs
from ._tensors import StateSize, is_torch_state
from ._torch import TorchState


@dataclass
class Hook:
    """One registered object with its own way off the GPU and back."""

    name: str
    target: Any
    offload: Callable[[], Any]
    restore: Callable[[], Any]
    saves_offloaded: bool
    """What it holds can be read while it is offloaded, without the GPU."""
    offloaded: bool = False

    def number(self, attribute: str) -> int:
        """An optional size the object states, as an attribute or a method; 0 when it states none."""
        value = getattr(self.target, attribute, 0)
        try:
            return max(0, int(value() if callable(value) else value))
        except Exception:
            return 0


class RestoreError(RuntimeError):
    """State could not be put back onto the GPU. The training process cannot go on.

    Raised out of `step()`. The state is still in host memory, but part of it may be missing on the GPU:
    end the process and start again from the last checkpoint.
    """


class Registry:
    """Everything registered with one session, moved as a whole: all of it or nothing."""

    def __init__(self) -> None:
        self._hooks: List[Hook] = []
        self._torch: Optional[TorchState] = None
        self._known: Dict[int, Any] = {}
        self.size = StateSize(0, 0)
        """As it was measured last."""

    def add(self, target: Any, name: str) -> None:
        """Register one object, once. Raises TypeError when there is no way to move it."""
        if id(target) in self._known:
            return
        offload, restore = getattr(target, "offload", None), getattr(target, "restore", None)
        if callable(offload) and callable(restore):
            saves = bool(getattr(target, "saves_offloaded", False))
            self._hooks.append(Hook(name, target, offload, restore, saves))
        elif (torch := sys.modules.get("torch")) is not None and is_torch_state(torch, target):
            self._torch_state().add(target)
        elif callable(getattr(target, "to", None)) and callable(getattr(target, "state_dict", None)):
            self._hooks.append(_movable(name, target))
        else:
            raise TypeError(
                f"gandiva: cannot register {name} ({type(target).__name__}): it needs offload() and"
                f" restore(), or to() with state_dict(), or to be a PyTorch module, optimizer or tensor"
            )
        self._known[id(target)] = target

    def watch_torch(self, memory_limit_bytes: int) -> None:
        """Note CUDA graphs from now on and keep to the limit, if torch has been imported. The session calls
        it again and again."""
        if "torch" in sys.modules:
            watch_graphs(sys.modules["torch"])
            limit_memory(sys.modules["torch"], memory_limit_bytes)

    def _torch_state(self) -> TorchState:
        if self._torch is None:
            self._torch = TorchState(sys.modules["torch"])
        return self._torch

    def measure(self) -> None:
        """Bytes of registered state; of hooks, what they state as `state_bytes`, `largest_tensor_bytes`."""
        total = sum(hook.number("state_bytes") for hook in self._hooks)
        largest = max((hook.number("largest_tensor_bytes") for hook in self._hooks), default=0)
        if self._torch is not None:
            torch_size = self._torch.size()
            total += torch_size.total_bytes
            largest = max(largest, torch_size.largest_tensor_bytes)
        self.size = StateSize(total, largest)

    def host_bytes(self) -> int:
        """Host memory that offload() will take beyond what the process has. It takes no more, or refuses.

        Of hooks, what they state as `state_bytes`; tensors of PyTorch are all counted, registered or not.
        """
        total = sum(hook.number("state_bytes") for hook in self._hooks)
        if "torch" in sys.modules:
            total += self._torch_state().host_bytes()
        return total

    def synchronize(self) -> None:
        """Wait for all GPU work of PyTorch."""
        if "torch" in sys.modules:
            self._torch_state().synchronize()

    def reading(self) -> ContextManager[None]:
        """Within the block offloaded tensors of PyTorch are read from the host copy."""
        return contextlib.nullcontext() if self._torch is None else self._torch.reading()

    @property
    def saves_offloaded(self) -> bool:
        """Whether all that is registered can be read while it is offloaded, without the GPU."""
        torch_reads = "torch" not in sys.modules or self._torch_state().reads_offloaded
        return torch_reads and all(hook.saves_offloaded for hook in self._hooks)

    @property
    def releases_context(self) -> bool:
        """Whether offload leaves nothing of this process on the GPU, not even the CUDA context."""
        # One owner of the whole context speaks for all, unless PyTorch holds one of its own.
        return any(getattr(hook.target, "releases_context", False) for hook in self._hooks) and not (
            self._torch is not None and self._torch.uses_accelerator()
        )

    @property
    def starts_processes(self) -> bool:
        """Whether an object speaks for processes without a session."""
        return any(getattr(hook.target, "starts_processes", False) for hook in self._hooks)

    def offload(self) -> int:
        """Move everything to host memory. Returns the bytes known to stay on the GPU.

        When one part fails, the parts already moved are put back and the error is raised: everything is on
        the GPU again. Raises RestoreError when that does not work either.
        """
        left_bytes = 0
        if "torch" in sys.modules:
            # Also without registered modules: batches and losses of the user's loop are found and moved.
            self._torch_state().prepare()
        try:
            # Hooks first and in reverse: what was registered last may rest on what was registered first.
            for hook in reversed(self._hooks):
                result = hook.offload()
                hook.offloaded = True  # after the call: an offload() that raises must have moved nothing
                if isinstance(result, int) and not isinstance(result, bool):
                    left_bytes += max(0, result)
            if self._torch is not None:
                left_bytes += self._torch.offload()
        except Exception as error:
            try:
                self.restore()
            except RestoreError as second:
                raise RestoreError(f"{second} (after offload failed: {error})") from error
            raise
        return left_bytes

    def restore(self) -> None:
        """Put everything back. Raises RestoreError naming the part that failed."""
        name = "PyTorch state"
        try:
            if self._torch is not None:
                self._torch.restore()
            for hook in self._hooks:
                if hook.offloaded:
                    name = hook.name
                    hook.restore()
                    hook.offloaded = False
        except Exception as error:
            raise RestoreError(f"gandiva: cannot restore {name}: {type(error).__name__}: {error}") from error


def _movable(name: str, target: Any) -> Hook:
    device = getattr(target, "device", None)
    if device is None or callable(device):
        raise TypeError(
            f"gandiva: cannot register {name} ({type(target).__name__}): it has to() but no attribute"
            f" `device` that says where to put it back; give it offload() and restore()"
        )
    return Hook(name, target, lambda: target.to("cpu"), lambda: target.to(device), saves_offloaded=True)
