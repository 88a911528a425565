"""Everything surefoot raises, as one tree.

    SurefootError
    ├─ ConfigError (ValueError)     the call, the file or the command line is wrong
    │   └─ ChangedSettings          the script differs from the run it would resume
    ├─ RunError
    │   ├─ RunHeld                  somebody else holds this run and is alive
    │   ├─ ForeignRun               the directory belongs to another run, or to a newer format
    │   ├─ NoUsableSnapshot         progress exists, nothing of it can be restored
    │   └─ DataExhausted            the loop asks for more than the data has
    ├─ StateError
    │   ├─ UnstorableState          a value that plain JSON and tensors can't hold
    │   └─ StateMismatch            names, shapes or dtypes differ from the snapshot
    ├─ CheckpointError
    │   ├─ CorruptCheckpoint        bytes differ from what was sealed
    │   └─ StoreUnavailable (OSError)   the file system refused or did not answer
    ├─ JournalError                 a line that can't be read, with file and line number
    ├─ AgentError                   no agent could be started, reached or kept
    └─ RanksError                   a rank did not come to a boundary in time

A message has four parts: what happened, where, what was expected, what to do.
Faults of the training itself are values (`core.faults`), not exceptions.
"""

from __future__ import annotations


class SurefootError(Exception):
    """The root of every error surefoot raises on purpose."""


class ConfigError(SurefootError, ValueError):
    """A call, a file or a command line that can't be used as it is."""


class ChangedSettings(ConfigError):
    """The script differs from the run it would resume in a way that needs a yes or can't be."""


class RunError(SurefootError):
    """The run as a whole can't go on this way."""


class RunHeld(RunError):
    """Another live process holds the run; the message names it."""


class ForeignRun(RunError):
    """The directory is another run's, no run's, or of a newer format."""


class NoUsableSnapshot(RunError):
    """There was progress, but nothing of it can be restored; lists what was passed over and why."""


class DataExhausted(RunError):
    """The data ended before the loop did."""


class StateError(SurefootError):
    """The training state can't be stored or restored."""


class UnstorableState(StateError):
    """A value that neither plain JSON nor a tensor can hold; names its path."""


class StateMismatch(StateError):
    """Names, shapes or dtypes of the live state and of the snapshot differ; lists them."""


class CheckpointError(SurefootError):
    """A checkpoint can't be written or read."""


class CorruptCheckpoint(CheckpointError):
    """Bytes differ from what was sealed; names file, chunk, expected and got."""


class StoreUnavailable(CheckpointError, OSError):
    """The store refused or did not answer; retryable."""


class JournalError(SurefootError):
    """A line of the journal can't be read; names file and line."""


class AgentError(SurefootError):
    """The agent could not be started, reached or kept."""


class RanksError(SurefootError):
    """Not every rank came to a boundary within the deadline; names who did not."""
