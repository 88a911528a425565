"""The example, killed by hand: what a reader of the README does first."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.chaos import agent, traces
from surefoot.chaos.demo import example
from surefoot.chaos.ranks import Launch

pytestmark = pytest.mark.chaos

STEPS = 40
SMALL = ("--width", "32", "--layers", "1", "--block", "32", "--batch", "4", "--eval-every", "15")
DEADLINE_S = 120.0


def command(folder: Path) -> list[str]:
    files = ("--dir", str(folder / "run"), "--trace", str(folder / "trace"))
    return [sys.executable, str(example("train_gpt.py")), *files, "--steps", str(STEPS), *SMALL]


def train(folder: Path, name: str, *, kill: tuple[int, int] | None = None) -> str:
    """Start the example on two ranks, kill one of them after a step if asked to; return what rank 0 printed."""
    tail = traces.Tail(folder / "trace")
    with Launch(command(folder), 2, folder / name) as ranks:
        while not ranks.wait(0.005):
            seen = [traces.parse(line)[0][1] for line in tail.lines()]
            if kill is not None and any(step >= kill[1] for step in seen):
                ranks.kill([kill[0]])
                kill = None
        return f"{ranks.codes}\n{ranks.log(0).read_text()}"


def test_a_killed_rank_changes_nothing(tmp_path: Path) -> None:
    """Two ranks train; one dies at a random place; the same command again ends as if nothing had happened."""
    dice = random.Random(2)
    rank, step = dice.randrange(2), dice.randrange(5, STEPS - 5)
    told = train(tmp_path / "calm", "start-1")
    assert told.startswith("[0, 0]"), told
    told = train(tmp_path / "wild", "start-1", kill=(rank, step))
    assert "-9" in told.splitlines()[0], told
    told = train(tmp_path / "wild", "start-2")
    assert told.startswith("[0, 0]"), told
    assert "resuming at step" in told
    calm, wild = traces.read(tmp_path / "calm" / "trace"), traces.read(tmp_path / "wild" / "trace")
    assert len(calm) == 2 * STEPS + 2
    assert traces.first_difference(calm, wild) is None
    assert all(len(set(lines)) == 1 for lines in wild.values()), "a turn came back differently"


def test_it_finishes_once(tmp_path: Path) -> None:
    """In one process it runs to its end, and started again it says so and ends with the same weights."""
    for said in ("finished at step", "already finished"):
        ran = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        assert said in ran.stderr
    assert agent.left(tmp_path / "run", DEADLINE_S)
    trace = traces.read(tmp_path / "trace")
    assert all(len(trace["step", step, 0]) == 1 for step in range(STEPS))
    first, second = trace["weights", STEPS, 0]
    assert first == second
