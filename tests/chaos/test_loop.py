"""The loop as its user meets it: turns, saves, knobs, words, and every way to leave it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.chaos.conftest import Trials
from tests.runs import Here, Trial, digest, seed
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import surefoot
from surefoot.core.events import (
    ChangeExpected,
    KnobSet,
    Noted,
    OrderFailed,
    PhaseEntered,
    Restored,
    RunEnded,
    SignalReceived,
    SnapshotCommitted,
    WorkerExited,
)

pytestmark = pytest.mark.chaos


class Learner:
    """A model that a turn takes a fraction of a millisecond to train."""

    def __init__(self) -> None:
        seed(7)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def run(self, here: Here, **settings: Any) -> surefoot.Run:
        return surefoot.Run(here.run_dir, model=self.model, optimizer=self.optimizer, data=numbers, **settings)

    def gradients(self, here: Here, run: surefoot.Run, weight: float = 1.0) -> Tensor:
        """Draw a batch, add its gradients, log its loss."""
        here.breathe(run)
        loss = self.model(next(run.data)).pow(2).mean()
        (loss * weight).backward()
        run.log(loss=loss, weight=weight)
        return loss

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def weights(self) -> str:
        return digest(self.model.state_dict().values())


def numbers(place: int) -> Tensor:
    """Return batch `place`; it may draw, since the generators are seeded by the place."""
    return torch.rand(4, 3)


def plain(here: Here, n: int = 8, die_at: int | None = None, **settings: Any) -> None:
    learner = Learner()
    run = learner.run(here, **settings)
    for step in run.steps(n):
        loss = learner.gradients(here, run)
        learner.step()
        here.turn(step, loss=loss, weights=learner.weights)
        if step == die_at:
            here.die()
    print("behind the loop")


def test_steps_count_as_range_does(trials: Trials) -> None:
    """`steps(n)` yields range(n); a finished run started again does nothing, and goes on for a larger n."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(plain, n=5)
    assert list(trial.turns()) == [0, 1, 2, 3, 4]
    assert out.splitlines()[0].endswith("run: attempt 1 starts at step 0")
    assert "finished at step 5: 5 steps done\nbehind the loop" in out
    again = trial.run(plain, n=5)
    assert "already finished at step 5" in again
    assert "behind the loop" in again
    assert list(trial.turns()) == [0, 1, 2, 3, 4]
    assert "resuming at step 5, saved" in trial.run(plain, n=8)
    undisturbed.run(plain, n=8)
    trial.same_as(undisturbed)
    assert [event.word for event in trial.events(RunEnded)] == ["finished"] * 3
    assert trial.state().finished == (8, 8)


# --- accumulation, and saves at an awkward moment -----------------------------------------------------


def micro_batches(here: Here, die_at: int | None = None) -> None:
    """Three batches a turn, of which the last is larger."""
    learner = Learner()
    run = learner.run(here, stage_every_steps=2)
    for step in run.steps(8):
        losses = [learner.gradients(here, run, weight).item() for weight in (1.0, 1.0, 2.0)]
        norm = nn.utils.clip_grad_norm_(learner.model.parameters(), 1.0)
        run.log(grad_norm=norm, noise=float(step))
        learner.step()
        if step == 5:
            run.log(loss=float("nan"))
        here.turn(step, losses=losses, weights=learner.weights)
        if step == die_at:
            here.die()


def test_several_batches_in_a_turn(trials: Trials) -> None:
    """A turn that draws several batches counts them all; its loss is their mean by weight, its NaN its own."""
    undisturbed, killed = trials("undisturbed"), trials("killed")
    undisturbed.run(micro_batches)
    killed.run(micro_batches, die_at=4, ends=-9)
    killed.run(micro_batches)
    killed.same_as(undisturbed)
    kept = undisturbed.kept()
    assert [event.batch for event in kept] == [3 * (step + 1) for step in range(8)]
    for event in kept:
        if event.step == 5:
            continue
        a, b, c = (float.fromhex(text) for text in undisturbed.turns()[event.step]["losses"])
        assert event.loss == pytest.approx((a + b + 2 * c) / 4)
        assert event.grad_norm is not None
        assert event.values == {"noise": float(event.step)}
        assert event.lr == 0.05
    assert [step for step, event in enumerate(kept) if event.loss != event.loss] == [5]


def window_of_four(here: Here, how: str = "") -> None:
    """One update every fourth turn; a save is asked for in turn 5, the second of a window."""
    learner = Learner()
    run = learner.run(here, stage_every_steps=100, save_every_steps=5 if how == "interval" else None)
    for step in run.steps(100):
        loss = learner.gradients(here, run)
        if step % 4 == 3:
            learner.step()
        here.turn(step, loss=loss, weights=learner.weights)
        if run.attempt > 1 or not how:
            continue
        if step == 5 and how == "call":
            run.save()
        if step == 5 and how == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        if step > 5 and how != "signal":
            time.sleep(0.02)
            if any(event.step for event in here.events(SnapshotCommitted)):
                here.die()


@pytest.mark.parametrize("how", ["call", "interval", "signal"])
def test_a_save_in_a_window_waits_for_its_end(trials: Trials, how: str) -> None:
    """A save asked for inside an accumulation window takes effect at the end of one, and says at which step."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(window_of_four)
    first = trial.run(window_of_four, how=how, ends=75 if how == "signal" else -9)
    second = trial.run(window_of_four, how=how)
    resumed = trial.events(Restored)[-1].step
    assert resumed % 4 == 0
    assert 8 <= resumed < 100
    assert f"{'preempted at' if how == 'signal' else 'saving'} step {resumed}" in first
    assert f"resuming at step {resumed}, saved" in second
    trial.same_as(undisturbed)


# --- what a person asks of a live run -----------------------------------------------------------------


def slow(here: Here, n: int = 1000) -> None:
    """Turns of some 10 ms with a knob in them."""
    learner = Learner()
    run = learner.run(here, stage_every_steps=4)
    for step in run.steps(n):
        learner.optimizer.param_groups[0]["lr"] = lr = run.knob("lr", 0.05)
        learner.gradients(here, run)
        learner.step()
        time.sleep(0.01)
        here.turn(step, lr=lr)


def test_a_person_steers_a_live_run(trial: Trial) -> None:
    """Requests in the inbox set knobs, save, note and stop; what was set holds on after a kill."""
    (worker,) = trial.start(slow)
    trial.wait_for_step(3)
    trial.leave("set", name="lr", value=0.01)
    (knob,) = trial.wait_for(lambda: trial.events(KnobSet))
    trial.leave("set", name="learning_rate", value=1.0)
    (failed,) = trial.wait_for(lambda: trial.events(OrderFailed))
    assert "no knob 'learning_rate'; it asks for: lr" in failed.outcome
    trial.leave("note", text="rather slow")
    trial.leave("save")
    trial.wait_for(lambda: any(event.step > knob.from_step for event in trial.events(SnapshotCommitted)))
    trial.wait_for_step(knob.from_step + 8)
    worker.signal()
    assert worker.code() == -9
    (before,) = trial.start(slow)
    trial.wait_for_step(max(trial.turns()) + 2)
    trial.leave("stop", why="lunch")
    assert before.code() == 83
    assert "stopped at step" in before.text
    assert "lunch" in before.text
    (noted,) = trial.events(Noted)
    assert (noted.text, noted.who) == ("rather slow", "tester@here")
    turns = trial.turns()
    assert {step: turn["lr"] for step, turn in turns.items()} == {
        step: (0.05 if step < knob.from_step else 0.01).hex() for step in turns
    }
    ended = trial.events(RunEnded)[-1]
    assert (ended.word, ended.exit_code, ended.reason) == ("stopped", 83, "lunch")
    last = max(turns) + 1
    assert f"resuming at step {last}" in trial.run(slow, n=last + 1)
    assert not trial.state().pending


# --- values, phases, remarks, hooks -------------------------------------------------------------------


def with_values(here: Here, die_at: int | None = None) -> None:
    learner = Learner()
    run = learner.run(here, stage_every_steps=3)
    run.on_restore(lambda: print(f"rebuilt at step {run.step}"))
    for step in run.steps(10):
        loss = learner.gradients(here, run).item()
        learner.step()
        run.state["best"] = min(run.state.get("best", 9.0), loss)
        run.state["seen"] = (*run.state.get("seen", ()), step)
        if step == 2:
            run.note("a remark")
            run.expect_change("another mix")
        if step % 5 == 4:
            with run.phase("eval"):
                time.sleep(0.02)
        here.turn(step, best=run.state["best"], seen=run.state["seen"])
        if step == die_at:
            here.die()
    try:
        run.state["model"] = learner.model
    except surefoot.UnstorableState as error:
        print(error)


def test_values_phases_and_hooks(trials: Trials) -> None:
    """`run.state` goes back with the model; hooks are called at once after a resume; remarks are on record."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    assert "rebuilt" not in undisturbed.run(with_values)
    assert "rebuilt" not in trial.run(with_values, die_at=7, ends=-9)
    out = trial.run(with_values)
    resumed = trial.events(Restored)[-1].step
    assert 0 < resumed < 8
    assert out.count("rebuilt") == 1
    assert f"rebuilt at step {resumed}" in out
    assert "run.state['model'] is a torch.nn.modules.container.Sequential" in out
    trial.same_as(undisturbed)
    assert [(event.text, event.who) for event in trial.events(Noted)] == [("a remark", "the script")]
    assert [event.text for event in trial.events(ChangeExpected)] == ["another mix"]
    assert [event.phase for event in undisturbed.events(PhaseEntered)] == ["eval", "eval"]
    assert undisturbed.state().ledger.accounts["phase:eval"] >= 2 * 20e6


# --- averaged weights swapped in ----------------------------------------------------------------------


def with_average(here: Here, how: str = "") -> None:
    """Every third turn ends with an evaluation of averaged weights, put in place of the raw ones."""
    learner = Learner()
    ema = AveragedModel(learner.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    settings: dict[str, Any] = {"save_every_steps": 2} if how == "interval" else {}
    run = surefoot.Run(
        here.run_dir,
        model=learner.model,
        optimizer=learner.optimizer,
        ema=ema,
        data=numbers,
        stage_every_steps=1,
        **settings,
    )
    mine: list[Tensor] = list(learner.model.parameters())
    average: list[Tensor] = list(ema.module.parameters())
    for step in run.steps(60):
        learner.gradients(here, run)
        learner.step()
        ema.update_parameters(learner.model)
        raw, score = learner.weights, 0.0
        if step % 3 == 2:
            with run.swapped(), run.phase("eval"), torch.no_grad():
                kept = [parameter.clone() for parameter in mine]
                torch._foreach_copy_(mine, average)
                if step == 5 and run.attempt == 1 and how == "call":
                    run.save()
                if step == 5 and run.attempt == 1 and how == "signal":
                    os.kill(os.getpid(), signal.SIGTERM)
                score = learner.model(torch.ones(1, 3)).item()
                torch._foreach_copy_(mine, kept)
        here.turn(step, raw=raw, average=digest(average), averaged=ema.n_averaged, score=score)
        if step > 8 and run.attempt == 1 and how:
            time.sleep(0.02)
            if any(event.step for event in here.events(SnapshotCommitted)):
                here.die()


@pytest.mark.parametrize("how", ["call", "interval", "signal"])
def test_swapped_weights_are_never_saved(trials: Trials, how: str) -> None:
    """A save asked for while averaged weights are swapped in holds the raw ones, and the average apart."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(with_average)
    trial.run(with_average, how=how, ends=75 if how == "signal" else -9)
    saved = {event.step: event for event in trial.events(SnapshotCommitted) if event.step}
    assert saved
    turns = trial.turns()
    assert max(turns) < 59
    for folder in (trial.run_dir / "checkpoints").iterdir():
        step = int(folder.name.split(".")[0])
        if step:
            tensors = load_file(folder / "rank-00000.safetensors")
            raw = [tensors[f"model.{name}"] for name, _ in Learner().model.named_parameters()]
            assert digest(raw) == turns[step - 1]["raw"], step
    trial.run(with_average, how=how)
    trial.same_as(undisturbed)


def swapped_over_turns(here: Here) -> None:
    """A framework's callbacks swap weights in before turn 3 ends and out before turn 6 does."""
    learner = Learner()
    run = learner.run(here, stage_every_steps=1)
    swap = run.swapped()
    for _ in range(9):
        step = run.begin()
        learner.gradients(here, run)
        learner.step()
        if step == 2:
            run.save()
        if step == 3:
            swap.__enter__()
        if step == 6:
            swap.__exit__(None, None, None)
        run.end()
        time.sleep(0.05)
    run.finish()


def test_nothing_is_staged_while_weights_are_swapped(trial: Trial) -> None:
    """A swap that lasts over boundaries puts every snapshot off, and the save comes when it is over."""
    out = trial.run(swapped_over_turns)
    saved = {event.step for event in trial.events(SnapshotCommitted)}
    assert not saved & {4, 5, 6}, out
    assert saved & {7, 8}


# --- ways to leave ------------------------------------------------------------------------------------


def left(here: Here, how: str, n: int = 10) -> None:
    """Leave the loop in turn 4 of the first attempt, after its update; `held` holds its iterator."""
    learner = Learner()
    run = learner.run(here, stage_every_steps=2)
    held: Iterator[int] | None = run.steps(n) if how.startswith("held") else None

    def train() -> None:
        for step in held or (turn for turn in run.steps(n)) if how in WRAPPED else run.steps(n):
            if how == "break early" and step == 4 and run.attempt == 1:
                break
            loss = learner.gradients(here, run)
            learner.step()
            here.turn(step, loss=loss, weights=learner.weights)
            if step != 4 or run.attempt != 1:
                continue
            if how == "return":
                return
            if how.endswith("error"):
                raise ZeroDivisionError("in the body")
            if how == "error in the model":
                learner.model(torch.ones(1, 2))
            if how.startswith("exit"):
                sys.exit(int(how.removeprefix("exit ")))
            if how:
                break

    train()
    if how == "held, finish":
        run.finish()
    print("behind the loop")


WRAPPED = ("wrapped", "wrapped error", "held", "held, finish")


@pytest.mark.parametrize("how", ["break", "break early", "return", "wrapped", "held, finish"])
def test_leaving_the_loop_finishes_the_run(trials: Trials, how: str) -> None:
    """`break` and `return` finish the run at the step they were at; only a larger n makes it go on."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(left, how=how)
    done = 4 if how == "break early" else 5
    assert f"finished at step {done}" in out
    assert "behind the loop" in out
    assert max(trial.turns()) == done - 1
    (ended,) = trial.events(RunEnded)
    assert (ended.word, ended.exit_code) == ("finished", 0)
    if how != "break":
        return
    assert f"already finished at step {done}" in trial.run(left, how=how)
    assert "finished at step 12" in trial.run(left, how=how, n=12)
    undisturbed.run(left, how="", n=12)
    trial.same_as(undisturbed)


def test_a_held_iterator_tells_nothing(trials: Trials) -> None:
    """Where a variable holds the iterator, `break` can't be told from an exception: the run isn't finished."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(left, how="held")
    assert "stopped at step" in out
    assert "the script ended in turn 4" in out
    trial.run(left, how="held")
    undisturbed.run(left, how="")
    trial.same_as(undisturbed)


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("error", 1, "ZeroDivisionError: in the body"),
        ("wrapped error", 1, "ZeroDivisionError: in the body"),
        ("error in the model", 1, "mat1 and mat2 shapes cannot be multiplied"),
        ("exit 3", 3, ""),
        ("exit 0", 0, ""),
    ],
)
def test_an_exception_is_no_end(trials: Trials, how: str, code: int, said: str) -> None:
    """An error or an exit call in the body never finishes the run; it keeps its traceback and exit code."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(left, how=how, ends=code)
    assert said in out
    assert "behind the loop" not in out
    assert not [event for event in trial.events(RunEnded) if event.word == "finished"]
    if said:
        assert out.count("Traceback") == 1
        (exited,) = trial.wait_for(lambda: trial.events(WorkerExited))
        assert said in f"{exited.error['type']}: {exited.error['message']}"
        assert "in train" in exited.error["stack"]
    second = trial.run(left, how=how)
    assert "resuming at step" in second
    assert "finished at step 10" in second
    undisturbed.run(left, how="")
    trial.same_as(undisturbed)


def caught(here: Here) -> None:
    """An error in the body is caught around the loop, and the script ends as if all were well."""
    try:
        left(here, "error")
    except ZeroDivisionError:
        print("never mind")


def test_a_caught_exception_is_no_end(trials: Trials) -> None:
    """A loop that an exception left is not finished, even if the script catches it and ends well."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    trial.run(caught)
    assert not [event for event in trial.events(RunEnded) if event.word == "finished"]
    trial.run(left, how="error")
    undisturbed.run(left, how="")
    trial.same_as(undisturbed)


def signalled(here: Here, number: int = 0, again: int = 0) -> None:
    """A signal comes in turn 4, a second one in turn `again`, if any; the script has handlers of its own."""
    learner = Learner()

    def mine(number: int, _: Any) -> None:
        print(f"the script hears {number}", flush=True)

    signal.signal(signal.SIGTERM, mine)
    run = learner.run(here, stage_every_steps=2)
    try:
        for step in run.steps(10):
            loss = learner.gradients(here, run)
            learner.step()
            here.turn(step, loss=loss, weights=learner.weights)
            if number and step == 4 and run.attempt == 1:
                os.kill(os.getpid(), number)
                if again:
                    os.kill(os.getpid(), again)
    finally:
        assert again or signal.getsignal(signal.SIGTERM) is mine
        assert again or signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert again or sys.excepthook is sys.__excepthook__
    print("behind the loop")


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 83, "stopped"), (signal.SIGTERM, 75, "preempted")]
)
def test_signals_end_the_run_at_a_boundary(trials: Trials, number: int, code: int, word: str) -> None:
    """Ctrl-C and SIGTERM save at the next boundary and leave with their codes; handlers are put back."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(signalled, number=number, ends=code)
    assert f"{word} at step" in out
    assert "behind the loop" not in out
    assert ("the script hears 15" in out) == (number == signal.SIGTERM)
    (ended,) = trial.events(RunEnded)
    assert (ended.word, ended.exit_code) == (word, code)
    assert [event.signal for event in trial.events(SignalReceived)] == [number]
    last = max(trial.turns()) + 1
    assert last in (5, 6, 7)
    assert f"resuming at step {last}, saved" in trial.run(signalled)
    undisturbed.run(signalled)
    trial.same_as(undisturbed)


def test_a_second_interrupt_is_at_once(trial: Trial) -> None:
    """Ctrl-C twice in one turn is KeyboardInterrupt, and the run goes on from its newest snapshot."""
    out = trial.run(signalled, number=signal.SIGINT, again=signal.SIGINT, ends=-signal.SIGINT)
    assert "KeyboardInterrupt" in out
    assert max(trial.turns()) == 4
    trial.run(signalled)
    assert max(trial.turns()) == 9


# --- notebooks ----------------------------------------------------------------------------------------


def notebook(here: Here, interrupted: bool = True) -> None:
    """One cell that makes everything and trains, run three times; the first time it is interrupted."""
    sys.ps1 = ">>> "

    def cell(n: int) -> None:
        learner = Learner()
        run = learner.run(here, stage_every_steps=2)
        for step in run.steps(n):
            loss = learner.gradients(here, run)
            learner.step()
            here.turn(step, loss=loss, weights=learner.weights)
            if step == 4 and run.attempt == 1 and interrupted:
                os.kill(os.getpid(), signal.SIGINT)

    try:
        cell(8)
    except KeyboardInterrupt:
        print("KeyboardInterrupt")
    cell(8)
    cell(8)
    cell(9)


def test_a_cell_is_run_again(trials: Trials) -> None:
    """A notebook's cell run again takes over from itself, is finished or goes on; one process all along."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(notebook)
    assert "KeyboardInterrupt" in out
    assert "finished at step 8: 8 steps done" in out
    assert "already finished at step 8" in out
    assert "finished at step 9: 9 steps done" in out
    undisturbed.run(notebook, interrupted=False)
    trial.same_as(undisturbed)
    assert [event.word for event in trial.events(RunEnded)] == ["stopped", "finished", "finished", "finished"]


def mended(here: Here) -> None:
    """A cell whose model doesn't fit the run is refused, its owner thinks, mends it and runs it again."""
    plain(here, n=4)
    learner = Learner()
    learner.model.add_module("extra", nn.Linear(1, 1))
    try:
        learner.run(here)
    except surefoot.StateMismatch as error:
        print(error)
    time.sleep(2.5)  # longer than an agent gives a rank that has failed
    plain(here)


def test_a_refused_cell_is_mended(trials: Trials) -> None:
    """A process that Run(...) has refused lives on, and may try again."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(mended)
    assert "model.extra.weight" in out
    assert "resuming at step 4" in out
    undisturbed.run(plain)
    trial.same_as(undisturbed)


def two_loops(here: Here) -> None:
    """One Run, two loops, one inside the other's way, and calls that can't be."""
    learner = Learner()
    run = learner.run(here)

    def train(n: int) -> None:
        for step in run.steps(n):
            loss = learner.gradients(here, run)
            learner.step()
            here.turn(step, loss=loss, weights=learner.weights)
            if step == 1:
                for call in (
                    lambda: next(run.steps(9)),
                    lambda: next(run.steps(-1)),
                    lambda: next(run.steps(2.0)),  # type: ignore[arg-type]
                ):
                    try:
                        call()
                    except surefoot.ConfigError as error:
                        print(error)

    train(3)
    train(3)
    train(8)


def test_steps_is_called_again(trials: Trials) -> None:
    """A second loop over one Run goes on where the first one ended; one inside another is refused."""
    trial, undisturbed = trials("a"), trials("undisturbed")
    out = trial.run(two_loops)
    assert "run.steps was called inside turn 1 of another run.steps" in out
    assert "run.steps(-1): expected a whole number of turns" in out
    assert "run.steps(2.0): expected a whole number of turns" in out
    assert "already finished at step 3" in out
    undisturbed.run(plain)
    trial.same_as(undisturbed)
