"""Ranks are started as torchrun starts them, and nothing of them is left."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from surefoot.chaos.ranks import Launch

pytestmark = pytest.mark.chaos

DEADLINE_S = 30.0

TELL = "import os; print(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"
STAY = "import os, time; os.fork(); print('up', flush=True); time.sleep(600)"
FAIL_FIRST = """
import os, signal, sys, time
if os.environ["RANK"] == "2":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("deaf", "w")
while os.environ["RANK"] != "0" or not os.path.exists("deaf"):
    time.sleep(0.01)
sys.exit(3)
"""


def launch(folder: Path, code: str, ranks: int = 2) -> Launch:
    return Launch([sys.executable, "-c", code], ranks, folder / "logs")


def test_ranks_get_torchruns_variables(tmp_path: Path) -> None:
    """Each rank is told its number and the size of the job, and its output is kept."""
    with launch(tmp_path, TELL, ranks=3) as ranks:
        assert ranks.wait(DEADLINE_S)
        assert ranks.codes == [0, 0, 0]
        assert [ranks.log(r).read_text().split() for r in range(3)] == [
            [f"{r}", f"{r}", "3", "127.0.0.1"] for r in range(3)
        ]


def test_a_failed_rank_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one has failed the others are asked to end, and killed where they don't."""
    monkeypatch.setattr("surefoot.chaos.ranks.GRACE_S", 0.1)
    with launch(tmp_path, FAIL_FIRST, ranks=3) as ranks:
        assert ranks.wait(DEADLINE_S)
        assert ranks.codes == [3, -15, -9]


def test_nothing_outlives_a_launch(tmp_path: Path) -> None:
    """Leaving the block ends the ranks and what they had started."""
    before = psutil.Process().children(recursive=True)  # what the session's other tests fork from
    with launch(tmp_path, STAY) as ranks:
        while not all(ranks.log(r).read_text().count("up") == 2 for r in range(2)):
            assert not ranks.wait(0.01)
        started = [process for process in psutil.Process().children(recursive=True) if process not in before]
        assert len(started) == 4
        assert ranks.codes == [None, None]
    assert ranks.codes == [-9, -9]
    psutil.wait_procs(started, timeout=DEADLINE_S)
    assert [process for process in started if process.is_running()] == []
