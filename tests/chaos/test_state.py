"""State by name: whatever a script trains with is killed and comes back bit-equal; what can't be is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.chaos.conftest import Trials
from tests.runs import Here, Trial, dice, digest, fingerprint, seed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import surefoot
from surefoot.core.events import Restored, RunEnded, WorkerExited

pytestmark = pytest.mark.chaos


def batch(place: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(6, 4)
    return x, x.sum(1, keepdim=True).sin()


@dataclass
class Recipe:
    """What a script hands to Run by name, and one turn with it."""

    named: dict[str, Any]
    turn: Callable[[int, Tensor, Tensor], Tensor]
    """(step, x, y) → the loss, its updates done."""


def net(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), *more, nn.Tanh(), nn.Linear(8, 1))


def adamw() -> Recipe:
    """AdamW in two groups, LambdaLR, and a generator object of each kind, all drawn from."""
    model = net(nn.Dropout(0.2))
    groups: Any = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[3].parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    noise, shuffler, jitter = torch.Generator().manual_seed(3), random.Random(4), np.random.default_rng(5)

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        x = x + 0.1 * torch.randn(x.shape, generator=noise) * shuffler.random() + float(jitter.normal()) / 50
        loss = F.mse_loss(model(x + random.random() / 9 + np.random.rand() / 9), y)  # noqa: NPY002
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return Recipe({**named, "noise": noise, "shuffler": shuffler, "jitter": jitter}, turn)


def sgd() -> Recipe:
    """SGD with momentum under OneCycleLR, which moves the momentum too; clipped gradients."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss

    return Recipe({"model": model, "optimizer": optimizer, "scheduler": scheduler}, turn)


def muon() -> Recipe:
    """Muon for the matrices and Adam with amsgrad for the rest, each under a schedule of schedules."""
    model = net()
    matrices = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.02)
    rest = torch.optim.Adam([p for p in model.parameters() if p.ndim != 2], lr=0.01, amsgrad=True)
    warm_up = lr_scheduler.LinearLR(matrices, 0.1, total_iters=4)
    cosine = lr_scheduler.CosineAnnealingLR(matrices, 20)
    scheduler = lr_scheduler.SequentialLR(matrices, [warm_up, cosine], milestones=[4])

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for optimizer in (matrices, rest):
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        return loss

    return Recipe({"model": model, "matrices": matrices, "rest": rest, "scheduler": scheduler}, turn)


def gan() -> Recipe:
    """Two models and two optimizers, of which one steps every second turn only."""
    maker, judge = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4)), net()
    making = torch.optim.Adam(maker.parameters(), lr=0.01, betas=(0.5, 0.99))
    judging = torch.optim.RMSprop(judge.parameters(), lr=0.01, momentum=0.5)

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        made = maker(torch.randn(6, 2))
        loss = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(x)).mean()
        loss.backward()
        judging.step()
        if step % 2:
            making.zero_grad()
            F.softplus(-judge(made)).mean().backward()
            making.step()
        judging.zero_grad()
        return loss

    return Recipe({"maker": maker, "judge": judge, "making": making, "judging": judging}, turn)


def averaged() -> Recipe:
    """BatchNorm and dropout, an average of weights and buffers, a schedule that watches the loss."""
    model = net(nn.BatchNorm1d(8), nn.Dropout(0.3))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update_parameters(model)
        scheduler.step(loss.item())
        return loss + 0.1 * ema(x).mean()

    return Recipe({"model": model, "ema": ema, "optimizer": optimizer, "scheduler": scheduler}, turn)


class Scaler:
    """A loss scaler's stand-in for the CPU: it grows after three steps without an overflow, else backs off."""

    def __init__(self) -> None:
        self.factor, self.good, self.skipped = 1024.0, 0, list[int]()
        self.overflow = False

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.factor

    def step(self, optimizer: torch.optim.Optimizer, number: int) -> bool:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(gradients, self.factor)
        self.overflow = not all(gradient.isfinite().all() for gradient in gradients)
        if self.overflow:
            self.skipped.append(number)
        else:
            optimizer.step()
        return not self.overflow

    def update(self) -> None:
        self.good = 0 if self.overflow else self.good + 1
        if self.overflow or self.good % 3 == 0:
            self.factor *= 0.5 if self.overflow else 2.0

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "good": self.good, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.factor, self.good, self.skipped = state["factor"], state["good"], list(state["skipped"])


def scaled() -> Recipe:
    """A scaler that skips three updates, one of them just before the kill; the schedule skips with it."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler, scaler = lr_scheduler.StepLR(optimizer, 3), Scaler()

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss * (torch.inf if step in (2, 6, 9) else 1.0)).backward()
        if scaler.step(optimizer, step):
            scheduler.step()
        scaler.update()
        optimizer.zero_grad()
        return loss

    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    return Recipe(named, turn)


def lbfgs() -> Recipe:
    """LBFGS, whose state is lists of tensors that grow."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=3)

    def turn(step: int, x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss: Tensor = optimizer.step(closure)
        return loss

    return Recipe({"model": model, "optimizer": optimizer}, turn)


RECIPES = {recipe.__name__: recipe for recipe in (adamw, sgd, muon, gan, averaged, scaled, lbfgs)}


def train(here: Here, recipe: str, die_at: int | None = None, n: int = 14) -> None:
    seed(7)
    made = RECIPES[recipe]()
    run = surefoot.Run(here.run_dir, data=batch, stage_every_steps=3, **made.named)
    for step in run.steps(n):
        here.breathe(run)
        loss = made.turn(step, *next(run.data))
        run.log(loss=loss)
        here.turn(
            step, loss=loss, dice=dice(), **{name: fingerprint(part) for name, part in made.named.items()}
        )
        if step == die_at:
            here.die()


@pytest.mark.parametrize("recipe", RECIPES)
def test_state_comes_back(trials: Trials, recipe: str) -> None:
    """Models, optimizers, schedules, averages, scalers and generators equal the undisturbed run's."""
    undisturbed, killed = trials("undisturbed"), trials("killed")
    undisturbed.run(train, recipe=recipe)
    killed.run(train, recipe=recipe, die_at=10, ends=-9)
    killed.run(train, recipe=recipe)
    killed.same_as(undisturbed)
    assert killed.events(Restored)[-1].step == 9


@pytest.mark.soak
@pytest.mark.parametrize("recipe", RECIPES)
def test_state_comes_back_at_every_turn(trials: Trials, recipe: str) -> None:
    """The same, killed in one run after every single turn."""
    undisturbed, killed = trials("undisturbed"), trials("killed")
    undisturbed.run(train, recipe=recipe)
    for step in range(13):
        killed.run(train, recipe=recipe, die_at=step, ends=-9)
    killed.run(train, recipe=recipe)
    killed.same_as(undisturbed)


# --- what can't be stored -----------------------------------------------------------------------------


class Odd:
    """Something with a state that no file can hold, or that doesn't come back."""

    def __init__(self, how: str) -> None:
        self.how, self.loads = how, 0

    def state_dict(self) -> dict[str, Any]:
        value = object() if self.how == "object" else self.loads
        return {"deep": [{"thing": value}]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loads += 1


class Hoarder(torch.optim.SGD):
    """An optimizer that keeps something strange from its first step on."""

    treasure: Any = None

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["treasure"] = self.treasure


def odd(here: Here, how: str = "") -> None:
    model = net()
    optimizer = Hoarder(model.parameters(), lr=0.1)
    optimizer.treasure = object() if how == "optimizer" else 1
    named: dict[str, Any] = {"odd": Odd(how)} if how in ("object", "changes") else {}
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, data=batch, **named)
    for step in run.steps(3):
        here.turn(step)
        F.mse_loss(model(next(run.data)[0]), torch.ones(6, 1)).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("how", "turns", "said"),
    [
        ("object", 0, "odd.deep.0.thing"),
        ("changes", 0, "the state is not what it was"),
        ("optimizer", 1, "treasure"),
    ],
)
def test_what_cannot_be_stored_fails_at_once(trial: Trial, how: str, turns: int, said: str) -> None:
    """What can't be stored or doesn't come back fails before the first step, or after it, with its path."""
    out = trial.run(odd, how=how, ends=1)
    assert said in out.splitlines()[-1]
    path = trial.folder / "trace-0.jsonl"
    assert path.read_text().count("\n") == turns
    if how != "object":  # that one was found before there was an attempt
        (exited,) = trial.wait_for(lambda: trial.events(WorkerExited))
        assert said in exited.error["message"]
    assert "finished at step 3" in trial.run(odd)


# --- wrappers, renamed and added layers (D22) ---------------------------------------------------------


def wrapped(here: Here, wrapper: str = "", die_at: int | None = None, change: str = "") -> None:
    here.join()
    seed(7)
    layers = {"first": nn.Linear(4, 8), "act": nn.Tanh(), "module": nn.Linear(8, 1)}
    if change == "renamed":
        layers = {"first": layers["first"], "act": nn.Tanh(), "head": layers["module"]}
    if change == "added":
        layers["extra"] = nn.Linear(1, 1)
    if change == "wider":
        layers = {"first": nn.Linear(4, 9), "act": nn.Tanh(), "module": nn.Linear(9, 1)}
    bare = nn.Sequential()
    for name, layer in layers.items():
        bare.add_module(name, layer)
    model: Any = bare
    if "ddp" in wrapper:
        model = DistributedDataParallel(model)
    trained = model
    if "compile" in wrapper:
        model = torch.compile(model)  # handed to Run as it is; calling it would take a compiler
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, data=batch, stage_every_steps=2)
    for step in run.steps(12):
        here.breathe(run)
        x, y = next(run.data)
        loss = F.mse_loss(trained(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        here.turn(step, loss=loss, weights=digest(bare.state_dict().values()))
        if step == die_at:
            here.die()


def test_names_are_free_of_wrappers(trials: Trials) -> None:
    """What was saved bare is loaded under DDP and compile, and the other way round: an exact trace."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(wrapped)
    trial.run(wrapped, die_at=3, ends=-9)
    trial.run(wrapped, wrapper="ddp", die_at=6, ends=-9)
    trial.run(wrapped, wrapper="compile ddp", die_at=9, ends=-9)
    trial.run(wrapped)
    trial.same_as(undisturbed)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            "renamed",
            [
                "model.module.weight: F32[1,8] in the snapshot, nothing in the script",
                "model.head.bias: nothing",
            ],
        ),
        ("added", ["model.extra.weight: nothing in the snapshot, F32[1,1] in the script"]),
        ("wider", ["model.first.weight: F32[8,4] in the snapshot, F32[9,4] in the script"]),
    ],
)
def test_another_model_is_refused(trials: Trials, change: str, named: list[str]) -> None:
    """A renamed, added or wider layer is an error that lists the names; nothing is trained, nothing lost."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(wrapped)
    trial.run(wrapped, die_at=5, ends=-9)
    before = trial.turns()
    out = trial.run(wrapped, change=change, ends=1)
    assert all(text in out for text in named), out
    assert "--fresh" in out
    assert trial.turns() == before
    trial.run(wrapped)
    trial.same_as(undisturbed)
    assert [event.word for event in trial.events(RunEnded)] == ["finished"]
