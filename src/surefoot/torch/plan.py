"""A capture's look at the live objects, and a restore's plan for them, made before anything is changed.

Each object that a script handed in adds its tensors to a `Look` and returns its plain values. At a
restore each adds what it would do to a `Plan`; only if nothing stands in the way is the plan carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.errors import StateMismatch, UnstorableState
from surefoot.torch.nested import ARRAY
from surefoot.torch.tensors import flat, local, parse_spec, spec


class Look:
    """The tensors of a state as they are now, by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.replicated: set[str] = set()
        self.was: dict[str, str] = {}
        """`nested.ARRAY` or `nested.SCALAR` for what was no tensor before."""

    def add(self, name: str, tensor: Tensor, was: str = "") -> None:
        """Add a tensor that is this rank's own."""
        if name in self.tensors:
            raise UnstorableState(
                f"two tensors are called {name}: each is stored under its own name; rename one of them"
            )
        self.tensors[name] = tensor
        if was:
            self.was[name] = was

    def add_replicated(self, name: str, tensor: Tensor, was: str = "") -> None:
        """Add a tensor of which every rank holds the same values."""
        self.add(name, tensor, was)
        self.replicated.add(name)


class Plan:
    """What a restore will do, and what stands in its way."""

    def __init__(self, table: Mapping[str, str], buffers: Mapping[str, memoryview]) -> None:
        self.table = table
        """Name → dtype and shape of every tensor of the snapshot, and what it was."""
        self.problems: list[str] = []
        self._buffers = buffers
        self._unclaimed = dict(table)
        self._into: list[Tensor] = []
        self._from: list[Tensor] = []
        self._written: dict[int, str] = {}
        self._actions: list[Callable[[], object]] = []

    def write(self, name: str, into: Tensor) -> None:
        """Copy a tensor of the snapshot into a live one."""
        self._unclaimed.pop(name, None)
        noted = self.table.get(name)
        if noted != spec(into):
            self.problems.append(f"{name}: {noted or 'nothing'} in the snapshot, {spec(into)} in the script")
            return
        own = local(into)
        source = self._source(name, own.dtype, tuple(own.shape))
        if source is None:
            return
        tied = self._written.setdefault(id(into), name)
        if tied != name and not self._equal(tied, name):
            self.problems.append(
                f"{name}: one tensor with {tied} in the script, two different ones in the snapshot"
            )
        self._into.append(own)
        self._from.append(source)

    def read(self, name: str, device: torch.device | None = None) -> Any:
        """Return a copy of a tensor of the snapshot, on `device`, or of the NumPy value that it was."""
        self._unclaimed.pop(name, None)
        noted, space, was = self.table[name].partition(" ")
        source = self._source(name, *parse_spec(noted))
        if source is None:
            return None
        copied = source.to(device or "cpu", copy=True)
        if not was:
            return copied
        return copied.numpy() if space + was == ARRAY else copied.numpy()[()]

    def then(self, action: Callable[[], object]) -> None:
        """Do this after all tensors are written, in the order of these calls."""
        self._actions.append(action)

    def refuse(self, path: str, *problems: str) -> None:
        """Record what keeps a whole branch of the state from being restored; its tensors need no line each."""
        self.problems += problems
        for name in [name for name in self._unclaimed if name == path or name.startswith(f"{path}.")]:
            del self._unclaimed[name]

    def carry_out(self) -> None:
        """Change the live state. Raises `StateMismatch` listing every problem if there is one."""
        unclaimed = [
            f"{name}: {noted} in the snapshot, nothing in the script" for name, noted in self._unclaimed.items()
        ]
        if self.problems or unclaimed:
            listed = "\n  ".join(self.problems + unclaimed)
            raise StateMismatch(
                f"the snapshot does not fit what this script handed to Run; nothing was changed:\n  {listed}\n"
                "Names, shapes, dtypes and param groups have to be those that were saved. Restore the code "
                "that wrote the snapshot, or start over with --fresh."
            )
        if self._into:
            torch._foreach_copy_(self._into, self._from)
        for action in self._actions:
            action()

    def _source(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None:
        buffer = self._buffers.get(name)
        expected = dtype.itemsize * torch.Size(shape).numel()
        if buffer is None or buffer.nbytes != expected:
            got = 0 if buffer is None else buffer.nbytes
            self.problems.append(f"{name}: {got:,} bytes in the snapshot, {expected:,} bytes on this rank")
            return None
        return flat(buffer, dtype).view(shape)

    def _equal(self, *two: str) -> bool:
        first, second = (flat(self._buffers[name], torch.uint8) for name in two)
        return torch.equal(first, second)
