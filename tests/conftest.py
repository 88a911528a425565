"""What every test gets: no process left behind, and Hypothesis without a clock.

A test that hangs is ended by pytest's own `faulthandler_timeout` (pyproject.toml), with the stack of
every thread.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from multiprocessing import resource_tracker

import psutil
import pytest
from hypothesis import HealthCheck, settings

# Wall times are asserted nowhere: two busy cores make any deadline a coin toss. In CI the examples are
# the same every time; at home each run looks at new ones, and .hypothesis keeps what failed.
settings.register_profile("home", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("home"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")

MARK = "SUREFOOT_TEST"
"""Set for the length of a test; every process that the test starts inherits it."""


@pytest.fixture(autouse=True)
def no_process_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill whatever the test started and left: its children, and the agents that detached from it.

    Processes of a wider fixture (the warm one that trials are forked from) were there before and stay.
    """
    before = set(psutil.Process().children(recursive=True))
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    while left := _left(before, mark):  # one may have started another before it died
        for process in left:
            _kill(process)
        psutil.wait_procs(left, timeout=10)


def _left(before: set[psutil.Process], mark: str) -> list[psutil.Process]:
    children = set(psutil.Process().children(recursive=True)) - before
    marked = {process for process in psutil.process_iter() if _marked(process, mark)}
    return [process for process in children | marked if not _shared(process)]


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):  # gone, or another user's
        return False


def _shared(process: psutil.Process) -> bool:
    """Tell whether it is multiprocessing's tracker, which one test starts and all of them use."""
    return process.pid == getattr(resource_tracker._resource_tracker, "_pid", None)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
