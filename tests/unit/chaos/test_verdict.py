"""Whether a run came through: only one that is equal to the last bit did."""

from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.chaos.traces import Key
from surefoot.chaos.verdict import Calm, judge

CALM = Calm(trace={("step", 0, 0): ["0x1p+0"], ("step", 1, 0): ["0x1p-1"]}, took_s=1.0, turns_s=(0.1, 0.2))


def verdict(tmp_path: Path, *lines: str, always: bool = True) -> str:
    trace = tmp_path / "trace"
    trace.write_text("".join(f"{line}\n" for line in lines))
    problem, compared = judge(tmp_path / "run", trace, steps=2, always=always, calm=CALM, heard=[])
    assert compared == 0
    return problem or ""


@pytest.mark.parametrize("told", ["0x1p-2", "0x1.0000000000001p-1", ""])
def test_another_bit_is_another_run(tmp_path: Path, told: str) -> None:
    """A turn whose last line differs in anything is shown with both lines."""
    problem = verdict(tmp_path, "step 0 0 0x1p+0", f"step 1 0 {told}")
    assert problem.startswith("step 1, rank 0: the undisturbed run wrote\n  0x1p-1\n")


def test_a_turn_that_is_missing(tmp_path: Path) -> None:
    """A turn that was left out is a difference, and so is one too many."""
    assert "wrote\n  nothing" in verdict(tmp_path, "step 0 0 0x1p+0").replace("disturbed one", "wrote")
    assert verdict(tmp_path, "step 0 0 0x1p+0", "step 1 0 0x1p-1", "step 2 0 0x1p-2").startswith("step 2")


def test_a_turn_that_went_astray_once(tmp_path: Path) -> None:
    """Where every writing counts, one that was set right later is a difference too."""
    lines = ("step 0 0 0x1p+0", "step 1 0 0x1p-9", "step 1 0 0x1p-1")
    assert "was once\n  0x1p-9" in verdict(tmp_path, *lines)
    assert verdict(tmp_path, *lines, always=False) == "the run stands at step 0 and ended as None"


def test_keys_are_those_of_traces() -> None:
    """What an undisturbed run's trace is kept by is what traces are read by."""
    key: Key = ("step", 0, 0)
    assert key in CALM.trace
