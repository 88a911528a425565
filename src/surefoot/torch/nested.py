"""A nested state, split into plain values and the tensors that were among them, and joined again.

Where a tensor stood the plain side holds None; that its path is in the snapshot's table of tensors
tells it from a None of the state's own. No marker has to be kept apart from the user's values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from copy import copy
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from surefoot.errors import UnstorableState
from surefoot.torch.tensors import flat, parse_spec, spec

ARRAY, SCALAR = " array", " scalar"
"""What stands behind the spec of a NumPy array's and a NumPy number's tensor."""

_PLAIN = frozenset({NoneType, bool, int, float, str, bytes, complex})
_SEQUENCES: dict[Any, Any] = {list: list, tuple: tuple, torch.Size: tuple}


def split(value: Any, path: str, add: Callable[[str, Tensor, str], None]) -> Any:
    """Return the plain side of `value`; each tensor goes to `add` with its path and what it was before.

    Raises `UnstorableState` naming the path of what is neither plain nor a tensor.
    """
    cls = type(value)
    if cls in _PLAIN:
        return value
    if isinstance(value, Tensor):
        add(path, value, "")
        return None
    if isinstance(value, dict):
        for key in value:
            if type(key) not in _PLAIN and type(key) is not tuple:
                kind = type(key).__name__
                raise UnstorableState(
                    f"{path} has a key of type {kind}: a snapshot holds plain keys; use a string"
                )
        return {key: split(inner, f"{path}.{key}", add) for key, inner in value.items()}
    if cls in _SEQUENCES:
        return _SEQUENCES[cls](split(inner, f"{path}.{index}", add) for index, inner in enumerate(value))
    if cls is set and all(type(inner) in _PLAIN for inner in value):
        return value
    array = _array(value)
    if array is None:
        raise UnstorableState(
            f"{path} is a {cls.__module__}.{cls.__qualname__}, which a snapshot can't hold: it holds "
            "tensors, arrays, numbers, strings, bytes, and lists, tuples, sets and dicts of them; keep it out "
            "of the state_dict"
        )
    add(path, *array)
    return None


def join(
    plain: Any,
    path: str,
    tensors: Container[str],
    leaf: Callable[[str, Any], Any],
    like: Any = None,
) -> Any:
    """Return the value that was split: `leaf(path, what stands there in like)` gives each tensor.

    `like` is the live counterpart: where it has a dict of another kind (a Counter), so has the result.
    """
    if plain is None and path in tensors:
        return leaf(path, like)
    if isinstance(plain, dict):
        live: dict[Any, Any] = like if isinstance(like, dict) else {}
        joined = {
            key: join(inner, f"{path}.{key}", tensors, leaf, live.get(key)) for key, inner in plain.items()
        }
        return joined if type(live) is dict else _of_kind(live, joined)
    if isinstance(plain, list | tuple):
        there = like if isinstance(like, list | tuple) else ()
        padded = (*there, *[None] * (len(plain) - len(there)))
        items = enumerate(zip(plain, padded, strict=False))
        return type(plain)(join(inner, f"{path}.{index}", tensors, leaf, old) for index, (inner, old) in items)
    return plain


def pack(value: Any, path: str) -> dict[str, Any]:
    """Return a nested state as plain values alone: the tensors and arrays in it become bytes.

    For what lies among a rank's plain values, where tensors have no place; meant for small ones.
    """
    table: dict[str, tuple[str, bytes]] = {}

    def add(name: str, tensor: Tensor, was: str = "") -> None:
        raw = bytearray(tensor.nbytes)
        flat(memoryview(raw), tensor.dtype).copy_(tensor.detach().flatten())
        table[name] = spec(tensor) + was, bytes(raw)

    return {"plain": split(value, path, add), "tensors": table}


def unpack(packed: dict[str, Any], path: str) -> Any:
    """Return the state that `pack` was given, its tensors on the CPU."""
    table = packed["tensors"]

    def leaf(name: str, _: Any) -> Any:
        noted, space, was = table[name][0].partition(" ")
        dtype, shape = parse_spec(noted)
        tensor = flat(memoryview(bytearray(table[name][1])), dtype).view(shape)
        if not was:
            return tensor
        return tensor.numpy() if space + was == ARRAY else tensor.numpy()[()]

    return join(packed["plain"], path, table, leaf)


def _of_kind(live: dict[Any, Any], joined: dict[Any, Any]) -> dict[Any, Any]:
    kind = copy(live)
    kind.clear()
    kind.update(joined)
    return kind


def _array(value: Any) -> tuple[Tensor, str] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic):
        return None
    try:
        tensor = torch.from_numpy(numpy.array(value, order="C"))
    except (TypeError, ValueError):  # objects, texts, dates, foreign byte order
        return None
    return tensor, ARRAY if isinstance(value, numpy.ndarray) else SCALAR
