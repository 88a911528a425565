"""The testing kit: a clock that stands still, faults that strike where they are planned."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.testing import FaultPlan, ManualClock

STRUCK = """
import sys
from pathlib import Path
from surefoot.testing import FaultPlan
plan = FaultPlan(once=Path(sys.argv[1]) if sys.argv[1:] else None).kill(rank=1, step=7)
for step in range(10):
    plan.before_step(1, step)
print("through")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", STRUCK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_manual_clock_moves_when_it_is_told_to() -> None:
    """Time passes by `advance` and `sleep` alone, and is the same in both units."""
    clock = ManualClock(5)
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    clock.advance(10)
    clock.sleep(1.5)
    assert clock.now_ns() == 1_500_000_015
    assert clock.now_s() == pytest.approx(1.500000015)


def test_a_manual_clock_never_goes_back() -> None:
    """It stands for a monotonic clock: going back is the test's mistake."""
    with pytest.raises(ValueError, match="go back by 3 ns"):
        ManualClock().advance(-3)


def test_a_planned_kill_is_a_kill() -> None:
    """The rank dies of SIGKILL before its turn; without `once` each time it comes by."""
    for _ in range(2):
        assert run().returncode == -signal.SIGKILL


def test_a_fault_strikes_once_over_restarts(tmp_path: Path) -> None:
    """With a folder that outlives the process the same step is passed the second time."""
    folder = str(tmp_path / "struck")
    assert run(folder).returncode == -signal.SIGKILL
    again = run(folder)
    assert (again.returncode, again.stdout) == (0, "through\n")


def test_a_fault_strikes_only_where_it_is_planned() -> None:
    """Other ranks and other steps come through; a fault without a rank strikes every one."""
    plan = FaultPlan().kill(rank=1, step=7).nan(step=9).nan(rank=0, step=3)
    plan.before_step(0, 7)
    plan.before_step(1, 6)
    assert plan.loss(1, 3, 0.5) == 0.5
    assert math.isnan(plan.loss(0, 3, 0.5))
    assert math.isnan(plan.loss(0, 9, 0.5))
    assert math.isnan(plan.loss(5, 9, 0.5))


def test_each_rank_is_struck_once(tmp_path: Path) -> None:
    """Once means once for each rank: a fault of all ranks strikes all of them."""
    plan = FaultPlan(once=tmp_path).nan(step=9)
    assert [math.isnan(plan.loss(rank, 9, 0.5)) for rank in (0, 1, 0, 1)] == [True, True, False, False]


def test_a_plan_is_a_value() -> None:
    """Adding a fault makes another plan: one that is shared by tests doesn't grow."""
    plan = FaultPlan()
    assert plan.nan(step=1) == FaultPlan().nan(step=1)
    assert plan == FaultPlan()
