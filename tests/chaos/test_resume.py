"""Resume is exact: samples, random draws in workers, losses, weights; wherever and however often it stops."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from tests.chaos.conftest import Trials
from tests.runs import Here, Trial, dice, digest, seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import surefoot
from surefoot.core.events import AttemptJoined, Restored
from surefoot.core.exactness import word

pytestmark = pytest.mark.chaos


class Noisy(Dataset[Any]):
    """Samples that carry their number and a draw of each main generator, made where they are loaded."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> tuple[int, Tensor]:
        drawn = torch.rand(3), torch.tensor([random.random(), np.random.rand()])  # noqa: NPY002
        return i, torch.cat(drawn).float()


def classify(
    here: Here,
    n: int,
    die_at: int | None = None,
    how: str = "train",
    workers: int = 0,
    prefetch: int | None = None,
    pace_s: float = 0.0,
    **options: Any,
) -> None:
    """Train a small classifier on a shuffled dataset of 32 samples; `how` may be to leave without a turn."""
    seed(7)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    samples = options.pop("samples", 32)
    loader = DataLoader(
        Noisy(samples), batch_size=4, shuffle=True, num_workers=workers, prefetch_factor=prefetch, **options
    )
    named: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    run = surefoot.Run(here.run_dir, data=loader, stage_every_steps=2, **named)
    if how == "close":
        run.save()
        run.close()
        return
    if how == "die":
        here.die()
    for step in run.steps(n):
        here.breathe(run)
        ids, x = next(run.data)
        time.sleep(pace_s)
        loss = (model(x) - ids[:, None] / samples).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        weights = digest(model.state_dict().values())
        here.turn(
            step, ids=ids, x=digest([x]), loss=loss, lr=scheduler.get_last_lr(), dice=dice(), weights=weights
        )
        if step == die_at:
            here.die()


def resumed(trial: Trial) -> list[int]:
    """Return the steps that the run's attempts began with."""
    return [event.step for event in trial.events(Restored)]


def test_many_stops_in_one_epoch(trials: Trials) -> None:
    """D01: any number of stops in one epoch, and loads saved again without a step, lose no position."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(classify, n=60, samples=240)
    trial.run(classify, n=60, samples=240, die_at=30, ends=-9)
    for how, code in (("close", 0), ("die", -9), ("close", 0)):
        trial.run(classify, n=60, samples=240, how=how, ends=code)
    trial.run(classify, n=60, samples=240, die_at=40, ends=-9)
    trial.run(classify, n=60, samples=240, die_at=45, ends=-9)
    trial.run(classify, n=60, samples=240)
    trial.same_as(undisturbed)
    assert resumed(trial) == [0, 30, 30, 30, 30, 40, 44]
    ids = [i for turn in trial.turns().values() for i in turn["ids"]]
    assert sorted(ids) == list(range(240))


def test_later_epochs(trials: Trials) -> None:
    """D02: the epoch is part of the position: stops inside the first, second and third, and at their ends."""
    undisturbed, inside, at_ends = trials("undisturbed"), trials("inside"), trials("at ends")
    undisturbed.run(classify, n=24)
    for step in (3, 12, 20):
        inside.run(classify, n=24, die_at=step, ends=-9)
    for step in (7, 15):
        at_ends.run(classify, n=24, die_at=step, ends=-9)
    for trial in (inside, at_ends):
        trial.run(classify, n=24)
        trial.same_as(undisturbed)
    epochs = [
        [turn["ids"] for step, turn in inside.turns().items() if step // 8 == epoch] for epoch in range(3)
    ]
    assert all(sorted(chain.from_iterable(epoch)) == list(range(32)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_queues_are_full(trials: Trials) -> None:
    """D03: what workers have fetched ahead counts for nothing; every attempt has another number of them."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(classify, n=20)
    matrix = [(1, 2), (2, 4), (4, 2), (1, 4), (2, 2), (4, 4), (0, None)]
    for number, (workers, prefetch) in enumerate(matrix, 1):
        last = number == len(matrix)
        trial.run(
            classify,
            n=20,
            workers=workers,
            prefetch=prefetch,
            persistent_workers=number % 2 == 0 and not last,
            pace_s=0.03,
            die_at=None if last else 2 * number + 2,
            ends=0 if last else -9,
        )
    trial.same_as(undisturbed)
    assert resumed(trial) == sorted(resumed(trial))
    assert resumed(trial)[-1] > 10


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("prefetch", [2, 4])
def test_queues_are_full_at_every_turn(trials: Trials, workers: int, prefetch: int) -> None:
    """D03, the whole matrix: killed in one run after every turn."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(classify, n=20)
    ahead = prefetch if workers else None
    for step in range(19):
        trial.run(classify, n=20, workers=workers, prefetch=ahead, pace_s=0.05, die_at=step, ends=-9)
    trial.run(classify, n=20, workers=workers, prefetch=ahead)
    trial.same_as(undisturbed)


# --- other kinds of data ------------------------------------------------------------------------------


class Ring:
    """An iterable with a state, of which an epoch has five batches."""

    def __init__(self) -> None:
        self.given, self.turns = 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.given < 5:
            self.given += 1
            yield torch.tensor([100.0 * self.turns + self.given])
        self.given, self.turns = 0, self.turns + 1

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given, "turns": self.turns, "array": np.arange(self.given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given, self.turns = state["given"], state["turns"]
        assert len(state["array"]) == self.given


class Plain:
    """What can only be iterated: seven batches, each with a draw in it."""

    def __iter__(self) -> Iterator[Tensor]:
        for i in range(7):
            yield torch.tensor([i, random.random()])


class Stream(IterableDataset[Any]):
    """torchdata's protocol: an iterable dataset that tells its state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 18:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def places(place: int) -> Tensor:
    return torch.tensor([place, random.random()])


def many_loaders(here: Here, die_at: int | None = None) -> None:
    """Draw from seven kinds of data by name, from some twice in a turn, from one every third turn."""
    seed(7)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = {
        "loader": DataLoader(Noisy(10), batch_size=3, shuffle=True, drop_last=True),
        "stateful": StatefulDataLoader(Noisy(16), batch_size=4, shuffle=True, num_workers=1),
        "stream": StatefulDataLoader(Stream(), batch_size=4),
        "function": places,
        "sequence": [torch.tensor([i]) for i in range(3)],
        "ring": Ring(),
        "plain": Plain(),
    }
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, data=data, stage_every_steps=2)
    for step in run.steps(16):
        here.breathe(run)
        drawn = {name: next(run.data[name]) for name in data if name != "sequence" or step % 3 == 0}
        again = {name: next(run.data[name]) for name in ("stream", "plain", "loader")}
        (model(torch.ones(2, 1)) - drawn["ring"]).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        here.turn(step, drawn=drawn, again=again, weights=digest(model.parameters()))
        if step == die_at:
            here.die()


def test_every_kind_of_data(trials: Trials) -> None:
    """Several loaders by name, of every kind that can be read, go on where finished turns had left them."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(many_loaders)
    trial.run(many_loaders, die_at=6, ends=-9)
    trial.run(many_loaders, die_at=11, ends=-9)
    out = trial.run(many_loaders)
    trial.same_as(undisturbed)
    assert resumed(trial) == [0, 6, 10]
    assert "drawn and discarded" in out


def one_loader(here: Here, kind: str, die_at: int | None = None) -> None:
    seed(7)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data: Any = {"plain": Plain(), "function": places, "ring": Ring()}[kind]
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, data=data, stage_every_steps=4)
    for step in run.steps(12):
        here.breathe(run)
        drawn = next(run.data)
        loss = model(drawn.expand(2)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        here.turn(step, drawn=drawn)
        if step == die_at:
            here.die()


@pytest.mark.parametrize(
    ("kind", "level", "said", "exactness"),
    [
        ("function", "exact", None, "bit-exact"),
        ("ring", "order_only", "other random draws", "approximate: the order of the data is exact"),
        ("plain", "drawn", "drawn and discarded", "approximate: the data was drawn and discarded"),
    ],
)
def test_what_a_resume_can_do_is_told(
    trial: Trial, kind: str, level: str, said: str | None, exactness: str
) -> None:
    """What only comes back by drawing up to it, or without its draws, is said so: in words and on record."""
    assert "discarded" not in trial.run(one_loader, kind=kind, die_at=7, ends=-9)
    out = trial.run(one_loader, kind=kind)
    assert resumed(trial) == [0, 4]
    assert trial.events(AttemptJoined)[-1].data["level"] == level
    assert said is None or said in out.splitlines()[1]
    assert word(trial.state().exactness, level).startswith(exactness)
