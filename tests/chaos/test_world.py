"""One to four ranks over gloo: one is killed, or all, or the agent, or everything; and it is as if not."""

from __future__ import annotations

import random
import time
from itertools import chain
from typing import Any

import pytest
import torch
from tests.chaos.conftest import Trials
from tests.runs import Here, Trial, dice, digest, seed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import surefoot
from surefoot.core.events import ConditionSeen, Restored, SnapshotCommitted, StepDone
from surefoot.journal import lease

pytestmark = pytest.mark.chaos


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, i: int) -> tuple[int, Tensor]:
        return i, torch.rand(4)


def spread(
    here: Here,
    n: int = 14,
    die_at: int | None = None,
    who: int | None = None,
    pace_s: float = 0.0,
    breathe: bool = True,
    grow_at: int | None = None,
    **settings: Any,
) -> None:
    """Train under DDP; rank `who`, or every one, dies in turn `die_at`.

    Rank 0 asks for a save in turn `grow_at` - 1, and the last one keeps a lot from the next turn on, so that
    it has no room for it when the save is due.
    """
    here.join()
    seed(7)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    )
    torch.manual_seed(100 + here.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=200)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
    named: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    run = surefoot.Run(here.run_dir, data=loader, seed=5, **{"stage_every_steps": 3, **settings}, **named)
    for step in run.steps(n):
        if breathe:
            here.breathe(run)
        time.sleep(pace_s)
        ids, x = next(run.data)
        loss = (model(x) - ids[:, None] / 48).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if grow_at is not None and step == grow_at - 1 and here.rank == 0:
            run.save()
        if step == grow_at and here.rank == here.world_size - 1:
            run.state["text"] = "x" * 300_000
        weights = digest(model.state_dict().values())
        here.turn(step, ids=ids, loss=loss, dice=dice(), weights=weights, state=sorted(run.state))
        if step == die_at and who in (None, here.rank):
            here.die()


def same(trial: Trial, undisturbed: Trial, ranks: int) -> None:
    """Check both runs turn by turn, the second pass of first turns only, and that they ended alike."""
    trial.same_as(undisturbed, ranks, twice=True)
    ids = [[i for turn in trial.turns(rank, twice=True).values() for i in turn["ids"]] for rank in range(ranks)]
    epoch = sorted(chain.from_iterable(each[: 48 // ranks] for each in ids))
    assert epoch == list(range(48)), "the ranks' parts of the first epoch are not the dataset"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_are_killed(trials: Trials, ranks: int) -> None:
    """One rank is killed, then all: samples, draws, losses and weights equal the undisturbed run's."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(spread, ranks=ranks)
    trial.run(spread, ranks=ranks, die_at=7, who=ranks - 1, ends=None)
    trial.run(spread, ranks=ranks, die_at=10, ends=None)
    trial.run(spread, ranks=ranks)
    same(trial, undisturbed, ranks)
    assert [event.step for event in trial.events(Restored)] == [0, 6, 9]
    # What was done once and done again to regroup DDP's buckets is on record once.
    done = [(event.branch, event.step) for event in trial.events(StepDone)]
    assert len(done) == len(set(done))
    assert not trial.events(ConditionSeen)


def test_the_agent_is_killed_while_ranks_train(trials: Trials) -> None:
    """The agent is killed again and again: no rank notices, no line is lost, saves go on."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(spread, ranks=2, n=60)
    instants = random.Random(5)
    workers = trial.start(spread, ranks=2, n=60, pace_s=0.05, breathe=False, save_every_steps=5)
    trial.wait_for_step(2)
    killed = 0
    while killed < 5 and not workers[0].ended(instants.uniform(0.1, 0.8)):
        killed += trial.kill_agent() is not None
    assert [worker.code() for worker in workers] == [0, 0], trial.told()
    same(trial, undisturbed, 2)
    assert killed >= 2
    assert lease.newest_term(trial.run_dir) > killed
    assert len(trial.events(Restored)) == 1
    assert [event.step for event in trial.kept()] == list(range(60))
    assert max(event.step for event in trial.events(SnapshotCommitted)) == 60


def everything_is_killed(trials: Trials, number: int, times: int) -> None:
    """Start, and kill at a random instant one rank, all, the agent, or everything; in the end compare."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(spread, ranks=2, n=40)
    instants = random.Random(number)
    struck: list[str] = []
    for _ in range(times):
        workers = trial.start(spread, ranks=2, n=40, pace_s=0.02, breathe=False, save_every_steps=4)
        what = instants.choice(["rank 0", "rank 1", "ranks", "agent, then ranks", "everything"])
        workers[0].ended(instants.uniform(0.2, 2.5))
        struck.append(what)
        if "agent" in what or what == "everything":
            trial.kill_agent()
        workers[0].ended(instants.uniform(0.0, 0.5) if "then" in what else 0.0)
        for worker in [workers[int(what[-1])]] if what[-1].isdigit() else workers:
            worker.signal()
        deadline = time.monotonic() + 5.0
        for worker in workers:  # ranks that wait for a dead one before they have met have nobody but us
            if not worker.ended(max(0.0, deadline - time.monotonic())):
                worker.signal()
        codes = [worker.code() for worker in workers]
        if codes == [0, 0]:
            break
    trial.run(spread, ranks=2, n=40)
    try:
        same(trial, undisturbed, 2)
    except AssertionError as error:
        raise AssertionError(f"seed {number}, struck {struck}: {error}") from error
    lines = trial.kept()
    assert [event.step for event in lines] == list(range(40))


@pytest.mark.parametrize("number", [1, 2])
def test_everything_is_killed(trials: Trials, number: int) -> None:
    """Ranks, agent or everything killed at random instants of their lives: the trace is the undisturbed one."""
    everything_is_killed(trials, number, times=4)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10, 40))
def test_everything_is_killed_often(trials: Trials, number: int) -> None:
    """The same, longer."""
    everything_is_killed(trials, number, times=10)


def test_one_rank_outgrows_its_layout(trials: Trials) -> None:
    """A save that one rank couldn't stage, its plain values having outgrown their room, is made good by all."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(spread, ranks=2, grow_at=6)
    trial.run(spread, ranks=2, grow_at=6, stage_every_steps=100, slots=2, die_at=12, ends=None)
    assert [event.step for event in trial.events(Restored)] == [0]
    trial.run(spread, ranks=2, grow_at=6, stage_every_steps=100, slots=2)
    resumed = trial.events(Restored)[-1].step
    assert 7 < resumed < 12
    same(trial, undisturbed, 2)
    saved = [event.step for event in trial.events(SnapshotCommitted)]
    assert saved == [0, resumed, 14]
    assert not trial.state().pending
