"""Kills at any instant: a sample of the campaign, and every trial that failed once; `make soak` does it all."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.chaos

SEEDS = Path(__file__).with_name("seeds.txt")
SAMPLE = 40
SECONDS = "60"
"""A campaign begins no trial after so long."""


def campaign(tmp_path: Path, *args: str) -> dict[str, Any]:
    """Run trials, which must all come through, and return the campaign's summary."""
    out = tmp_path / "summary.json"
    command = [sys.executable, "-m", "surefoot.chaos.campaign", *args, "--jobs", "2", "--json", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    told = ran.stdout[-20_000:] + ran.stderr[-5_000:]
    assert ran.returncode == 0, told
    print(told)
    summary: dict[str, Any] = json.loads(out.read_text())
    assert summary["kills"] > 0
    assert summary["folds_compared"] > 0
    return summary


def remembered() -> list[str]:
    """Return what seeds.txt asks for."""
    lines = (line.partition("#")[0].strip() for line in SEEDS.read_text().splitlines())
    return [
        arg for line in lines if line for arg in (("--seed", line) if line.isdecimal() else ("--points", line))
    ]


def test_a_sample_of_the_campaign(tmp_path: Path) -> None:
    """Whatever is killed, when and how often: the run goes on as if nothing had happened, bit for bit.

    In CI the seeds are the same every time; elsewhere each run has others, which it prints.
    """
    first = 60 if os.environ.get("CI") else random.SystemRandom().randrange(10**6)
    summary = campaign(tmp_path, "--seeds", f"{first}:{first + SAMPLE}", "--seconds", SECONDS)
    assert summary["failed"] == {}


def test_what_failed_once(tmp_path: Path) -> None:
    """Every trial that has ever found something comes through."""
    summary = campaign(tmp_path, *remembered())
    assert summary["trials"] == len(remembered()) // 2
