"""fold(journal) is the live state: by hash, from files, from a cache, whatever was cut or torn."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st
from tests.histories import World, few, folded, histories

from surefoot.core.state import RunState
from surefoot.journal import cache
from surefoot.journal.cache import state_hash
from surefoot.journal.codec import decode, encode, from_json, seal, to_json, unseal
from surefoot.journal.files import Appender


def write(run_dir: Path, world: World, cuts: list[int]) -> None:
    """Write the journal as it lies on disk: what stale agents wrote behind their cut too, in pieces."""
    for term in world.terms:
        ends = [*sorted({cut % len(term.raw) for cut in cuts} - {0}), len(term.raw)]
        appender, begin = Appender(run_dir, term.number), 0
        for end in ends:
            appender.append(term.first_seq + begin, term.raw[begin:end])
            begin = end
        appender.close()


@few
@given(histories(), st.lists(st.integers(0, 99), max_size=3), st.binary(max_size=30))
def test_the_files_fold_to_the_live_state(world: World, cuts: list[int], torn: bytes) -> None:
    """Another process that reads the files comes by the brain's state and its hash, with or without a cache."""
    with TemporaryDirectory() as folder:
        run_dir = Path(folder)
        write(run_dir, world, cuts)
        with max((run_dir / "journal").iterdir()).open("ab") as file:
            file.write(torn.replace(b"\n", b""))
        found = cache.fold(run_dir, use_cache=False)
        assert found == world.state
        assert state_hash(found) == state_hash(world.state)
        middle = world.lines[: max(1, len(world.lines) // 2)]
        cache.store(run_dir, folded(middle))
        assert cache.load(run_dir) == folded(middle)
        assert cache.fold(run_dir) == world.state


@few
@given(histories())
def test_lines_say_everything(world: World) -> None:
    """The lines through the brain and the same lines read back give equal states, at every line."""
    live = RunState()
    read = RunState()
    for line in world.lines:
        live = folded([line], live)
        read = folded([decode(encode(line))], read)
        assert live == read
    assert live == world.state
    assert state_hash(live) == state_hash(world.state)


@few
@given(histories())
def test_a_state_that_was_stored_goes_on_as_if_it_had_not_been(world: World) -> None:
    """Stored and loaded in the middle, the rest of the journal leads to the same state."""
    middle = len(world.lines) // 2
    state = folded(world.lines[:middle])
    stored = from_json(RunState, unseal(seal(to_json(state))))
    assert stored == state
    assert folded(world.lines[middle:], stored) == world.state


@few
@given(histories())
def test_the_journal_is_in_order(world: World) -> None:
    """Lines are numbered from 1 without a gap, times never go back, and terms begin where the last ends."""
    lines = world.lines
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert [line.at_ns for line in lines] == sorted(line.at_ns for line in lines)
    assert (world.state.seq, world.state.at_ns) == (lines[-1].seq, lines[-1].at_ns)
    assert world.state.term == len(world.terms)
    assert [term for term, _ in world.state.terms] == [term.number for term in world.terms]
