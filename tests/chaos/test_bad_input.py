"""Bad input: a clear error that names what to do, a run that stays resumable, and nothing that starts over."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.chaos.conftest import Trials
from tests.runs import Here, Trial, digest, seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import surefoot
from surefoot.core.events import (
    AttemptStarted,
    Restored,
    RunEnded,
    SaveFailed,
    SnapshotCommitted,
    SnapshotMarked,
)
from surefoot.core.numbers import SnapshotId
from surefoot.journal.codec import seal, unseal

pytestmark = pytest.mark.chaos


def learn(
    here: Here,
    n: int = 6,
    die_at: int | None = None,
    lr: float = 0.1,
    samples: int = 32,
    batch_size: int = 4,
    width: int = 4,
    torch_seed: int = 7,
    **settings: Any,
) -> None:
    """Train with everything that a person might change between two starts."""
    seed(torch_seed)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(TensorDataset(torch.arange(4.0 * samples).reshape(samples, 4) / samples), batch_size)
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, data=loader, **settings)
    for step in run.steps(n):
        (x,) = next(run.data)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        here.turn(step, loss=loss, lr=optimizer.param_groups[0]["lr"])
        if step == die_at:
            here.die()


def test_an_unknown_keyword_says_what_was_meant(trial: Trial) -> None:
    """A misspelt setting is refused with the nearest valid one, and no run is made."""
    out = trial.run(learn, stage_every_step=3, ends=1)
    assert "ConfigError" in out
    assert "did you mean 'stage_every_steps'?" in out
    assert not trial.run_dir.exists()


def test_a_foreign_directory_is_left_alone(trial: Trial) -> None:
    """A directory that holds something else is refused, and stays as it was."""
    trial.run_dir.mkdir()
    (trial.run_dir / "thesis.txt").write_text("years of work")
    out = trial.run(learn, ends=1)
    assert "ForeignRun" in out
    assert [path.name for path in trial.run_dir.iterdir()] == ["thesis.txt"]
    shutil.rmtree(trial.run_dir)  # there is no run that could be checked


def test_a_newer_format_is_refused(trial: Trial) -> None:
    """A run of a newer format says so, and is not touched."""
    trial.run(learn, n=2)
    path = trial.run_dir / "run.json"
    file = unseal(path.read_bytes())
    path.write_bytes(seal({**file, "format": 2}))
    out = trial.run(learn, n=4, ends=1)
    assert "ForeignRun" in out
    assert "format 2" in out
    path.write_bytes(seal(file))
    trial.run(learn, n=4)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"lr": 0.2}, "optimizer.lr"),
        ({"batch_size": 8}, "data.batch_size"),
        ({"samples": 40}, "data.length"),
        ({"torch_seed": 8}, "seed"),
    ],
)
def test_what_changes_the_maths_needs_a_yes(trial: Trial, change: dict[str, Any], key: str) -> None:
    """A changed LR, batch size, dataset or seed is listed and refused; with a yes it goes on (D21)."""
    trial.run(learn, n=3)
    out = trial.run(learn, n=6, ends=1, **change)
    assert "ChangedSettings" in out
    assert f"--accept-change {key}" in out
    assert list(trial.turns()) == [0, 1, 2]
    keys = [key] if key != "data.length" else ["data.length", "data.fingerprint"]
    trial.run(learn, n=6, accept_change=keys, **change)
    assert list(trial.turns()) == [0, 1, 2, 3, 4, 5]
    joined = trial.state().joined
    assert joined is not None
    assert key in [each["key"] for each in joined.changed if each["kind"] == "maths"]
    if key == "optimizer.lr":
        assert trial.turns()[5]["lr"] == pytest.approx(0.2) or "0x1.9" in str(trial.turns()[5]["lr"])
    trial.run(learn, n=7, **change)  # what was accepted once is the run's own now


def test_what_can_not_be_restored_is_refused(trial: Trial) -> None:
    """Another width of the model is named tensor by tensor; the run stays resumable (D21)."""
    trial.run(learn, n=3)
    out = trial.run(learn, n=6, width=5, ends=1)
    assert "StateMismatch" in out
    assert "model.0.weight" in out
    trial.run(learn, n=4)


def newest(trial: Trial) -> Path:
    """Return the directory of the newest checkpoint."""
    return max((trial.run_dir / "checkpoints").iterdir(), key=lambda path: path.name)


def checkpoints_at_2_4_and_6(trial: Trial) -> None:
    """Leave a run with three checkpoints behind the beginning's, and no agent whose memory could help."""
    for n in (2, 4, 6):
        trial.run(learn, n=n)
        trial.wait_for_nobody()


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def damage(checkpoint: Path, how: str, mark: Path) -> None:
    """Do to a checkpoint what disks, people and strangers do to one."""
    what, _, file = how.partition(" ")
    (path,) = checkpoint.glob(file or "*.safetensors")
    match what:
        case "flipped":
            flip(path)
        case "cut":
            os.truncate(path, path.stat().st_size - 1)
        case "missing":
            path.unlink()
        case "pickled":
            for path in checkpoint.iterdir():
                path.write_bytes(pickle.dumps(Bomb(mark)))


DAMAGES = [
    "flipped rank-00000.safetensors",
    "flipped part-00000.json",
    "flipped manifest.json",
    "flipped layout-*.json",
    "cut rank-00000.safetensors",
    "missing rank-00000.safetensors",
    "missing part-00000.json",
    "pickled",
]


def test_damage_leads_to_the_one_before(trials: Trials) -> None:
    """With memory gone and the newest checkpoint damaged, the one before it is used, and it is said so.

    What was put in place of its files is never executed.
    """
    undisturbed, source = trials("undisturbed"), trials("source")
    undisturbed.run(learn, n=9)
    checkpoints_at_2_4_and_6(source)
    for how in DAMAGES:
        trial = trials(how.replace("*", ""))
        shutil.copytree(source.folder, trial.folder, dirs_exist_ok=True)
        mark = trial.folder / "mark"
        damage(newest(trial), how, mark)
        out = trial.run(learn, n=9)
        assert "passed over" in out, how
        assert "resuming at step 4" in out, how
        restored = trial.events(Restored)[-1]
        assert "000000006" in str(restored.passed_over) or "step 6" in str(restored.passed_over), how
        trial.same_as(undisturbed)
        assert not mark.exists()
        trial.wait_for_nobody()


def test_all_damaged_never_becomes_a_fresh_start(trial: Trial) -> None:
    """Where no checkpoint can be used the run refuses, lists them, and trains nothing."""
    checkpoints_at_2_4_and_6(trial)
    for path in (trial.run_dir / "checkpoints").glob("*/rank-00000.safetensors"):
        flip(path)
    out = trial.run(learn, n=9, ends=1)
    assert "NoUsableSnapshot" in out
    assert "--fresh" in out
    assert list(trial.turns()) == [0, 1, 2, 3, 4, 5]


def test_fresh_moves_the_old_run_aside(trial: Trial) -> None:
    """`fresh=True` begins anew and deletes nothing: the old run lies beside, whole."""
    trial.run(learn, n=3)
    before = json.loads((trial.run_dir / "run.json").read_text())["run"]
    out = trial.run(learn, n=2, fresh=True)
    (aside,) = trial.folder.glob("run.old-*")
    assert str(aside.name) in out
    assert json.loads((aside / "run.json").read_text())["run"] == before
    assert trial.state().step == 2


def numbers(place: int) -> Tensor:
    return torch.rand(4, 3)


def slow(here: Here, n: int = 100_000, end_at: int | None = None, **settings: Any) -> None:
    """Train in turns of 10 ms, until somebody ends it."""
    seed(7)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, data=numbers, **settings)
    for step in run.steps(n):
        model(next(run.data)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
        here.turn(step, weights=digest(model.state_dict().values()))


def test_a_second_launcher_is_refused(trial: Trial) -> None:
    """While a run is alive a second start of it is refused, naming the first one's pid."""
    (first,) = trial.start(slow)
    trial.wait_for_step(5)
    out = trial.run(learn, ends=1)
    assert "RunHeld" in out
    assert str(first.pid) in out
    assert not first.ended()
    first.signal()
    first.code()


# --- what a person may change, and what the names say -------------------------------------------------


def test_harmless_changes_pass(trials: Trials) -> None:
    """How often is saved, how many steps are asked for: such changes need no yes, and are on record (D21)."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(learn, n=6)
    trial.run(learn, n=3, stage_every_steps=5)
    trial.run(learn, n=6, stage_every_steps=2, save_every_steps=50, keep=-1)
    trial.same_as(undisturbed)
    state = trial.state()
    assert (state.settings.stage_every_steps, state.settings.save_every_steps, state.settings.steps) == (
        2,
        50,
        6,
    )
    assert "keep = 0 would delete every checkpoint" in trial.run(learn, n=7, keep=0, ends=1)


def test_names_and_file_times_say_nothing(trials: Trials) -> None:
    """The newest checkpoint is told by its manifest, not by its directory's name or time (D18)."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(learn, n=8)
    checkpoints_at_2_4_and_6(trial)
    found = sorted((trial.run_dir / "checkpoints").iterdir())
    for age, (path, name) in enumerate(zip(found, ("9", "8", "7", "6"), strict=True)):
        renamed = path.rename(path.with_name(f"00000000{name}.b{'0' * age}0001.t0001"))
        for inner in (*renamed.iterdir(), renamed):
            os.utime(inner, (1e9 - age, 1e9 - age))
    assert "resuming at step 6" in trial.run(learn, n=8)
    trial.same_as(undisturbed)


def test_a_checkpoint_of_another_run_is_passed_over(trials: Trials) -> None:
    """A checkpoint that was copied in from another run is named and never loaded."""
    undisturbed, trial, other = trials("undisturbed"), trials("a"), trials("other")
    undisturbed.run(learn, n=9)
    other.run(learn, n=8, torch_seed=9)
    trial.run(learn, n=3)
    trial.wait_for_nobody()
    shutil.copytree(newest(other), trial.run_dir / "checkpoints" / newest(other).name)
    out = trial.run(learn, n=9)
    assert "passed over checkpoints/000000008" in out
    assert "it is of another run" in out
    assert "resuming at step 3" in out
    trial.same_as(undisturbed)


class Trap:
    """A state whose load ends the process abruptly, if it was saved at one certain step."""

    def __init__(self) -> None:
        self.turns, self.fatal = 0, 6

    def state_dict(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["turns"] == self.fatal != self.turns:
            os.kill(os.getpid(), signal.SIGKILL)
        self.turns = state["turns"]


def trapped(here: Here, n: int) -> None:
    seed(7)
    model = nn.Linear(3, 1)
    optimizer, trap = torch.optim.SGD(model.parameters(), lr=0.1), Trap()
    run = surefoot.Run(here.run_dir, model=model, optimizer=optimizer, trap=trap, data=numbers)
    for step in run.steps(n):
        here.breathe(run)
        loss = model(next(run.data)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trap.turns += 1
        here.turn(step, loss=loss)


def test_a_load_that_kills_is_tried_twice(trials: Trials) -> None:
    """A snapshot whose load ends the process is suspect after two tries; the one before is used (D30)."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    undisturbed.run(trapped, n=8)
    for n in (3, 6):
        trial.run(trapped, n=n)
    for _ in range(2):
        trial.run(trapped, n=8, ends=-9)
    assert "resuming at step 3" in trial.run(trapped, n=8)
    trial.same_as(undisturbed)
    tried = [event.restore for event in trial.events(AttemptStarted)]
    assert [id.step if id else None for id in tried] == [None, 3, 6, 6, 3]
    marks = [
        (event.step, event.mark, event.why) for event in trial.events(SnapshotMarked) if event.mark == "suspect"
    ]
    assert marks == [(6, "suspect", "2 attempts died while loading it")]
    bad = tried[2]
    assert isinstance(bad, SnapshotId)
    assert any(path.name.startswith(f"000000006.b{bad.branch:04d}") for path in newest(trial).parent.iterdir())


# --- the disk refuses ---------------------------------------------------------------------------------


def limit_files(trial: Trial, bytes_max: int) -> None:
    """Let the agent's children write no larger file: journal lines fit, checkpoints don't."""
    for child in psutil.Process(trial.agent_pid).children():
        child.rlimit(psutil.RLIMIT_FSIZE, (bytes_max, psutil.RLIM_INFINITY))


def test_saves_that_fail_stop_nothing(trials: Trials) -> None:
    """Where no checkpoint can be written training goes on, each failure is on record, a lost end has a code."""
    undisturbed, trial = trials("undisturbed"), trials("a")
    (worker,) = trial.start(slow, save_every_steps=3, stage_every_steps=1)
    trial.wait_for_step(1)
    limit_files(trial, 60_000)
    failed = trial.wait_for(lambda: trial.events(SaveFailed)[2:] and trial.events(SaveFailed))
    assert [event.in_a_row for event in failed] == list(range(1, len(failed) + 1))
    assert "File too large" in failed[0].error
    trial.wait_for_step(max(trial.turns()) + 5)
    trial.leave("stop")
    assert worker.code() == 1
    last = max(trial.turns()) + 1
    assert f"the last save (step {last}) was lost" in worker.text.splitlines()[-1]
    assert all(event.step < last for event in trial.events(SnapshotCommitted))
    limit_files(trial, psutil.RLIM_INFINITY)
    assert f"resuming at step {last}, from memory" in trial.run(slow, n=last + 3)
    undisturbed.run(slow, n=last + 3)
    trial.same_as(undisturbed)
    assert trial.events(SnapshotCommitted)[-1].step == last + 3


@pytest.fixture
def small_disk(trial: Trial) -> Iterator[Path]:
    """Return the run's directory, on a file system of its own of one megabyte."""
    trial.run_dir.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "surefoot", str(trial.run_dir)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this needs the right to mount a file system")
    yield trial.run_dir
    subprocess.run(["umount", "-l", str(trial.run_dir)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for block in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(block))
            except OSError:
                pass
    return ballast


def test_a_full_disk_is_an_event(trial: Trial, small_disk: Path) -> None:
    """On a full disk training goes on; when there is room again the lines are there, and saves succeed."""
    (worker,) = trial.start(slow, save_every_steps=5, stage_every_steps=2, keep=1)
    trial.wait_for(lambda: any(event.step for event in trial.events(SnapshotCommitted)))
    ballast = fill(small_disk)
    saved = worker.text.count("saving step")
    # The lines can't be written either: after five seconds orders are carried out without waiting for that.
    trial.wait_for(lambda: worker.text.count("saving step") > saved + 1)
    assert not worker.ended()
    ballast.unlink()
    failed = trial.wait_for(lambda: trial.events(SaveFailed))
    assert "No space left on device" in failed[0].error
    assert "try again" in failed[0].error
    trial.wait_for(lambda: any(event.step > failed[-1].step for event in trial.events(SnapshotCommitted)))
    trial.leave("stop")
    assert worker.code() == 83
    assert trial.events(RunEnded)[-1].word == "stopped"
    steps = [event.step for event in trial.kept()]
    assert steps == list(range(len(steps)))
    trial.check()


def test_a_read_only_disk_is_refused(trial: Trial, small_disk: Path) -> None:
    """A run on a disk that takes nothing can't be resumed: an error says so, and the run is as it was."""
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    trial.run(learn, n=3)
    trial.wait_for(lambda: subprocess.run(remount, check=False, capture_output=True).returncode == 0)
    out = trial.run(learn, n=6, ends=1)
    assert "Read-only file system" in out
    assert str(trial.run_dir) in out.splitlines()[-1]
    assert list(trial.turns()) == [0, 1, 2]
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    # The agent that refused goes on refusing for a moment, so that every rank hears why.
    trial.wait_for(lambda: "resuming at step 3" in trial.run(learn, n=6, ends=None))
    trial.check()
