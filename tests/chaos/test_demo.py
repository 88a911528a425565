"""The demo: short here, and at full length by `make demo`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from surefoot.chaos.demo import Demo
from surefoot.chaos.kills import AGENT
from surefoot.errors import ConfigError

pytestmark = pytest.mark.chaos

COMMAND = (sys.executable, "-c", "from surefoot.cli.demo import demo; demo()")
MARK = "SUREFOOT_TEST"
SEED = 4
"""Hits the agent at one place and a rank at another."""


def test_a_disturbed_run_ends_like_the_undisturbed_one(tmp_path: Path) -> None:
    """The agent and a rank are killed: every sample, loss and weight is the same."""
    said: list[str] = []
    outcome = Demo(tmp_path / "demo", steps=24, say=said.append).run(seed=SEED, kills=2)
    assert outcome.problem is None, "\n".join([*said, outcome.problem or ""])
    assert outcome.turns == 48
    assert outcome.weights
    assert AGENT in [kill.what for kill in outcome.disturbed.kills]
    assert outcome.disturbed.starts == 2
    assert any("resuming at step" in text for text in said)


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    """Ranks, loader workers and agent are gone when the demo has been interrupted."""
    arguments = ("--steps", "100000", "--keep", str(tmp_path / "demo"))
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "starts at step 0" in line:
                break
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode != 0
    mark = os.environ[MARK]
    left = [other for other in psutil.process_iter() if other.pid != os.getpid() and marked(other, mark)]
    assert left == []


def marked(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False


def test_it_wants_a_place_of_its_own(tmp_path: Path) -> None:
    """A directory with something in it is refused before anything is started."""
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(ConfigError, match="not empty"):
        Demo(tmp_path, steps=30, say=print)
