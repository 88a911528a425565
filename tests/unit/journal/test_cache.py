"""The fold and its cache: always what the journal says, whatever the cache does."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.unit.journal.lines import noted, pieces, started, term, write

from surefoot.core.advance import advance
from surefoot.core.events import AttemptStarted, Line, Ordered, Restored, StepDone
from surefoot.core.orders import Save
from surefoot.core.state import RunState
from surefoot.journal import atomic, cache
from surefoot.journal.cache import fold, load, state_hash, store
from surefoot.journal.codec import unseal


def a_run(steps: int) -> list[Line]:
    """Return the lines of a run that made some steps and has a save pending."""
    events = [
        AttemptStarted(attempt=1, world_size=1),
        Restored(branch=1, lineage=((1, 0),), step=0, batch=0, sample=0, tier=None),
        *(
            StepDone(branch=1, step=n, batch=n, sample=n, loss=1 / (n + 1), end_ns=2_000 + n)
            for n in range(steps)
        ),
        Ordered(order=1, body=Save(why="w"), reason="r"),
    ]
    return [started(1), *(Line(seq, 1_000 + seq, event) for seq, event in enumerate(events, 2))]


def folded(lines: list[Line]) -> RunState:
    state = RunState()
    for line in lines:
        state, _ = advance(state, line)
    return state


def test_a_fold_is_advance_over_the_lines(tmp_path: Path) -> None:
    """Folding the files gives what advance gives line by line; nothing is nothing."""
    assert fold(tmp_path) == RunState()
    write(tmp_path, 1, a_run(5))
    assert fold(tmp_path) == folded(a_run(5))
    assert not (tmp_path / "cache").exists()


def test_a_stored_state_is_gone_on_from(tmp_path: Path) -> None:
    """What was stored comes back equal, and only the lines behind it are folded."""
    lines = a_run(5)
    write(tmp_path, 1, lines[:6])
    store(tmp_path, folded(lines[:6]))
    assert load(tmp_path) == folded(lines[:6])
    write(tmp_path, 1, lines[6:])
    first, _ = pieces(tmp_path)
    first.write_bytes(first.read_bytes().replace(b'"world_size":1', b'"world_size":3'))
    assert fold(tmp_path) == folded(lines)


@pytest.mark.parametrize("harm", ["none", "flip", "cut", "other code", "other format", "wrong state"])
def test_a_cache_that_cannot_be_used_is_folded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Absent, damaged or of another version, a cache changes nothing but the time."""
    write(tmp_path, 1, a_run(5))
    path = tmp_path / "cache" / "fold.json"
    if harm != "none":
        store(tmp_path, fold(tmp_path))
    if harm == "flip":
        path.write_bytes(path.read_bytes().replace(b'"world_size":1', b'"world_size":3'))
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    elif harm == "other code":
        monkeypatch.setattr(cache, "_code", lambda: "0" * 16)
    elif harm == "other format":
        monkeypatch.setattr(cache, "FORMAT", 2)
    elif harm == "wrong state":
        monkeypatch.setattr(cache, "state_hash", lambda _: "0" * 16)
    assert load(tmp_path) is None
    assert fold(tmp_path) == folded(a_run(5))


def test_a_cache_of_lines_that_were_cut_is_not_used(tmp_path: Path) -> None:
    """A state that holds what a later term cut off, or what a crash took, is folded anew."""
    lines = a_run(5)
    write(tmp_path, 1, lines)
    store(tmp_path, fold(tmp_path))
    newer = term(2, 2, after=(1, 6))
    write(tmp_path, 2, newer)
    assert load(tmp_path) is None
    assert fold(tmp_path) == folded(lines[:6] + newer)
    store(tmp_path, folded([*lines[:6], *newer, noted(9)]))
    assert load(tmp_path) is None


def test_a_long_fold_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold that took a while is kept for the next one, unless it was asked not to look at the cache."""
    monkeypatch.setattr(cache, "_WORTH_STORING_LINES", 5)
    write(tmp_path, 1, a_run(5))
    fold(tmp_path, use_cache=False)
    assert load(tmp_path) is None
    state = fold(tmp_path)
    assert load(tmp_path) == state
    said = unseal((tmp_path / "cache" / "fold.json").read_bytes())
    assert (said["format"], said["term"], said["seq"], said["hash"]) == (1, 1, state.seq, state_hash(state))


def test_a_fold_needs_no_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache can't be stored the fold is the same."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(cache, "_WORTH_STORING_LINES", 1)
    monkeypatch.setattr(atomic, "replace", refuse)
    write(tmp_path, 1, a_run(5))
    assert fold(tmp_path) == folded(a_run(5))


def test_equal_states_have_equal_hashes() -> None:
    """A state's hash is 16 hex digits, whatever order its dicts were filled in, and tells states apart."""
    one = RunState(knobs={"clip": 1.0, "lr": float("nan")})
    other = RunState(knobs={"lr": float("nan"), "clip": 1.0})
    assert state_hash(one) == state_hash(other)
    assert len(state_hash(one)) == 16
    assert state_hash(RunState()) != state_hash(one)
