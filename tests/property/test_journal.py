"""The journal: what is written is what is read, and what was harmed is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from surefoot.core.events import EVENTS, Event, Line, Noted, Ordered, Proposed, TermStarted, WouldHave
from surefoot.core.orders import ORDERS, Note, Order, Watch
from surefoot.core.state import RunState
from surefoot.errors import JournalError
from surefoot.journal.cache import state_hash
from surefoot.journal.codec import decode, encode, from_json, seal, tag, to_json, unseal, untag
from surefoot.journal.files import Appender, counts, read, tail

# Values of every type that an event or a state may hold.

WHOLE = st.integers(-(2**70), 2**70)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    int: WHOLE,
    bool: st.booleans(),
    str: st.text(max_size=20),
    float: st.floats(),
}


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of an annotation."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint is Order:
        return st.sampled_from(sorted(ORDERS)).flatmap(lambda name: of(ORDERS[name]))
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        given = {f.name: of(hints[f.name]) for f in fields(hint)}
        required = {f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING}
        return st.fixed_dictionaries(
            {name: values for name, values in given.items() if name in required},
            optional={name: values for name, values in given.items() if name not in required},
        ).map(lambda found: hint(**found))
    if origin is UnionType:
        return st.one_of(*(st.none() if arg is NoneType else of(arg) for arg in args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, args))
    assert origin is dict
    return st.dictionaries(of(args[0]), of(args[1]), max_size=3)


CARRIERS = (Ordered, Proposed, WouldHave)


def one_verdict(event: Event) -> Event:
    """A line has room for one verdict: a note's is that of the event around it."""
    if isinstance(event, CARRIERS) and isinstance(event.body, Note | Watch):
        return replace(event, body=replace(event.body, verdict=event.verdict))
    return event


@pytest.mark.parametrize("cls", EVENTS.values(), ids=lambda cls: cls.EV)
@given(data=st.data())
def test_every_event_comes_back(cls: type[Event], data: st.DataObject) -> None:
    """Every event with any values in its fields is read as it was written, with its place and sender."""
    event = one_verdict(data.draw(of(cls)))
    origin = None if isinstance(event, CARRIERS) else data.draw(st.none() | st.tuples(WHOLE, WHOLE))
    line = Line(data.draw(WHOLE), data.draw(WHOLE), event, origin)
    raw = encode(line)
    assert repr(decode(raw)) == repr(line)  # nan equals nan in words only
    assert raw.count(b"\n") == 1


@given(of(RunState))
def test_every_state_comes_back(state: RunState) -> None:
    """Any state is stored and loaded as itself, and the hash of what was loaded is the same."""
    loaded = from_json(RunState, unseal(seal(to_json(state))))
    assert repr(loaded) == repr(state)
    assert state_hash(loaded) == state_hash(state)


# Plain state.

HASHABLE = st.recursive(
    st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False) | st.text() | st.binary(max_size=9)
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner),
    max_leaves=4,
)  # fmt: skip
PLAIN = st.recursive(
    HASHABLE | st.floats() | st.complex_numbers() | st.sets(HASHABLE, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["$", "$set", "check", "nan"]), inner, max_size=3
        )
        | st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Tell whether two plain values are equal in value and type all the way down; nan equals nan."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, complex):
        return same((one.real, one.imag), (other.real, other.imag))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, set):
        return one == other and {type(inner) for inner in one} == {type(inner) for inner in other}
    return bool(one == other)


@given(PLAIN)
def test_plain_state_comes_back(value: Any) -> None:
    """Any plain value is equal, type for type, after having been tagged, sealed, unsealed and untagged."""
    assert same(untag(unseal(seal({"plain": tag(value)}))["plain"]), value)


@given(st.lists(HASHABLE, unique=True, max_size=6), st.randoms())
def test_a_set_has_one_form(values: list, random: Any) -> None:
    """Equal sets are written as equal bytes, whatever order they were filled in."""
    shuffled = random.sample(values, len(values))
    assert seal({"s": tag(set(values))}) == seal({"s": tag(set(shuffled))})


@given(st.dictionaries(st.text(min_size=1).filter(lambda k: k != "check"), JSON, min_size=1), st.data())
def test_a_flipped_bit_breaks_a_seal(obj: dict, data: st.DataObject) -> None:
    """A sealed object with any one bit changed is refused."""
    raw = bytearray(seal(obj))
    assert unseal(bytes(raw)) == obj
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(JournalError):
        unseal(bytes(raw))


# Files.


def noted(seq: int) -> Line:
    return Line(seq, seq, Noted(text="x" * (seq % 7)))


def started(term: int, after: tuple[int, int]) -> Line:
    event = TermStarted(format=1, term=term, after={"term": after[0], "seq": after[1]}, node="n")
    return Line(after[1] + 1, 0, event)


def write(run_dir: Path, term: int, lines: list[Line]) -> None:
    appender = Appender(run_dir, term)
    appender.append(lines[0].seq, [encode(line) for line in lines])
    appender.close()


def in_a_run(test: Callable[[Path], None]) -> None:
    with TemporaryDirectory() as folder:
        test(Path(folder))


@st.composite
def terms(draw: st.DrawFn) -> list[tuple[int, list[Line], int]]:
    """Draw (term, its lines, how many of them count); each goes on from one before it, not always the last."""
    drawn: list[tuple[int, list[Line], int]] = []
    term = 0
    for _ in range(draw(st.integers(1, 4))):
        term += draw(st.integers(1, 2))
        after = (0, 0)
        if drawn:
            # A term begun from an older one than the last: the last one's holder was stale and is passed over.
            while len(drawn) > 1 and draw(st.booleans()):
                drawn[-1] = (drawn[-1][0], drawn[-1][1], 0)
                break
            place = next(i for i in reversed(range(len(drawn))) if drawn[i][2] > 0)
            number, lines, length = drawn[place]
            kept = draw(st.integers(1, length))
            drawn[place] = (number, lines, kept)
            after = (number, lines[kept - 1].seq)
        first = started(term, after)
        lines = [first, *(noted(first.seq + n) for n in range(1, draw(st.integers(1, 6))))]
        drawn.append((term, lines, len(lines)))
    return drawn


@given(terms(), st.data())
def test_what_counts_is_what_the_cuts_leave(
    drawn: list[tuple[int, list[Line], int]], data: st.DataObject
) -> None:
    """Each term counts up to where the next one's `after` cut it, whatever stale writers wrote behind."""

    def test(run_dir: Path) -> None:
        kept = [(term, line) for term, lines, count in drawn for line in lines[:count]]
        for term, lines, count in drawn:
            write(run_dir, term, lines)
            if 0 < count < len(lines):
                with next((run_dir / "journal").glob(f"{term:06d}-*")).open("ab") as file:
                    file.write(data.draw(st.binary(max_size=40)))
        assert list(read(run_dir)) == [line for _, line in kept]
        assert tail(run_dir) == (kept[-1][0], kept[-1][1].seq)
        for place, (term, line) in enumerate(kept, 1):
            assert list(read(run_dir, after=(term, line.seq))) == [line for _, line in kept[place:]]
        for term, lines, count in drawn:
            assert [counts(run_dir, term, line.seq) for line in lines] == [n < count for n in range(len(lines))]

    in_a_run(test)


@given(st.integers(1, 5), st.data())
def test_a_flipped_bit_in_a_journal_is_noticed(length: int, data: st.DataObject) -> None:
    """A journal with any one bit changed is refused with the name of the file."""

    def test(run_dir: Path) -> None:
        lines = [started(1, (0, 0)), *map(noted, range(2, length + 1))]
        cut = data.draw(st.integers(1, length))
        write(run_dir, 1, lines[:cut])
        if lines[cut:]:
            write(run_dir, 1, lines[cut:])
        path = data.draw(st.sampled_from(sorted((run_dir / "journal").iterdir())))
        raw = bytearray(path.read_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(raw)
        with pytest.raises(JournalError, match=path.name):
            list(read(run_dir))

    in_a_run(test)


class Scribes(RuleBasedStateMachine):
    """Scribes of one term that die at any byte, with or without the machine, and are replaced.

    Held against a list: what the brain was told to be durable is there, each line once, in order.
    """

    @initialize()
    def begin(self) -> None:
        self.folder = TemporaryDirectory()
        self.run_dir = Path(self.folder.name)
        self.lines = [started(1, (0, 0))]
        self.written = 0
        self.synced = 0
        self.synced_bytes: dict[Path, int] = {}
        self.pen = Appender(self.run_dir, 1)

    def pieces(self) -> list[Path]:
        journal = self.run_dir / "journal"
        return list(journal.iterdir()) if journal.is_dir() else []

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        self.lines += [noted(len(self.lines) + 1 + n) for n in range(count)]
        self.pen.append(self.written + 1, [encode(line) for line in self.lines[self.written :]])
        self.written = len(self.lines)

    @rule()
    def sync(self) -> None:
        self.pen.sync()
        self.synced = self.written
        self.synced_bytes = {path: path.stat().st_size for path in self.pieces()}

    @rule()
    def replace(self) -> None:
        """The scribe dies; the next one is sent again all that wasn't acknowledged."""
        self.pen._let_go()
        self.pen = Appender(self.run_dir, 1)
        self.written = self.synced

    @rule(data=st.data())
    def spoil(self, data: st.DataObject) -> None:
        """A sync failed: what wasn't synced may be anything, and is sent again."""
        self.replace()
        for path in self.pieces():
            unsynced = path.stat().st_size - self.synced_bytes.get(path, 0)
            with path.open("r+b") as file:
                file.seek(self.synced_bytes.get(path, 0))
                file.write(data.draw(st.binary(min_size=min(unsynced, 20), max_size=min(unsynced, 20))))
        self.append(1)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """It dies in the middle of a write, or with the machine: what wasn't synced ends at any byte."""
        self.replace()
        for path in sorted(self.pieces()):
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.truncate(data.draw(st.integers(self.synced_bytes.get(path, 0), size)))

    @invariant()
    def nothing_durable_is_lost(self) -> None:
        if hasattr(self, "lines"):
            found = list(read(self.run_dir))
            assert found == self.lines[: len(found)]
            assert len(found) >= self.synced
            assert tail(self.run_dir) == ((1, len(found)) if found else (0, 0))
            if self.synced:
                assert list(read(self.run_dir, after=(1, self.synced))) == found[self.synced :]

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.pen._let_go()
            self.folder.cleanup()


Scribes.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
TestScribes = Scribes.TestCase
