"""What every chaos test gets: trials of scripts in real processes, checked when they are over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.runs import Trial, Warm

Trials = Callable[[str], Trial]


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Return the process that the ranks of all trials are forked from."""
    process = Warm()
    yield process
    process.close()


@pytest.fixture
def trials(warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trials]:
    """Return a maker of trials by name, each with a run of its own; all are checked when the test is over."""
    made: dict[str, Trial] = {}
    # A socket's path has to be short; tmp_path is not.
    with tempfile.TemporaryDirectory(prefix="sf-", ignore_cleanup_errors=True) as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)

        def make(name: str) -> Trial:
            made[name] = Trial(warm, tmp_path / name)
            return made[name]

        try:
            yield make
            for trial in made.values():
                trial.check()
        finally:
            for trial in made.values():
                trial.end()


@pytest.fixture
def trial(trials: Trials) -> Trial:
    """Return one trial."""
    return trials("a")
