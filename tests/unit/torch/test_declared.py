"""What a script declares, and declares anew, about its optimization (case D21)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.unit.torch.saving import load, save
from torch import nn, optim
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from surefoot.torch.state import TorchState


def state(optimizer: optim.Optimizer, scheduler: LRScheduler | None = None) -> TorchState:
    return TorchState({"optimizer": optimizer} | ({} if scheduler is None else {"scheduler": scheduler}))


def sgd(lr: Any, *more: dict[str, Any]) -> optim.SGD:
    groups = [
        {"params": [nn.Parameter(torch.ones(1))]},
        *({"params": [nn.Parameter(torch.ones(1))]} | m for m in more),
    ]
    return optim.SGD(groups, lr=lr, momentum=0.9)


def test_hyperparameters_by_key() -> None:
    """Each group's values and each scheduler's constants have a key, counters have none; all of it is JSON."""
    optimizer = optim.AdamW([nn.Parameter(torch.ones(1))], lr=0.1, betas=(0.8, 0.9), fused=True)
    declared = state(optimizer, CosineAnnealingLR(optimizer, T_max=50)).declared()
    assert declared == {
        "optimizer": "AdamW",
        "optimizer.lr": 0.1,
        "optimizer.betas": [0.8, 0.9],
        "optimizer.eps": 1e-8,
        "optimizer.weight_decay": 0.01,
        "optimizer.amsgrad": False,
        "optimizer.maximize": False,
        "optimizer.decoupled_weight_decay": True,
        "scheduler": "CosineAnnealingLR",
        "scheduler.T_max": 50,
        "scheduler.eta_min": 0.0,
    }
    assert json.loads(json.dumps(declared, allow_nan=False)) == declared


def test_the_declared_rate_is_the_one_before_the_schedule() -> None:
    """A warm-up that starts near 0 doesn't hide the learning rate that was declared."""
    optimizer = sgd(0.4, {"lr": 0.2})
    declared = state(optimizer, LinearLR(optimizer, start_factor=0.25)).declared()
    assert (declared["optimizer.0.lr"], declared["optimizer.1.lr"]) == (0.4, 0.2)


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda o: MultiStepLR(o, [5, 5, 7]), {"milestones": [5, 5, 7], "gamma": 0.1}),
        (lambda o: LambdaLR(o, lambda step: 1.0), {}),
        (lambda o: OneCycleLR(o, max_lr=1.0, total_steps=9), {"total_steps": 9, "cycle_momentum": True}),
        (lambda o: ReduceLROnPlateau(o, patience=3), {"patience": 3, "mode": "min", "threshold": 1e-4}),
        (
            lambda o: SequentialLR(o, [ExponentialLR(o, 0.5), ExponentialLR(o, 0.6)], [4]),
            {"_milestones": [4], "0.gamma": 0.5, "1.gamma": 0.6},
        ),
    ],
    ids=["milestones", "lambda", "one-cycle", "plateau", "sequential"],
)
def test_constants_of_schedulers(make: Any, keys: dict[str, Any]) -> None:
    """Constants are declared, nested schedulers' too, and what counts the steps isn't."""
    optimizer = sgd(0.1)
    declared = state(optimizer, make(optimizer)).declared()
    assert keys.items() <= {key.removeprefix("scheduler."): value for key, value in declared.items()}.items()
    assert (
        not {"scheduler.last_epoch", "scheduler.base_lrs", "scheduler._last_lr", "scheduler.best"}
        & declared.keys()
    )
    assert json.loads(json.dumps(declared, allow_nan=False)) == declared


class Rule:
    """A rule with a constant that its state dict would silently bring back."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.warmup)


def test_constants_of_a_callable_rule() -> None:
    """LambdaLR saves the attributes of a callable object, so they are declared as well."""
    optimizer = sgd(0.1)
    assert state(optimizer, LambdaLR(optimizer, Rule(4))).declared()["scheduler.lr_lambdas.0.warmup"] == 4


def turn(optimizer: optim.Optimizer, scheduler: LRScheduler, turns: int) -> list[float]:
    rates = []
    for _ in range(turns):
        optimizer.step()
        scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
    return rates


@pytest.mark.parametrize(
    "make",
    [lambda o: LambdaLR(o, Rule(9)), lambda o: ExponentialLR(o, 0.9), lambda o: CosineAnnealingLR(o, 12)],
    ids=["closed", "recursive", "cosine"],
)
@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
def test_a_new_rate_moves_the_whole_schedule(make: Any, kind: Any) -> None:
    """An accepted learning rate gives the rates the schedule would have had with it from the start."""
    old, new = sgd(kind(0.1)), sgd(kind(0.3))
    schedules = make(old), make(new)
    turn(old, schedules[0], 3)
    saved = save(state(old, schedules[0]))
    rate = new.param_groups[0]["lr"]
    now = state(new, schedules[1])
    declared = now.declared()
    load(now, saved)
    now.accept({key: declared[key] for key in ("optimizer.lr",)})
    expected = sgd(kind(0.3))
    whole = turn(expected, make(expected), 6)
    assert float(new.param_groups[0]["lr"]) == pytest.approx(whole[2], rel=1e-5)
    assert turn(new, schedules[1], 3) == pytest.approx(whole[3:], rel=1e-5)
    assert kind is float or new.param_groups[0]["lr"] is rate


def test_a_rate_without_a_schedule_is_taken_as_it_is() -> None:
    """Where nothing schedules the rate, the new one is the new one."""
    old, new = sgd(0.1), sgd(0.3)
    now = state(new)
    load(now, save(state(old)))
    assert new.param_groups[0]["lr"] == 0.1
    now.accept({"optimizer.lr": 0.3, "data.batch": 7})
    assert new.param_groups[0]["lr"] == 0.3


def test_a_zero_rate_can_be_left() -> None:
    """A declared rate of 0 can't be scaled, and is replaced."""
    optimizer = sgd(0.0)
    now = state(optimizer, ExponentialLR(optimizer, 0.9))
    now.accept({"optimizer.lr": 0.3})
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_other_changes_reach_their_place() -> None:
    """Values of groups and constants of schedulers are set as the kind they are, and to no other group."""
    optimizer = optim.AdamW([{"params": [nn.Parameter(torch.ones(1))]} for _ in range(2)], betas=(0.9, 0.99))
    nested: list[Any] = [MultiStepLR(optimizer, [5]), LambdaLR(optimizer, Rule(4))]
    scheduler = SequentialLR(optimizer, nested, [3])
    state(optimizer, scheduler).accept(
        {
            "optimizer.1.betas": [0.8, 0.95],
            "optimizer.0.weight_decay": 1,
            "scheduler.0.milestones": [7, 7],
            "scheduler.1.lr_lambdas.0.warmup": 8,
        }
    )
    assert [group["betas"] for group in optimizer.param_groups] == [(0.9, 0.99), (0.8, 0.95)]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [1.0, 0.01]
    assert nested[0].milestones == {7: 2}
    assert nested[1].lr_lambdas[0].warmup == 8
