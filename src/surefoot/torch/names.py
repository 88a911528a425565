"""Names of parameters and buffers as a snapshot stores them: free of wrappers, whoever wrapped what.

A wrapper is known by its type, never by its attribute's name: a real submodule called `module` keeps
its name. So a state saved under DistributedDataParallel and torch.compile fits the bare model, and the
other way round. `fully_shard` changes a module in place and leaves no mark in names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel

from surefoot.torch.tensors import derives

_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
    ),
)
"""(where the class lives, its name, the child that it wraps)."""


class _Replicas(NamedTuple):
    """What DistributedDataParallel keeps equal on all ranks, of the tree below it."""

    ignored: frozenset[int]
    """The ids of the tensors it was told to leave alone."""
    buffers: bool


class Place(NamedTuple):
    """A module's place in the tree of its root."""

    prefix: str
    """Its name with a dot behind it; empty for the root and its wrappers."""
    module: nn.Module
    replicas: _Replicas | None


class Found(NamedTuple):
    """A tensor of a module tree."""

    name: str
    tensor: Tensor
    replicated: bool
    """Whether DistributedDataParallel keeps it equal on all ranks."""


def walk(root: nn.Module) -> list[Place]:
    """Return every module below the root, parents first; one that is in two places comes twice."""
    places: list[Place] = []
    left: list[Place] = [Place("", root, None)]
    while left:
        place = left.pop()
        prefix, module, replicas = place
        if isinstance(module, DistributedDataParallel):
            replicas = _replicas(module)
        places.append(place)
        cls: Any = type(module)
        wrapped = _wrapped(cls)
        for name, child in reversed(module._modules.items()):  # noqa: SLF001 - named_children drops shared ones
            if child is not None:
                left.append(Place(prefix if name == wrapped else f"{prefix}{name}.", child, replicas))
    return places


def tensors(places: Iterable[Place]) -> Iterator[Found]:
    """Yield every parameter and persistent buffer; a tied one comes under each of its names."""
    for prefix, module, replicas in places:
        for name, parameter in module._parameters.items():  # noqa: SLF001 - named_parameters is 10 × slower
            if parameter is not None:
                equal = replicas is not None and id(parameter) not in replicas.ignored
                yield Found(prefix + name, parameter, equal)
        passing = module._non_persistent_buffers_set  # noqa: SLF001 - the only place that says so
        for name, buffer in module._buffers.items():  # noqa: SLF001 - as above
            if buffer is not None and name not in passing:
                equal = replicas is not None and replicas.buffers and id(buffer) not in replicas.ignored
                yield Found(prefix + name, buffer, equal and not _is_own(module))


@cache
def _wrapped(cls: type) -> str | None:
    """Return the name of the child that such a module wraps, if it is a wrapper."""
    return next((child for module, name, child in _WRAPPERS if derives(cls, module, name)), None)


def _replicas(module: DistributedDataParallel) -> _Replicas:
    ignored: set[int] = set()
    if module.parameters_to_ignore:
        inner = module.module
        named = [*inner.named_parameters(remove_duplicate=False), *inner.named_buffers(remove_duplicate=False)]
        ignored = {id(tensor) for name, tensor in named if name in module.parameters_to_ignore}
    return _Replicas(frozenset(ignored), bool(module.broadcast_buffers))


def _is_own(module: nn.Module) -> bool:
    """Tell whether the module's buffers are each rank's own between the broadcasts of two forwards."""
    return isinstance(module, _NormBase) and not isinstance(module, SyncBatchNorm)


class Parameter(NamedTuple):
    """What an optimizer's state is named after."""

    name: str
    replicated: bool


def parameters(found: Mapping[str, Sequence[Found]]) -> dict[int, Parameter]:
    """Return id → name of every tensor that was found, by the keyword of its model.

    The name is free of the keyword where no other model has the same one; a tied tensor has its first.
    """
    first: dict[int, tuple[str, Found]] = {}
    for keyword, tensors_of_model in found.items():
        for item in tensors_of_model:
            first.setdefault(id(item.tensor), (keyword, item))
    users = Counter(item.name for _, item in first.values())
    return {
        key: Parameter(item.name if users[item.name] == 1 else f"{keyword}.{item.name}", item.replicated)
        for key, (keyword, item) in first.items()
    }
