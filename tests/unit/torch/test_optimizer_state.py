"""Optimizer state of every kind comes back, made where it is missing, removed where the snapshot lacks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.unit.torch.jobs import Job, job
from tests.unit.torch.saving import load, save
from torch import nn, optim
from torch.optim import Optimizer

from surefoot.errors import StateMismatch, UnstorableState
from surefoot.torch.state import TorchState


class Nested(Optimizer):
    """Keeps nested state, a counter, a list that grows, and something that belongs to no parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        shared = cast("Any", self.state)["shared"]
        shared["turns"] = shared.get("turns", 0) + 1
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            state.setdefault("seen", []).append(parameter.grad.norm())
            nested = state.setdefault("factors", {"count": 0, "rows": (torch.zeros(len(parameter)), "mean")})
            nested["count"] += 1
            nested["rows"][0].add_(parameter.grad.flatten(1).mean(1) if parameter.dim() > 1 else parameter.grad)
            rows = nested["rows"][0].view(-1, *[1] * (parameter.dim() - 1))
            parameter.sub_(rows * 0.01 * sum(state["seen"]) / shared["turns"])


class Wrapping(Optimizer):
    """Gives its state in a form of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.velocity = [torch.zeros_like(parameter) for parameter in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter, velocity in zip(self.param_groups[0]["params"], self.velocity, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)
            parameter.sub_(velocity, alpha=0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": self.velocity}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.velocity = state_dict["velocity"]


def muon(parameters: Any) -> Optimizer:
    return optim.Muon([parameter for parameter in parameters if parameter.dim() == 2], lr=0.02)


KINDS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.02),
    "adamw-foreach": lambda p: optim.AdamW(p, lr=0.02, foreach=True, amsgrad=True),
    "adamw-fused": lambda p: optim.AdamW(p, lr=0.02, fused=True),
    "adamw-tensor-lr": lambda p: optim.AdamW(p, lr=torch.tensor(0.02)),
    "adafactor": lambda p: optim.Adafactor(p, lr=0.02),
    "nadam": lambda p: optim.NAdam(p, lr=0.02),
    "muon": muon,
    "nested": Nested,
    "wrapping": Wrapping,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_optimizer_goes_on(kind: str) -> None:
    """State that a new optimizer doesn't have yet is made, and the next steps are bit-equal."""
    first, second = job(KINDS[kind]), job(KINDS[kind])
    first.train(3)
    saved = save(first.state)
    expected = first.train(3)
    load(second.state, saved)
    assert save(second.state).image == saved.image
    assert second.train(3) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_snapshot_from_before_the_first_step_removes_state(kind: str) -> None:
    """Restored to step 0 an optimizer has no state again: zeros are not the same."""
    one = job(KINDS[kind])
    saved = save(one.state)
    expected = one.train(3)
    load(one.state, saved)
    assert not one.optimizer.state
    assert one.train(3) == expected


def test_state_tensors_are_written_in_place() -> None:
    """Neither moments nor a tensor learning rate are replaced: a captured graph keeps the old ones."""
    one = job(KINDS["adamw-tensor-lr"])
    one.train(1)
    saved = save(one.state)
    state = [tensor for entry in one.optimizer.state.values() for tensor in entry.values()]
    kept = [*state, one.optimizer.param_groups[0]["lr"]]
    one.optimizer.param_groups[0]["lr"].fill_(7.0)
    one.train(1)
    load(one.state, saved)
    assert {id(tensor) for entry in one.optimizer.state.values() for tensor in entry.values()} == set(
        map(id, state)
    )
    assert one.optimizer.param_groups[0]["lr"] is kept[-1]
    assert kept[-1] == torch.tensor(0.02)


def test_made_state_lies_where_the_optimizer_makes_it() -> None:
    """Moments are made like their parameter, in its memory order."""
    first, second = job(KINDS["adamw"]), job(KINDS["adamw"])
    first.train(1)
    load(second.state, save(first.state))
    for made, own in zip(second.optimizer.state.values(), first.optimizer.state.values(), strict=True):
        assert {key: (value.device, value.stride()) for key, value in made.items()} == {
            key: (value.device, value.stride()) for key, value in own.items()
        }
        assert not any(value.requires_grad for value in made.values())


def test_parameters_of_no_model_are_stored() -> None:
    """A parameter that only an optimizer knows is stored by group and place, its value and its state."""

    def script(value: float) -> tuple[torch.Tensor, TorchState, Optimizer]:
        temperature = torch.full((), value, requires_grad=True)
        groups: list[dict[str, Any]] = [{"params": [torch.zeros(2)]}, {"params": [temperature], "lr": 0.5}]
        optimizer = optim.AdamW(groups)
        return temperature, TorchState({"optimizer": optimizer}), optimizer

    temperature, state, optimizer = script(2.0)
    temperature.square().backward()
    optimizer.step()
    saved = save(state)
    moments = {f"optimizer.state.1.0.{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert saved.names == {"optimizer.params.0.0", "optimizer.params.1.0"} | moments
    other, state, _ = script(0.0)
    load(state, saved)
    assert other.item() == temperature.item()


def test_groups_keep_their_values() -> None:
    """Every group gets back its own hyperparameters; how the step is computed stays the script's."""

    def script(lrs: list[float], foreach: bool) -> tuple[Optimizer, TorchState]:
        layers = [nn.Linear(1, 1) for _ in lrs]
        groups = [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, lrs, strict=True)]
        optimizer = optim.AdamW(groups, foreach=foreach)
        return optimizer, TorchState({"model": nn.ModuleList(layers), "optimizer": optimizer})

    _, state = script([0.1, 0.2], foreach=True)
    optimizer, other = script([0.3, 0.4], foreach=False)
    load(other, save(state))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert [group["foreach"] for group in optimizer.param_groups] == [False, False]


def with_lr(lr: Any) -> Job:
    return job(lambda parameters: optim.AdamW(parameters, lr=lr))


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        (with_lr(0.1), job(KINDS["sgd"]), r"optimizer: a AdamW in the snapshot, a SGD in the script"),
        (
            with_lr(torch.tensor(0.5)),
            with_lr(0.5),
            r"optimizer\.groups\.0\.lr: a tensor .*, 0\.5 in the script",
        ),
        (with_lr(0.5), with_lr(torch.tensor(0.5)), r"optimizer\.groups\.0\.lr: 0\.5 in the snapshot, a tensor"),
        (with_lr(0.5), job(muon), r"optimizer: a AdamW"),
    ],
    ids=["class", "tensor", "number", "muon"],
)
def test_optimizers_that_differ_are_refused(was: Job, now: Job, says: str) -> None:
    """Another class, or a tensor where a number was, is a mismatch."""
    with pytest.raises(StateMismatch, match=says):
        load(now.state, save(was.state))


def test_groups_that_differ_are_refused() -> None:
    """Another number of groups, or other parameters in them, is a mismatch that names them."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))

    def script(*groups: nn.Module) -> TorchState:
        optimizer = optim.SGD([{"params": group.parameters()} for group in groups], lr=0.1)
        return TorchState({"model": model, "optimizer": optimizer})

    saved = save(script(model[0]))
    with pytest.raises(StateMismatch, match="optimizer: 1 param groups in the snapshot, 2 in the script"):
        load(script(model[0], model[1]), saved)
    with pytest.raises(
        StateMismatch, match=r"only: 0\.weight, 0\.bias; in the script only: 1\.weight, 1\.bias"
    ):
        load(script(model[1]), saved)


def test_state_of_a_parameter_in_no_group_is_refused() -> None:
    """State that belongs to nobody can't be named."""
    optimizer = optim.SGD([torch.zeros(1)], lr=0.1)
    optimizer.state[torch.zeros(3)] = {"momentum_buffer": torch.zeros(3)}
    with pytest.raises(UnstorableState, match=r"optimizer\.state has an entry for a tensor F32\[3\]"):
        TorchState({"optimizer": optimizer}).boxes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, {"fused": True}, {"capturable": True}], ids=["foreach", "fused", "capturable"]
)
def test_made_state_lies_on_the_right_device(options: dict[str, bool]) -> None:
    """Counters are made on the CPU unless the step is fused or captured, moments on the parameter's device."""

    def script() -> tuple[Optimizer, TorchState]:
        model = nn.Linear(2, 2, device="cuda")
        optimizer = optim.AdamW(model.parameters(), **options)  # type: ignore[arg-type]
        return optimizer, TorchState({"model": model, "optimizer": optimizer})

    (first, state), (second, other) = script(), script()
    for parameter in first.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    first.step()
    saved = save(state)
    load(other, saved)
    assert save(other).image == saved.image
    for own, made in zip(first.state.values(), second.state.values(), strict=True):
        assert {key: value.device for key, value in own.items()} == {
            key: value.device for key, value in made.items()
        }
