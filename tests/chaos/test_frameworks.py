"""Frameworks that own their loop, and models without torch: torch can't be imported there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.conftest import Trials
from tests.runs import DEADLINE_S, Trial

from surefoot.core.events import AttemptJoined, Restored, RunEnded

pytestmark = pytest.mark.chaos

NUMPY = '''
import json, os, signal, sys


class NoTorch:
    """An import hook that makes `import torch` fail, whoever tries."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("there is no torch in this process")


sys.meta_path.insert(0, NoTorch())
import numpy as np
import surefoot
from surefoot.loop.state import Box

WORDS = {"float64": "F64", "float32": "F32", "int64": "I64"}


class Ridge:
    """A linear model in NumPy with momentum, and a generator of its own."""

    def __init__(self):
        self.arrays = {"w": np.zeros(3), "bias": np.zeros((), np.float32), "counts": np.zeros(2, np.int64)}
        self.dice = np.random.default_rng(3)

    def boxes(self):
        arrays = self.arrays.items()
        return [Box(f"ridge.{name}", WORDS[array.dtype.name], array.shape) for name, array in arrays]

    def plain(self):
        return {"dice": self.dice.bit_generator.state}

    def copy_out(self, into):
        for name, array in self.arrays.items():
            into[f"ridge.{name}"][:] = array.tobytes()

    def copy_in(self, tensors, plain):
        if tensors.keys() != {f"ridge.{name}" for name in self.arrays}:
            raise surefoot.StateMismatch(f"expected {', '.join(self.arrays)}, got {', '.join(tensors)}")
        for name, array in self.arrays.items():
            array[...] = np.frombuffer(tensors[f"ridge.{name}"], array.dtype).reshape(array.shape)
        self.dice.bit_generator.state = plain["dice"]

    def learn(self, x, y):
        x = x + self.dice.normal(scale=0.01, size=x.shape)
        error = x @ self.arrays["w"] + self.arrays["bias"] - y
        self.arrays["w"] -= 0.1 * x.T @ error / len(y) + 0.001 * self.arrays["w"]
        self.arrays["bias"] -= np.float32(0.1 * error.mean())
        self.arrays["counts"] += (1, len(y))
        return float((error**2).mean())


def batch(place):
    x = np.random.rand(8, 3)  # seeded by the place
    return x, x @ (1.0, -2.0, 0.5) + 3.0


def record(step, model, loss):
    arrays = {name: array.tobytes().hex() for name, array in model.arrays.items()}
    with open("trace-0.jsonl", "a") as file:
        print(json.dumps({"step": step, "loss": loss.hex(), **arrays}), file=file)
'''

OWN_LOOP = """
model = Ridge()
n, die_at = int(sys.argv[1]), int(sys.argv[2])
run = surefoot.Run("run", state=model, data=batch, stage_every_steps=3, seed=5)
for step in run.steps(n):
    loss = model.learn(*next(run.data))
    run.log(loss=loss)
    record(step, model, loss)
    if step == die_at:
        os.kill(os.getpid(), signal.SIGKILL)
assert "torch" not in sys.modules
"""

FRAMEWORK = '''
class Trainer:
    """A framework that owns its loop: epochs, callbacks, and no idea of surefoot."""

    def __init__(self, model, epochs, batches, callbacks):
        self.model, self.epochs, self.batches, self.callbacks = model, epochs, batches, callbacks
        self.done = 0  # batches so far, over all epochs

    def tell(self, what, **about):
        for callback in self.callbacks:
            getattr(callback, what)(self, **about)

    def fit(self, draw):
        for epoch in range(self.done // self.batches, self.epochs):
            while self.done < (epoch + 1) * self.batches:
                self.tell("batch_begins")
                loss = self.model.learn(*draw())
                self.done += 1
                self.tell("batch_ends", loss=loss)
        self.tell("fit_ends")


class Surefoot:
    """The callback that a framework's integration would be."""

    def __init__(self, run):
        self.run = run

    def batch_begins(self, trainer):
        self.run.begin()

    def batch_ends(self, trainer, loss):
        record(self.run.step, trainer.model, loss)
        if self.run.step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.run.end(loss=loss)

    def fit_ends(self, trainer):
        self.run.finish()


model = Ridge()
n, die_at = int(sys.argv[1]), int(sys.argv[2])
run = surefoot.Run("run", state=model, data=batch, stage_every_steps=3, seed=5)
trainer = Trainer(model, epochs=n // 4, batches=4, callbacks=[Surefoot(run)])
trainer.done = run.step
trainer.fit(lambda: next(run.data))
assert "torch" not in sys.modules
'''


def play(trial: Trial, code: str, n: int, die_at: int = -1, ends: int = 0) -> str:
    """Run a script in a process of its own, from a file beside the run."""
    script = trial.folder / "script.py"
    script.write_text(NUMPY + code)
    done = subprocess.run(
        [sys.executable, script.name, str(n), str(die_at)],
        cwd=trial.folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd() / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == ends, done.stdout + trial.told()
    return done.stdout


@pytest.mark.parametrize("code", [OWN_LOOP, FRAMEWORK], ids=["steps", "begin and end"])
def test_without_torch(trials: Trials, code: str) -> None:
    """A NumPy model, in a loop of its own or a framework's, is killed twice and comes back bit-equal."""
    undisturbed, killed = trials("undisturbed"), trials("killed")
    play(undisturbed, code, 16)
    play(killed, code, 16, die_at=5, ends=-9)
    assert "resuming at step" in play(killed, code, 16, die_at=10, ends=-9)
    assert "finished at step 16" in play(killed, code, 16)
    killed.same_as(undisturbed)
    assert [event.word for event in killed.events(RunEnded)] == ["finished"]
    assert killed.events(Restored)[-1].step > 3
    assert [event.batch for event in killed.kept()] == list(range(1, 17))


def test_the_two_loops_are_one_core(trials: Trials) -> None:
    """What `run.steps` does and what `begin` and `end` do is the same run: one goes on where the other was."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    play(undisturbed, OWN_LOOP, 16)
    play(trial, OWN_LOOP, 16, die_at=6, ends=-9)
    out = play(trial, FRAMEWORK, 16)
    assert "script.py changed since" in out
    trial.same_as(undisturbed)
    changed = [change["key"] for change in trial.events(AttemptJoined)[-1].changed]
    assert changed == ["code.hash"]


def test_a_framework_that_never_finishes(trials: Trials) -> None:
    """A script that ends without `finish` has its last state saved, and goes on from there."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    play(undisturbed, OWN_LOOP, 12)
    forgetful = FRAMEWORK.replace("self.run.finish()", "pass")
    assert "stopped at step 8" in play(trial, forgetful, 8)
    (ended,) = trial.events(RunEnded)
    assert ended.word == "stopped"
    assert "resuming at step 8" in play(trial, FRAMEWORK, 12)
    trial.same_as(undisturbed)


def test_the_framework_is_small() -> None:
    """The stand-in for a framework, with its callback, has about forty lines."""
    assert len(FRAMEWORK.strip().splitlines()) < 50
