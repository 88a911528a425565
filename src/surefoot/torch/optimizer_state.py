"""An optimizer's state by the names of its parameters, restored without replacing a live tensor.

`Optimizer.load_state_dict` adopts the tensors it is given: handed views of a slot, the optimizer would
train inside the snapshot, and a captured graph would go on writing to the old ones. So state is copied
into what is there; what a lazy optimizer has not made yet is made here, and what the snapshot lacks
is removed: zeroing is not the same (SGD's first momentum is the gradient itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from surefoot.errors import UnstorableState
from surefoot.torch.names import Parameter
from surefoot.torch.nested import join, split
from surefoot.torch.plan import Look, Plan
from surefoot.torch.tensors import parse_spec, spec

NOT_VALUES = frozenset({"params", "param_names", "foreach", "fused", "capturable", "differentiable"})
"""What a param group says about how a step is carried out: the script decides it, no snapshot does."""

_ON_CPU = frozenset({"step", "mu_product"})
"""State scalars that torch's optimizers keep on the CPU unless the step is captured or fused."""


def names_state(optimizer: object) -> bool:
    """Tell whether the state is the plain one of torch: `state` by parameter, and `param_groups`."""
    return (
        isinstance(optimizer, Optimizer)
        and type(optimizer).state_dict is Optimizer.state_dict
        and type(optimizer).load_state_dict is Optimizer.load_state_dict
    )


class OptimizerPart:
    """One managed optimizer."""

    def __init__(self, keyword: str, optimizer: Optimizer) -> None:
        self.keyword = keyword
        self.optimizer = optimizer

    def look(self, look: Look, known: Mapping[int, Parameter]) -> dict[str, Any]:
        """Add the state's tensors and return its plain values; `known` names the models' parameters."""
        groups, names = [], {}
        for number, (group, members) in enumerate(
            zip(self.optimizer.param_groups, self._members(known), strict=True)
        ):
            for parameter, value in zip(members, group["params"], strict=True):
                names[id(value)] = parameter
                if id(value) not in known:
                    look.add(self._stray(parameter), value)
            path = f"{self.keyword}.groups.{number}"
            values = {key: split(value, f"{path}.{key}", look.add) for key, value in _values(group).items()}
            groups.append({"params": [parameter.name for parameter in members], **values})
        state = {}
        for key, value in self.optimizer.state.items():
            parameter = names.get(id(key)) or self._shared(key)
            add = look.add_replicated if parameter.replicated else look.add
            state[parameter.name] = split(value, f"{self.keyword}.state.{parameter.name}", add)
        return {"class": type(self.optimizer).__name__, "groups": groups, "state": state}

    def plan(self, saved: Mapping[str, Any], plan: Plan, known: Mapping[int, Parameter]) -> None:
        """Plan to make the optimizer equal to what `look` returned."""
        members = self._members(known)
        problems = self._problems(saved, members)
        if problems:
            plan.refuse(self.keyword, *problems)
            return
        owners: dict[str, tuple[Tensor, dict[str, Any]]] = {}
        values = []
        for number, (group, names) in enumerate(zip(self.optimizer.param_groups, members, strict=True)):
            for parameter, value in zip(names, group["params"], strict=True):
                owners[parameter.name] = value, group
                if id(value) not in known:
                    plan.write(self._stray(parameter), value)
            values.append(
                self._planned_values(saved["groups"][number], group, f"{self.keyword}.groups.{number}", plan)
            )
        state: dict[Any, Any] = {}
        for name, plain in saved["state"].items():
            owner, group = owners.get(name, (None, {}))
            key = name if owner is None else owner
            state[key] = self._planned_state(plain, f"{self.keyword}.state.{name}", key, group, plan)
        plan.then(partial(self._set, state, values))

    def _set(self, state: dict[Any, Any], values: list[dict[str, Any]]) -> None:
        live = self.optimizer.state
        for key in [key for key in live if key not in state]:
            del live[key]
        for key, value in state.items():
            if isinstance(value, dict) and isinstance(live.get(key), dict):
                live[key].clear()
                live[key].update(value)
            else:
                live[key] = value
        for group, restored in zip(self.optimizer.param_groups, values, strict=True):
            group.update(restored)
        self.optimizer.zero_grad(set_to_none=True)

    def _planned_values(
        self, saved: Mapping[str, Any], group: dict[str, Any], path: str, plan: Plan
    ) -> dict[str, Any]:
        def leaf(name: str, live: Any) -> Any:
            if isinstance(live, Tensor):
                plan.write(name, live)
            else:
                plan.refuse(name, f"{name}: a tensor in the snapshot, {live!r} in the script")
            return live

        restored = {}
        for key, plain in _values(saved).items():
            restored[key] = join(plain, f"{path}.{key}", plan.table, leaf, group.get(key))
            if isinstance(group.get(key), Tensor) and not isinstance(restored[key], Tensor):
                plan.problems.append(f"{path}.{key}: {restored[key]!r} in the snapshot, a tensor in the script")
        return restored

    def _planned_state(self, saved: Any, path: str, key: Any, group: Mapping[str, Any], plan: Plan) -> Any:
        def leaf(name: str, live: Any) -> Any:
            noted = plan.table[name]
            if " " in noted:
                return plan.read(name)
            if not (isinstance(live, Tensor) and spec(live) == noted):
                live = _made(name, noted, key, group)
            plan.write(name, live)
            return live

        return join(saved, path, plan.table, leaf, self.optimizer.state.get(key))

    def _problems(self, saved: Mapping[str, Any], members: list[list[Parameter]]) -> list[str]:
        name = type(self.optimizer).__name__
        if saved["class"] != name:
            return [f"{self.keyword}: a {saved['class']} in the snapshot, a {name} in the script"]
        if len(saved["groups"]) != len(members):
            count = f"{len(saved['groups'])} param groups in the snapshot, {len(members)} in the script"
            return [f"{self.keyword}: {count}"]
        problems = []
        for number, (group, live) in enumerate(zip(saved["groups"], members, strict=True)):
            was, now = group["params"], [parameter.name for parameter in live]
            lost, new = [n for n in was if n not in set(now)], [n for n in now if n not in set(was)]
            if lost or new:
                only = ", ".join(lost) or "none", ", ".join(new) or "none"
                where = f"{self.keyword} group {number}"
                problems.append(
                    f"{where}: parameters in the snapshot only: {only[0]}; in the script only: {only[1]}"
                )
        return problems

    def _members(self, known: Mapping[int, Parameter]) -> list[list[Parameter]]:
        """Return the names of each group's parameters; one of no managed model is GROUP.PLACE."""
        return [
            [
                known.get(id(value)) or Parameter(f"{number}.{place}", False)
                for place, value in enumerate(group["params"])
            ]
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def _stray(self, parameter: Parameter) -> str:
        """Return the name under which the *value* of a parameter of no managed model is stored."""
        return f"{self.keyword}.params.{parameter.name}"

    def _shared(self, key: Any) -> Parameter:
        if not isinstance(key, str):
            what = f"a tensor {spec(key)}" if isinstance(key, Tensor) else repr(key)
            raise UnstorableState(
                f"{self.keyword}.state has an entry for {what}, which is in none of its param groups: state "
                "belongs to a parameter or to a name; delete the entry"
            )
        return Parameter(key, False)


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in NOT_VALUES}


def _made(name: str, noted: str, key: Any, group: Mapping[str, Any]) -> Tensor:
    """Return an empty state tensor where the optimizer itself would have made it."""
    dtype, shape = parse_spec(noted)
    in_graph = group.get("capturable") or group.get("fused")
    if not isinstance(key, Tensor) or (name.rpartition(".")[2] in _ON_CPU and not shape and not in_graph):
        return torch.empty(shape, dtype=dtype)
    if shape == tuple(key.shape):
        return torch.empty_like(key, dtype=dtype, requires_grad=False)
    return torch.empty(shape, dtype=dtype, device=key.device)
