"""The fold of the journal, and `RUN/cache/fold.json` that spares most of it.

The cache is a convenience: absent, damaged, made by other code or of lines that a later term cut, it
is folded again from the journal without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from xxhash import xxh3_64, xxh3_64_hexdigest

import surefoot.core
from surefoot.core.advance import advance
from surefoot.core.state import RunState
from surefoot.errors import JournalError
from surefoot.journal import atomic, files, shapes
from surefoot.journal.codec import FORMAT, canonical, from_json, seal, to_json, unseal

_WORTH_STORING_LINES = 20_000
"""Folding these again takes a second or so; fewer are not worth a file."""


def states(run_dir: Path, state: RunState | None = None) -> Iterator[RunState]:
    """Yield the state after each line of the journal, or after each one behind `state`."""
    state = state or RunState()
    for line in files.read(run_dir, after=(state.term, state.seq)):
        state, _ = advance(state, line)
        yield state


def fold(run_dir: Path, *, use_cache: bool = True) -> RunState:
    """Return the state after the journal's newest line. Raises JournalError if a line is damaged."""
    state = begin = (load(run_dir) if use_cache else None) or RunState()
    for each in states(run_dir, begin):
        state = each
    if use_cache and state.seq - begin.seq >= _WORTH_STORING_LINES:
        try:
            store(run_dir, state)
        except (OSError, JournalError):
            pass  # a reader may lack the right to write here, or the disk the room: it only costs time
    return state


def load(run_dir: Path) -> RunState | None:
    """Return the stored state, at its own term and seq, or None if there is none that can be used."""
    try:
        obj = unseal(_path(run_dir).read_bytes())
        if (obj["format"], obj["code"]) != (FORMAT, _code()):
            return None
        state = from_json(RunState, obj["state"])
    except (OSError, JournalError, KeyError):
        return None
    usable = state_hash(state) == obj.get("hash") and files.counts(run_dir, state.term, state.seq)
    return state if usable else None


def store(run_dir: Path, state: RunState) -> None:
    """Keep a state for the next fold. Raises OSError if the store refuses."""
    path = _path(run_dir)
    path.parent.mkdir(exist_ok=True)
    obj = {
        "format": FORMAT,
        "code": _code(),
        "term": state.term,
        "seq": state.seq,
        "hash": state_hash(state),
        "state": to_json(state),
    }
    atomic.replace(path, seal(obj))


def state_hash(state: RunState) -> str:
    """Return 16 hex digits, equal for equal states whatever process, host or order made them."""
    return xxh3_64_hexdigest(canonical(to_json(state)))


def _path(run_dir: Path) -> Path:
    return run_dir / "cache" / "fold.json"


@cache
def _code() -> str:
    """Hash the code that a stored state depends on: an upgrade folds anew."""
    sources = [Path(shapes.__file__)]
    for folder in surefoot.core.__path__:
        sources += sorted(Path(folder).glob("*.py"))
    digest = xxh3_64()
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()
