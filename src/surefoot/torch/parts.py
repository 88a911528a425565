"""What a script hands in beside its optimizers: modules, objects with a state dict of their own, generators.

Each part looks at its object for a capture and plans its restore; `state` keeps them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from surefoot.torch import generators, names
from surefoot.torch.nested import join, split
from surefoot.torch.plan import Look, Plan
from surefoot.torch.sharded import reshard
from surefoot.torch.tensors import spec


class ModelPart:
    """A module: its parameters and persistent buffers, and the extra state that some modules keep."""

    def __init__(self, keyword: str, model: nn.Module) -> None:
        self.keyword = keyword
        self.model = model
        self._places: list[names.Place] = []

    def settle(self) -> list[names.Found]:
        """Bring the module into the form it is stored in, and return its tensors as they are now."""
        self._places = names.walk(self.model)
        reshard(place.module for place in self._places)
        return list(names.tensors(self._places))

    def look(self, look: Look, found: Sequence[names.Found]) -> dict[str, Any]:
        """Add the tensors that were found, and return the extra state by module."""
        for name, tensor, replicated in found:
            add = look.add_replicated if replicated else look.add
            add(f"{self.keyword}.{name}", tensor)
        return {
            prefix: split(module.get_extra_state(), f"{self.keyword}.{prefix}_extra_state", look.add)
            for prefix, module in self._with_extra()
        }

    def plan(self, saved: dict[str, Any], plan: Plan, found: Sequence[names.Found]) -> None:
        """Plan to make the module equal to what `look` saw."""
        for name, tensor, _ in found:
            plan.write(f"{self.keyword}.{name}", tensor)
        for prefix, module in self._with_extra():
            if prefix in saved:
                path = f"{self.keyword}.{prefix}_extra_state"
                extra = join(saved[prefix], path, plan.table, _copied(plan), module.get_extra_state())
                plan.then(partial(module.set_extra_state, extra))
        plan.then(partial(self.model.zero_grad, set_to_none=True))

    def _with_extra(self) -> list[tuple[str, nn.Module]]:
        plain = nn.Module.get_extra_state
        places = self._places
        return [
            (place.prefix, place.module) for place in places if type(place.module).get_extra_state is not plain
        ]


class ObjectPart:
    """Anything that gives its state as a dict and takes it back: schedulers, scalers, averages."""

    def __init__(self, keyword: str, value: Any) -> None:
        self.keyword = keyword
        self.value = value

    def look(self, look: Look) -> dict[str, Any]:
        """Add the tensors and arrays in the object's state dict, and return the rest of it."""
        return {
            "class": type(self.value).__name__,
            "state": split(self.value.state_dict(), self.keyword, look.add),
        }

    def plan(self, saved: dict[str, Any], plan: Plan) -> None:
        """Plan to load the state dict; what the object keeps of it are copies, never a slot's memory."""
        was, now = saved["class"], type(self.value).__name__
        if was != now and isinstance(self.value, LRScheduler):
            # Its load would take any dict, and go on with constants that are another schedule's.
            plan.refuse(self.keyword, f"{self.keyword}: a {was} in the snapshot, a {now} in the script")
            return
        state = join(saved["state"], self.keyword, plan.table, _copied(plan), self.value.state_dict())
        plan.then(partial(self.value.load_state_dict, state))


class GeneratorPart:
    """A generator object of torch, Python or NumPy."""

    def __init__(self, keyword: str, generator: Any) -> None:
        self.keyword = keyword
        self.generator = generator

    def look(self) -> Any:
        """Return the generator's state."""
        return generators.state_of(self.generator)

    def plan(self, saved: Any, plan: Plan) -> None:
        """Plan to set the generator back."""
        plan.then(partial(generators.set_state, self.generator, saved))


def _copied(plan: Plan) -> Callable[[str, Any], Any]:
    """Return what makes each tensor of a state dict: like the live one, in memory of its own."""

    def leaf(name: str, live: Any) -> Any:
        if not (isinstance(live, Tensor) and spec(live) == plan.table[name]):
            return plan.read(name, live.device if isinstance(live, Tensor) else None)
        made = torch.empty_like(live, requires_grad=False)
        plan.write(name, made)
        return made

    return leaf
