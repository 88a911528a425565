"""The training state of a script in PyTorch: named tensors to copy out and in, plain values beside them.

Every capture walks the live objects anew: a list of tensors kept from the last one goes stale at the
first `load_state_dict`, and would go on saving what nobody trains any more. Nor are views of buffers
kept: a view keeps a slot's memory mapped long after everybody else has let it go. A restore replaces no
live tensor, plans everything before it changes anything, and puts generators back last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from surefoot.errors import StateMismatch, UnstorableState
from surefoot.loop.state import Box
from surefoot.torch import generators, names
from surefoot.torch.declared import declarations
from surefoot.torch.optimizer_state import OptimizerPart, names_state
from surefoot.torch.parts import GeneratorPart, ModelPart, ObjectPart
from surefoot.torch.plan import Look, Plan
from surefoot.torch.tensors import accelerator, box, flat, is_dtensor, local, spec

_P = TypeVar("_P", ModelPart, OptimizerPart, ObjectPart, GeneratorPart)


class _Boxed(NamedTuple):
    """A box, with what it was made from."""

    box: Box
    spec: str
    made_from: tuple[Any, ...]


class TorchState:
    """The state of what a script handed in by name: modules, optimizers, schedulers, generators.

    Anything with `state_dict` and `load_state_dict` will do. Raises `UnstorableState` naming an object
    that has neither.
    """

    def __init__(self, objects: Mapping[str, object]) -> None:
        self.models: dict[str, nn.Module] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.schedulers: dict[str, LRScheduler] = {}
        self.scalers: dict[str, Any] = {}
        self._models: list[ModelPart] = []
        self._optimizers: list[OptimizerPart] = []
        self._objects: list[ObjectPart] = []
        self._generators: list[GeneratorPart] = []
        for keyword, value in objects.items():
            self._take(keyword, value)
        self._keywords = frozenset(objects)
        self._boxed: dict[str, _Boxed] = {}

    def _take(self, keyword: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self.models[keyword] = value
            self._models.append(ModelPart(keyword, value))
            return
        if isinstance(value, Optimizer):
            self.optimizers[keyword] = value
        elif isinstance(value, LRScheduler):
            self.schedulers[keyword] = value
        elif all(hasattr(value, name) for name in ("scale", "step", "update")):
            self.scalers[keyword] = value
        if names_state(value):
            self._optimizers.append(OptimizerPart(keyword, value))
        elif generators.is_generator(value):
            self._generators.append(GeneratorPart(keyword, value))
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self._objects.append(ObjectPart(keyword, value))
        else:
            raise UnstorableState(
                f"{keyword} is a {type(value).__name__}, which has no state_dict and load_state_dict: Run "
                "takes modules, optimizers, generators and objects with these two methods; plain values go to "
                "run.state"
            )

    @torch.no_grad()
    def boxes(self) -> Sequence[Box]:
        """Describe every tensor as it is now."""
        return [boxed.box for boxed in self._describe(self._look()[0])]

    @torch.no_grad()
    def plain(self) -> dict[str, Any]:
        """Return everything that isn't a tensor, and dtype and shape of everything that is."""
        look, objects = self._look()
        boxed = self._describe(look)
        table = {one.box.name: one.spec + look.was.get(one.box.name, "") for one in boxed}
        return {"tensors": table, "objects": objects, "generators": generators.capture()}

    @torch.no_grad()
    def copy_out(self, into: Mapping[str, memoryview]) -> None:
        """Write each tensor that has a buffer of its name; the others are a neighbour's to write.

        Raises `StateMismatch` for a buffer that no tensor fits any more.
        """
        live = self._look()[0].tensors
        sources = {name: local(live[name]) for name in into if name in live}
        gone = [name for name in into.keys() - sources.keys() if name.partition(".")[0] in self._keywords]
        gone += [name for name, source in sources.items() if source.nbytes != into[name].nbytes]
        if gone:
            raise StateMismatch(
                f"no tensor fits the buffers of {', '.join(sorted(gone))}: the state has changed since its "
                "boxes were asked for; lay it out again"
            )
        if sources:
            views = [flat(into[name], source.dtype).view_as(source) for name, source in sources.items()]
            torch._foreach_copy_(views, list(sources.values()))

    @torch.no_grad()
    def copy_in(self, tensors: Mapping[str, memoryview], plain: Mapping[str, Any]) -> None:
        """Make the live state equal to a snapshot, in place.

        Raises `StateMismatch` listing everything that doesn't fit, with nothing changed.
        """
        found = {part.keyword: part.settle() for part in self._models}
        known = names.parameters(found)
        device = accelerator()
        if device is not None:
            device.synchronize()  # another stream may still read what is about to be written
        saved = plain["objects"]
        plan = Plan(plain["tensors"], tensors)
        for keyword in sorted(saved.keys() - self._keywords):
            plan.refuse(keyword, f"{keyword}: in the snapshot, not handed to Run")
        plan.problems += [
            f"{keyword}: not in the snapshot" for keyword in sorted(self._keywords - saved.keys())
        ]
        # A scheduler's load may touch param groups, whose own values are the last word; generators come last.
        for other in _in(saved, self._objects):
            other.plan(saved[other.keyword], plan)
        for optimizer in _in(saved, self._optimizers):
            optimizer.plan(saved[optimizer.keyword], plan, known)
        for model in _in(saved, self._models):
            model.plan(saved[model.keyword], plan, found[model.keyword])
        for generator in _in(saved, self._generators):
            generator.plan(saved[generator.keyword], plan)
        if "generators" in plain:  # a rank that no snapshot knows has seeded its own
            plan.then(partial(generators.restore, plain["generators"]))
        plan.carry_out()

    def declared(self) -> dict[str, Any]:
        """Return the hyperparameters that the script declares, by key: `optimizer.lr`, `scheduler.T_max`.

        Meant for right after the script has made its objects: restores and steps change some of them.
        """
        managed = self.optimizers | self.schedulers
        kinds = {keyword: type(value).__name__ for keyword, value in managed.items()}
        return kinds | {item.key: item.value for item in declarations(self.optimizers, self.schedulers)}

    def accept(self, changes: Mapping[str, Any]) -> None:
        """Apply newly declared values over a restored state; keys that are none of ours are passed over."""
        for item in declarations(self.optimizers, self.schedulers):
            if item.key in changes:
                item.change(changes[item.key])

    def _look(self) -> tuple[Look, dict[str, Any]]:
        look = Look()
        found = {part.keyword: part.settle() for part in self._models}
        known = names.parameters(found)
        objects: dict[str, Any] = {part.keyword: part.look(look, found[part.keyword]) for part in self._models}
        objects |= {part.keyword: part.look(look, known) for part in self._optimizers}
        objects |= {part.keyword: part.look(look) for part in self._objects}
        objects |= {part.keyword: part.look() for part in self._generators}
        return look, objects

    def _describe(self, look: Look) -> list[_Boxed]:
        kept, self._boxed = self._boxed, {}
        for name, tensor in look.tensors.items():
            replicated = name in look.replicated
            made_from = type(tensor), tensor.dtype, tensor.shape, replicated, _spread(tensor)
            boxed = kept.get(name)
            if boxed is None or boxed.made_from != made_from:
                boxed = _Boxed(box(name, tensor, replicated=replicated), spec(tensor), made_from)
            self._boxed[name] = boxed
        return list(self._boxed.values())


def _in(saved: Mapping[str, Any], parts: list[_P]) -> list[_P]:
    return [part for part in parts if part.keyword in saved]


def _spread(tensor: Any) -> Any:
    return (tensor.device_mesh, tensor.placements) if is_dtensor(tensor) else None
