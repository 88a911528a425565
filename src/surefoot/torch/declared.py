"""What a script declares about its optimization, and how a change of it is applied over a restored state.

A restore brings back the snapshot's values, so a script whose learning rate was edited would silently
train with the old one, and one whose schedule was lengthened would not know. These are the values a
resume compares; each knows how to change the live object. They are JSON, as the journal keeps them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from surefoot.torch.optimizer_state import NOT_VALUES

_COUNTERS = frozenset({
    "optimizer", "base_lrs", "last_epoch", "_step_count", "_last_lr", "_is_initial",
    "_get_lr_called_within_step", "best", "mode_worse", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i",
    "_schedulers", "lr_lambdas",
})  # fmt: skip
"""What a scheduler keeps beside its constants."""


class Declared(NamedTuple):
    """One declared value."""

    key: str
    value: Any
    change: Callable[[Any], None]
    """Apply another value to the live object."""


def declarations(
    optimizers: Mapping[str, Optimizer], schedulers: Mapping[str, LRScheduler]
) -> Iterator[Declared]:
    """Yield every hyperparameter of the param groups and every constant of the schedulers."""
    for keyword, optimizer in optimizers.items():
        followers = [
            inner for outer in schedulers.values() for inner in _flat(outer) if inner.optimizer is optimizer
        ]
        alone = len(optimizer.param_groups) == 1
        for number, group in enumerate(optimizer.param_groups):
            yield from _of_group(keyword if alone else f"{keyword}.{number}", group, number, followers)
    for keyword, scheduler in schedulers.items():
        yield from _of_scheduler(keyword, scheduler)


def _of_group(
    path: str, group: dict[str, Any], number: int, followers: list[LRScheduler]
) -> Iterator[Declared]:
    def change_lr(new: Any) -> None:
        declared = float(group.get("initial_lr", 0.0))
        # Under a schedule the current rate is its value at this step: it moves in proportion.
        _put(group, "lr", float(group["lr"]) * new / declared if declared else new)
        if "initial_lr" in group:
            _put(group, "initial_lr", new)
        for scheduler in followers:
            for name, value in (("base_lrs", new), ("_last_lr", group["lr"])):
                if name in vars(scheduler):
                    _put(vars(scheduler)[name], number, value)

    yield Declared(f"{path}.lr", _json(group.get("initial_lr", group["lr"])), change_lr)
    rest = {
        key: value for key, value in group.items() if key not in NOT_VALUES and key not in {"lr", "initial_lr"}
    }
    yield from _constants(path, rest, group)


def _of_scheduler(path: str, scheduler: LRScheduler) -> Iterator[Declared]:
    own = vars(scheduler)
    yield from _constants(path, {key: value for key, value in own.items() if key not in _COUNTERS}, own)
    for number, inner in enumerate(own.get("_schedulers", ())):
        yield from _of_scheduler(f"{path}.{number}", inner)
    for number, rule in enumerate(own.get("lr_lambdas", ())):
        if not isinstance(rule, FunctionType):  # of these the state dict keeps the attributes
            yield from _constants(f"{path}.lr_lambdas.{number}", vars(rule), vars(rule))


def _flat(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    yield scheduler
    for inner in vars(scheduler).get("_schedulers", ()):
        yield from _flat(inner)


def _constants(path: str, values: Mapping[str, Any], owner: dict[str, Any]) -> Iterator[Declared]:
    for key, value in values.items():
        try:
            shown = _json(value)
        except TypeError:
            continue  # a function, an object: nothing that could be compared
        yield Declared(f"{path}.{key}", shown, lambda new, key=key: _put(owner, key, new))  # type: ignore[misc]


def _json(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, Counter):
        return [_json(item) for item in sorted(value.elements())]
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    raise TypeError(type(value).__name__)


def _put(owner: Any, key: Any, new: Any) -> None:
    """Set `owner[key]`, as the kind of value it is; a tensor is written in place."""
    old = owner[key]
    if isinstance(old, Tensor):
        old.fill_(float(new))
    elif isinstance(old, tuple | Counter):
        owner[key] = type(old)(new)
    else:
        owner[key] = float(new) if isinstance(old, float) else new
