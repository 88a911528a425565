"""Plain state as JSON, with tags for what JSON lacks (formats §2).

`untag(tag(value))` equals `value`, or `tag` refuses and names the path. A container keeps its exact
type; a number or text of a subclass (`numpy.float64`) comes back as the plain one.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from surefoot.errors import JournalError, UnstorableState
from surefoot.journal.sealed import DEPTH_MAX, canonical

_TAGGED_DEPTH_MAX = DEPTH_MAX - 4
"""Leaves room for what a tagged value stands in."""

_ROOT = "the value"


def tag(value: Any, path: str = "") -> Any:
    """Return plain state as JSON, with tags for what JSON lacks; `untag` returns an equal value.

    Containers are list, tuple, set, dict and OrderedDict (which comes back as dict), no other subclass.
    Raises UnstorableState naming the path of anything else; `path` is where `value` itself lies.
    """
    return _tag(value, path, _TAGGED_DEPTH_MAX)


def _tag(value: Any, path: str, room: int) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if room < 2:
        raise UnstorableState(
            f"{path or _ROOT} is nested too deeply to be stored (or contains itself): "
            f"at most {_TAGGED_DEPTH_MAX} levels; flatten it"
        )
    kind = type(value)
    if kind is list:
        return _tag_each(value, path, room - 1)
    if kind is tuple:
        return {"$tuple": _tag_each(value, path, room - 2)}
    if kind is dict or kind is OrderedDict:
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {
                key: _tag(inner, f"{path}.{key}" if path else key, room - 1) for key, inner in value.items()
            }
        pairs = [
            [
                _tag(key, f"key {key!r} of {path or _ROOT}", room - 3),
                _tag(inner, f"{path}[{key!r}]", room - 3),
            ]
            for key, inner in value.items()
        ]
        return {"$map": pairs}
    if kind is set:
        return {"$set": sorted(_tag_each(value, path, room - 2), key=canonical)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$complex": [_tag(value.real, path, room - 2), _tag(value.imag, path, room - 2)]}
    raise UnstorableState(
        f"{path or _ROOT} is a {kind.__module__}.{kind.__qualname__}, which can't be stored: expected None, "
        "bool, int, float, complex, str, bytes, list, tuple, set, dict or a tensor; convert it or leave it out"
    )


def _tag_each(values: Iterable[Any], path: str, room: int) -> list[Any]:
    return [_tag(inner, f"{path}[{i}]", room) for i, inner in enumerate(values)]


def untag(value: Any) -> Any:
    """Return the plain state that `tag` was given."""
    if isinstance(value, list):
        return [untag(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if not name.startswith("$"):
        return {key: untag(inner) for key, inner in value.items()}
    if name not in _UNTAG:
        raise JournalError(
            f"unknown tag {name!r} in plain state: expected {', '.join(_UNTAG)}; a newer surefoot wrote it"
        )
    return _UNTAG[name](value[name])


_UNTAG: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda inner: tuple(map(untag, inner)),
    "$set": lambda inner: set(map(untag, inner)),
    "$map": lambda pairs: {untag(key): untag(inner) for key, inner in pairs},
    "$bytes": base64.b64decode,
    "$complex": lambda parts: complex(*map(untag, parts)),
    "$float": float,
}
