"""surefoot keeps long training runs on their feet: saves, restarts, exact resume, a record of it all.

    run = surefoot.Run("runs/gpt", model=model, optimizer=opt, data=loader)
    for step in run.steps(20_000):
        x, y = next(run.data)
        ...
        run.log(loss=loss)

Importing this loads neither torch nor numpy; `Run` comes when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surefoot.errors import (
    AgentError,
    ChangedSettings,
    CheckpointError,
    ConfigError,
    CorruptCheckpoint,
    DataExhausted,
    ForeignRun,
    JournalError,
    NoUsableSnapshot,
    RanksError,
    RunError,
    RunHeld,
    StateError,
    StateMismatch,
    StoreUnavailable,
    SurefootError,
    UnstorableState,
)

if TYPE_CHECKING:
    from surefoot.run import Run

__all__ = [
    "AgentError", "ChangedSettings", "CheckpointError", "ConfigError", "CorruptCheckpoint", "DataExhausted",
    "ForeignRun", "JournalError", "NoUsableSnapshot", "RanksError", "Run", "RunError", "RunHeld", "StateError",
    "StateMismatch", "StoreUnavailable", "SurefootError", "UnstorableState", "__version__",
]  # fmt: skip

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> Any:
    if name == "Run":
        from surefoot.run import Run

        return Run
    raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
