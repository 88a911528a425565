"""One live tensor as a snapshot sees it: its dtype word, this rank's part of it, its bytes in a buffer.

Only plain memory goes into a snapshot: a dense tensor of a dtype that stock readers know, or the local
shard of a DTensor. Everything else is refused by name rather than stored in a way nobody can read.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter, is_lazy

from surefoot.errors import UnstorableState
from surefoot.loop.state import Box

_Sizes = tuple[int, ...]

WORDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
"""torch dtype → safetensors word."""

DTYPES = {word: dtype for dtype, word in WORDS.items()}


def is_kind(value: object, module: str, name: str) -> bool:
    """Tell whether a value is an instance of a class, without importing the module it may be in."""
    cls: Any = type(value)
    return derives(cls, module, name)


@cache  # a class that nobody has imported has no subclasses, so an answer stays true
def derives(cls: type, module: str, name: str) -> bool:
    """Tell whether a class is, or derives from, one of a module that may never have been imported."""
    loaded = sys.modules.get(module)
    kind = getattr(loaded, name, None)
    return kind is not None and issubclass(cls, kind)


def is_dtensor(tensor: Tensor) -> bool:
    """Tell whether the tensor is spread over ranks."""
    cls = type(tensor)
    return cls is not Tensor and cls is not Parameter and is_kind(tensor, "torch.distributed.tensor", "DTensor")


def local(tensor: Tensor) -> Tensor:
    """Return the memory that this rank holds of a tensor; call it without gradients."""
    return tensor.to_local() if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def spec(tensor: Tensor) -> str:
    """Return dtype and shape, of the whole tensor where it is spread, as a snapshot notes them: `F32[4,2]`."""
    return f"{WORDS[tensor.dtype]}[{','.join(map(str, tensor.shape))}]"


def parse_spec(text: str) -> tuple[torch.dtype, _Sizes]:
    """Return the dtype and shape that `spec` wrote."""
    word, _, sizes = text.rstrip("]").partition("[")
    return DTYPES[word], tuple(int(size) for size in sizes.split(",") if size)


def box(name: str, tensor: Tensor, *, replicated: bool) -> Box:
    """Describe a tensor, or this rank's part of it. Raises `UnstorableState` naming what can't be stored."""
    _check(name, tensor)
    word = WORDS[tensor.dtype]
    if is_dtensor(tensor):
        return _part(name, word, tensor)
    return Box(name, word, tuple(tensor.shape), replicated)


def _part(name: str, word: str, tensor: Any) -> Box:
    shape = tuple(tensor.to_local().shape)
    placements = tensor.placements
    if tensor.device_mesh.get_coordinate() is None or any(place.is_partial() for place in placements):
        return Box(name, word, shape)  # no part of the whole: this rank's own affair
    expected, offsets = _place(tuple(tensor.shape), tensor.device_mesh, placements)
    if shape != expected:
        return Box(name, word, shape)  # rows that are not next to each other have no offset
    replicated = any(place.is_replicate() for place in placements)
    if all(place.is_replicate() for place in placements):
        return Box(name, word, shape, replicated)
    return Box(name, word, shape, replicated, tuple(tensor.shape), offsets)


@cache  # the answer is computed through index tensors: far too slow for every capture
def _place(shape: _Sizes, mesh: Any, placements: tuple[Any, ...]) -> tuple[_Sizes, _Sizes]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local_shape, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(local_shape), tuple(offsets)


def _check(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise UnstorableState(f"{name} has no shape yet: run one forward pass before handing its module to Run")
    inner = getattr(type(tensor), "__tensor_flatten__", None) is not None and not is_dtensor(tensor)
    if inner or tensor.is_nested or tensor.layout is not torch.strided or tensor.device.type == "meta":
        what = f"{type(tensor).__name__}, {tensor.layout}, on {tensor.device}"
        raise UnstorableState(
            f"{name} is no plain memory ({what}): a snapshot holds dense tensors and DTensor shards; "
            "hand in the tensors it is made of"
        )
    if tensor.dtype not in WORDS:
        raise UnstorableState(
            f"{name} has dtype {tensor.dtype}: a snapshot holds {', '.join(DTYPES)}; view it as one of these"
        )


def flat(buffer: memoryview, dtype: torch.dtype) -> Tensor:
    """Return a buffer's bytes as a tensor of one dimension, without a copy; a read-only one is to be read."""
    if not buffer.nbytes:
        return torch.empty(0, dtype=dtype)
    if not buffer.readonly:
        return torch.frombuffer(buffer, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=dtype)


def to_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a U8 tensor."""
    copied = bytearray(tensor.numel())
    flat(memoryview(copied), torch.uint8).copy_(tensor)
    return bytes(copied)


def from_bytes(data: bytes) -> Tensor:
    """Return a U8 tensor with a copy of these bytes."""
    return flat(memoryview(bytearray(data)), torch.uint8)


def accelerator() -> ModuleType | None:
    """Return the device's module (`torch.cuda` and its like) if this process has begun to use one."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return None
    module = torch.get_device_module(device)
    return module if getattr(module, "is_initialized", bool)() else None
