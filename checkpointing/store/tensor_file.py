# SPDX-License-Identifier: MIT
"""Tensors in one file of the safetensors format, and values beside them as JSON; nothing in it is code.

The format: the length of the header in 8 bytes, the header as JSON (type, shape and place of each tensor),
the data. Any program that reads safetensors can open the file.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from gandiva._tensors import storage_of

from .blocks import Block, block_of, checked, is_spread

MOST_HEADER_BYTES = 64 << 20
_TENSOR = "$tensor"
_TUPLE = "$tuple"
_MAPPING = "$mapping"
_BYTES = "$bytes"
_BLOCK = "$block"
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {word: name for name, word in _TYPES.items()}


class Packer:
    """Turns a state into JSON; tensors are put aside, those that share memory, shape and signs once.

    `torch`: the module, or None in a process that has not imported it.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._keys: dict[Any, str] = {}
        self.tensors: list[Any] = []

    def pack(self, value: Any, place: str) -> Any:
        """Raises TypeError, naming the place, for what is neither a tensor nor plain data."""
        if self._torch is not None and self._torch.is_tensor(value):
            if is_spread(value):
                return self._block(value, place)
            if type(value) not in (self._torch.Tensor, self._torch.nn.Parameter):
                raise TypeError(
                    f"{place} is a {type(value).__name__}: only plain tensors and DTensors can be written"
                )
            return {_TENSOR: self._key(value, place)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, bytes):
            return {_BYTES: base64.b64encode(value).decode()}
        if isinstance(value, (list, tuple)):
            items = [self.pack(item, f"{place}[{n}]") for n, item in enumerate(value)]
            return {_TUPLE: items} if isinstance(value, tuple) else items
        if isinstance(value, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return {key: self.pack(item, f"{place}.{key}") for key, item in value.items()}
            # JSON has keys of text only: numbers of parameters in an optimizer are none.
            pairs = [[self.pack(k, place), self.pack(v, f"{place}.{k}")] for k, v in value.items()]
            return {_MAPPING: pairs}
        raise TypeError(f"{place} is of type {type(value).__name__}: neither a tensor nor plain data")

    def _block(self, value: Any, place: str) -> Any:
        try:
            # With gradients the local tensor would be a view: off the GPU a copy of its own.
            with self._torch.no_grad():
                block = block_of(value.detach())
        except (ValueError, RuntimeError) as error:
            raise TypeError(f"{place}: {error}") from None
        packed = self.pack(block.tensor, place)
        return {_BLOCK: packed, "shape": list(block.shape), "offset": list(block.offset)}

    def _key(self, tensor: Any, place: str) -> str:
        plain = tensor.layout is self._torch.strided and not (tensor.is_nested or tensor.is_meta)
        if str(tensor.dtype)[6:] not in _TYPES or not plain:
            kind = "nested" if tensor.is_nested else tensor.layout
            raise TypeError(f"{place}: tensors of {tensor.dtype}, {kind}, {tensor.device} cannot be written")
        # The storage, not the address: what is off the GPU has none.
        memory = (storage_of(tensor)._cdata, tensor.storage_offset(), tensor.is_conj(), tensor.is_neg())
        same = (*memory, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() == 0 or same not in self._keys:
            self._keys[same] = f"{len(self.tensors)}"
            self.tensors.append(tensor)
        return self._keys[same]

    def file(self, buffer: Callable[[int], memoryview]) -> memoryview:
        """The file with all tensors, in a buffer from `buffer`: one copy, from wherever they are."""
        header: dict[str, Any] = {}
        end = 0
        for number, tensor in enumerate(self.tensors):
            begin, end = end, end + tensor.numel() * tensor.element_size()
            word = _TYPES[str(tensor.dtype)[6:]]
            header[str(number)] = {"dtype": word, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        data = buffer(8 + len(text) + end)
        data[:8] = len(text).to_bytes(8, "little")
        data[8 : 8 + len(text)] = text
        for number, tensor in enumerate(self.tensors):
            begin, end = header[str(number)]["data_offsets"]
            if end > begin:
                # The data may begin at any byte: a view of bytes takes it, one of numbers would not.
                numbers = tensor.detach().to("cpu").resolve_conj().resolve_neg()
                source = numbers.contiguous().reshape(-1).view(self._torch.uint8)
                target = data[8 + len(text) + begin : 8 + len(text) + end]
                self._torch.frombuffer(target, dtype=self._torch.uint8).copy_(source)
        return data


def unpack(value: Any, tensors: Mapping[str, Any]) -> Any:
    """What pack() was given. Raises ValueError for what it cannot have made."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        if value[_TENSOR] not in tensors:
            raise ValueError(f"there is no tensor {value[_TENSOR]!r}")
        return tensors[value[_TENSOR]]
    if _BLOCK in value:
        return _unpacked_block(value, tensors)
    if _TUPLE in value:
        return tuple(unpack(value[_TUPLE], tensors))
    if _BYTES in value:
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (TypeError, binascii.Error) as error:
            raise ValueError(f"bytes that cannot be read: {error}") from None
    if _MAPPING in value:
        return {unpack(k, tensors): unpack(v, tensors) for k, v in value[_MAPPING]}
    return {key: unpack(item, tensors) for key, item in value.items()}


def _unpacked_block(value: Mapping[str, Any], tensors: Mapping[str, Any]) -> Block:
    tensor = unpack(value[_BLOCK], tensors)
    shape, offset = (_numbers(value.get(key)) for key in ("shape", "offset"))
    if not hasattr(tensor, "dtype"):
        raise ValueError("a block without a tensor")
    return checked(Block(shape, offset, tensor))


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise ValueError(f"{value!r:.100} are not the sizes of a tensor")
    return tuple(value)


def tensors_of(torch: Any, data: bytearray | memoryview) -> dict[str, Any]:
    """The tensors in a file, on the CPU and in its memory where they are aligned. Raises ValueError."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MOST_HEADER_BYTES, len(data) - 8):
        raise ValueError("the header does not fit into the file")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the header is not an object")  # noqa: TRY004
    if torch is None and header:
        raise ValueError("it has tensors, and PyTorch is not imported")
    body = memoryview(data)[8 + length :]
    return {key: _tensor(torch, key, entry, body) for key, entry in header.items() if key != "__metadata__"}


def _tensor(torch: Any, key: str, entry: Any, body: memoryview) -> Any:
    try:
        dtype = getattr(torch, _NAMES[entry["dtype"]])
        shape = [int(size) for size in entry["shape"]]
        begin, end = (int(place) for place in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"tensor {key!r}: {error!r}") from None
    count = math.prod(shape)
    size = count * torch.empty((), dtype=dtype).element_size()
    if min([0, *shape]) < 0 or not 0 <= begin <= end <= len(body) or end - begin != size:
        raise ValueError(f"tensor {key!r}: its shape, type and place do not fit each other or the file")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(body[begin:end], dtype=torch.uint8)
    if raw.data_ptr() % torch.empty((), dtype=dtype).element_size():
        raw = raw.clone()
    return raw.view(dtype).reshape(shape)
