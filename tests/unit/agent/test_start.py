"""How an agent begins: what it takes from the journal, and what from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import save, values_of
from tests.unit.journal import lines

from surefoot.agent.start import Start, begin
from surefoot.checkpoint.layout import Box
from surefoot.checkpoint.store import DiskStore
from surefoot.core.events import (
    Event,
    Line,
    Ordered,
    Restored,
    SnapshotCommitted,
    SnapshotMarked,
    TermEnded,
    TermStarted,
)
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Save
from surefoot.core.state import RunState
from surefoot.errors import ForeignRun, JournalError, RunHeld
from surefoot.journal import lease, rundir

BOXES = [[Box("w", "F32", (4,))]]
RESTORED = Restored(branch=1, lineage=((1, 0),), step=0, batch=0, sample=0, tier=None)


class Directory:
    """A run directory, and the journal that its agents so far have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = rundir.create(path, "gpt").run
        self.last = (0, 0)
        self.store = DiskStore(path / "checkpoints")

    def term(self, *events: Event, ends: bool = True) -> None:
        """Another agent held the run, and these things happened."""
        number = lease.take(self.path, self.run)
        begun = [RESTORED] if number == 1 else []
        told = [*begun, *events, *([TermEnded()] if ends else [])]
        first = lines.started(number, self.last)
        written = [first, *(Line(seq, 5_000 + seq, event) for seq, event in enumerate(told, first.seq + 1))]
        lines.write(self.path, number, written)
        self.last = (number, written[-1].seq)

    def checkpoint(self, step: int, *, term: int, order: int, **fields: Any) -> str:
        """Commit a checkpoint as the agent of that term does for that order."""
        (self.path / "checkpoints").mkdir(exist_ok=True)
        values = [values_of(boxes) for boxes in BOXES]
        about = {"run": self.run, "branch": 1, "lineage": ((1, 0),), "at_ns": step, **fields}
        return save(self.store, BOXES, values, step=step, term=term, order=order, **about)

    def begin(self) -> Start:
        return begin(self.path, 0.0)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "gpt")


def at(step: int, branch: int = 1) -> SnapshotId:
    return SnapshotId(step, branch)


def ordered(*orders: int) -> list[Event]:
    return [Ordered(order=order, body=Save(why="due"), reason="due") for order in orders]


def committed(step: int) -> SnapshotCommitted:
    return SnapshotCommitted(step=step, branch=1, tier="DISK", bytes=1)


def reasons(start: Start) -> dict[str, str]:
    return {over["what"]: over["why"] for over in start.passed_over}


def told(start: Start) -> Sequence[Event]:
    """Return what is told behind the start of the term."""
    assert isinstance(start.events[0], TermStarted)
    return start.events[1:]


def test_a_new_run_begins_with_nothing(directory: Directory) -> None:
    """The first term goes on from nothing: no line, no checkpoint."""
    start = directory.begin()
    assert (start.term, start.run, start.state) == (1, directory.run, RunState())
    (first,) = start.events
    assert isinstance(first, TermStarted)
    assert (first.term, first.after, first.format, first.node) == (1, {"term": 0, "seq": 0}, 1, start.node)
    assert set(first.versions) == {"surefoot", "python"}
    assert (start.names, start.passed_over, start.unfinished) == ({}, [], [])


def test_no_run_is_begun_by_an_agent(tmp_path: Path) -> None:
    """A directory that holds no run is an error: an agent never makes one."""
    with pytest.raises(ForeignRun, match="holds no run"):
        begin(tmp_path, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_the_next_term_goes_on_where_the_journal_ends(directory: Directory) -> None:
    """State, orders and time go on from the newest line that counts, which the new term names."""
    directory.term(*ordered(1, 2))
    start = directory.begin()
    assert (start.term, start.state.orders, start.state.seq) == (2, 2, 5)
    first = start.events[0]
    assert isinstance(first, TermStarted)
    assert first.after == {"term": 1, "seq": 5}
    assert start.clock.now_ns() >= start.state.at_ns


def test_a_run_that_is_held_is_left_alone(directory: Directory) -> None:
    """While its agent lives nobody takes the run, and nothing in the directory changes."""
    directory.term(*ordered(1), ends=False)
    before = sorted(str(path) for path in directory.path.rglob("*"))
    with pytest.raises(RunHeld):
        directory.begin()
    assert sorted(str(path) for path in directory.path.rglob("*")) == before


def test_a_damaged_journal_is_no_fresh_start(directory: Directory) -> None:
    """A journal that can't be read is an error with file and line, never an empty past (invariant 11)."""
    directory.term(*ordered(1, 2))
    path = lines.pieces(directory.path)[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(JournalError, match=path.name):
        directory.begin()


def test_what_is_durable_is_where_it_lies(directory: Directory) -> None:
    """Checkpoints that journal and disk agree on are known by directory and time, and told no more."""
    name = directory.checkpoint(10, term=1, order=1)
    directory.term(*ordered(1), committed(10))
    start = directory.begin()
    assert (start.names, start.written_ns) == ({at(10): name}, {at(10): 10})
    assert told(start) == []


def test_a_checkpoint_whose_line_was_lost_is_found(directory: Directory) -> None:
    """A manifest that was renamed in just before its line could be written counts: it is told now."""
    directory.term(*ordered(1))
    directory.checkpoint(10, term=1, order=1)
    start = directory.begin()
    (event,) = told(start)
    assert isinstance(event, SnapshotCommitted)
    assert (event.step, event.branch, event.tier) == (10, 1, "DISK")
    assert event.bytes > 0
    assert at(10) in start.names


def test_a_checkpoint_that_is_gone_is_marked_so(directory: Directory) -> None:
    """What the journal knows and the disk doesn't have is told, so that nobody counts on it."""
    directory.term(*ordered(1), committed(10))
    start = directory.begin()
    (event,) = told(start)
    assert event == SnapshotMarked(step=10, branch=1, mark="gone", why="its directory is gone or damaged")


def test_a_damaged_checkpoint_is_passed_over_and_named(directory: Directory) -> None:
    """A checkpoint that lacks a file is no checkpoint, but its directory stays, with the reason."""
    name = directory.checkpoint(10, term=1, order=1)
    (directory.path / "checkpoints" / name / "rank-00000.safetensors").unlink()
    directory.term(*ordered(1), committed(10))
    start = directory.begin()
    assert list(reasons(start)) == [f"checkpoints/{name}"]
    assert "rank-00000.safetensors" in reasons(start)[f"checkpoints/{name}"]
    (gone,) = told(start)
    assert isinstance(gone, SnapshotMarked)
    assert start.names == {}


def test_what_has_no_manifest_is_unfinished(directory: Directory) -> None:
    """A write or a deletion that was cut short left no checkpoint: its directory may be cleared away."""
    directory.term(*ordered(1))
    name = directory.checkpoint(10, term=1, order=1)
    (directory.path / "checkpoints" / name / "manifest.json").unlink()
    start = directory.begin()
    assert (start.unfinished, start.passed_over, told(start)) == ([name], [], [])


def test_a_checkpoint_of_another_run_is_not_ours(directory: Directory) -> None:
    """A checkpoint that was copied in from elsewhere is named and not used."""
    directory.term(*ordered(1))
    name = directory.checkpoint(10, term=1, order=1, run="f" * 32)
    start = directory.begin()
    assert reasons(start) == {f"checkpoints/{name}": "it is of another run (ffffffff…)"}
    assert start.names == {}


@pytest.mark.parametrize("order", [3, 4, 99])
def test_a_checkpoint_of_a_history_that_was_cut_does_not_count(directory: Directory, order: int) -> None:
    """A manifest whose order the journal doesn't know, or that a later term gave, is another history's."""
    directory.term(*ordered(1, 2))
    directory.term(*ordered(3))
    name = directory.checkpoint(10, term=1, order=order)
    start = directory.begin()
    assert "a term that was cut wrote it" in reasons(start)[f"checkpoints/{name}"]
    assert start.names == {}


def test_a_checkpoint_of_a_branch_that_was_cut_does_not_count(directory: Directory) -> None:
    """An order of the common past may have been carried out on a branch that only a cut term knew."""
    directory.term(*ordered(1))
    name = directory.checkpoint(10, term=1, order=1, branch=2, lineage=((1, 0), (2, 5)))
    start = directory.begin()
    assert list(reasons(start)) == [f"checkpoints/{name}"]
    assert start.names == {}


def test_a_checkpoint_that_a_later_term_wrote_for_a_pending_order_counts(directory: Directory) -> None:
    """An order outlives its agent: what its successor wrote for it is durable, and stays so."""
    directory.term(*ordered(1))
    name = directory.checkpoint(10, term=2, order=1)
    directory.term(committed(10))
    start = directory.begin()
    assert start.passed_over == []
    assert start.names == {at(10): name}
    assert told(start) == []
