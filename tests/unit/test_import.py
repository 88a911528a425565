"""What is light stays light: the package itself, and the processes that have to outlive a sick driver."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOADED = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*{"torch", "numpy"} & sys.modules.keys())
"""


@pytest.mark.parametrize("module", ["surefoot", "surefoot.agent.__main__", "surefoot.agent.mover"])
def test_neither_torch_nor_numpy_is_loaded(module: str) -> None:
    """`import surefoot`, the agent and its children load neither."""
    command = [sys.executable, "-P", "-c", _LOADED, module]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert loaded == []


def test_run_comes_when_it_is_asked_for() -> None:
    """`surefoot.Run` is there, and every name that the package promises."""
    code = (
        "import surefoot as s; print(s.Run.__module__, *[name for name in s.__all__ if not hasattr(s, name)])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "surefoot.run"
