"""The brain: stamps, orders, what may be acted on, and what it does without its store."""

from __future__ import annotations

import pytest

from surefoot.brain import SILENT_NS, Brain, Clock
from surefoot.core.advance import advance
from surefoot.core.events import (
    Asked,
    ConditionSeen,
    Line,
    Noted,
    OrderDone,
    Ordered,
    StepDone,
    TermStarted,
)
from surefoot.core.orders import Restart, Save, Set
from surefoot.core.state import RunState
from surefoot.errors import JournalError
from surefoot.journal.codec import TEXT_BYTES_MAX, decode
from surefoot.testing import ManualClock

S = 1_000_000_000
UNIX_NS = 1_700_000_000 * S


class Scribe:
    """Takes lines and keeps them."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[bytes], bool]] = []

    def append(self, first_seq: int, lines: list[bytes], *, sync: bool) -> None:
        self.calls.append((first_seq, list(lines), sync))

    @property
    def lines(self) -> list[Line]:
        return [decode(raw) for _, lines, _ in self.calls for raw in lines]


class Mind:
    """A brain on a clock that stands still, and what it hands to its scribe."""

    def __init__(self, state: RunState | None = None) -> None:
        self.time = ManualClock(50 * S)
        self.scribe = Scribe()
        state = state or RunState()
        clock = Clock(UNIX_NS, self.time.now_ns, state.at_ns)
        self.brain = Brain(state, self.scribe, clock, "n0")

    def lines(self) -> list[Line]:
        self.brain.flush()
        return self.scribe.lines


def turn(step: int) -> StepDone:
    return StepDone(branch=1, step=step, batch=step, sample=step, end_ns=UNIX_NS)


SAVE = Asked(id="1", who="ada", do="save")


def test_the_clock_is_unix_time_at_first_and_monotonic_from_there_on() -> None:
    """The brain's clock begins at Unix time and goes as CLOCK_MONOTONIC does; the offset is for the ranks."""
    time = ManualClock(50)
    clock = Clock(1_000, time.now_ns)
    assert (clock.now_ns(), clock.offset_ns) == (1_000, 950)
    time.advance(7)
    assert clock.now_ns() == 1_007 == time.now_ns() + clock.offset_ns


def test_the_clock_begins_no_earlier_than_the_journal_ends() -> None:
    """A machine whose clock was set back goes on at the last line's time."""
    assert Clock(1_000, ManualClock(50).now_ns, 5_000).now_ns() == 5_000
    assert Clock(1_000, ManualClock(50).now_ns, 500).now_ns() == 1_000


def test_lines_are_stamped_in_the_order_in_which_they_are_told() -> None:
    """Each event gets the next seq and the time at which it was told."""
    mind = Mind(RunState(seq=41, at_ns=UNIX_NS + 5))
    mind.brain.tell(Noted(text="a"))
    mind.time.advance(9)
    mind.brain.tell(Noted(text="b"), origin=(1, 3))
    assert mind.lines() == [
        Line(42, UNIX_NS + 5, Noted(text="a")),
        Line(43, UNIX_NS + 14, Noted(text="b"), (1, 3)),
    ]


def test_the_live_state_is_the_fold_of_the_lines() -> None:
    """The brain holds exactly what folding what it wrote gives, also where a text was cut on the way."""
    mind = Mind()
    mind.brain.tell(TermStarted(format=1, term=1, after={"term": 0, "seq": 0}, node="n0"))
    mind.brain.tell(Asked(id="1", who="ada", do="stop", args={"why": "x" * (TEXT_BYTES_MAX + 1)}))
    mind.brain.tell(turn(0), origin=(0, 1))
    state = RunState()
    for line in mind.lines():
        state, _ = advance(state, line)
    assert state == mind.brain.state
    assert "cut: " in state.pending[0].reason


def test_an_order_is_on_record_right_behind_its_cause() -> None:
    """Advice becomes an `ordered` with the next number and its reason, before anything else is told."""
    mind = Mind(RunState(orders=6))
    mind.brain.tell(SAVE)
    mind.brain.tell(Noted(text="later"))
    cause, ordered, later = (line.event for line in mind.lines())
    assert (cause, later) == (SAVE, Noted(text="later"))
    assert ordered == Ordered(order=7, body=Save(why="asked by ada"), reason="asked by ada")


def test_a_line_that_a_rank_sends_again_counts_once() -> None:
    """What a rank doesn't know to be on disk it sends again: known by its n, each rank for itself."""
    mind = Mind()
    for origin in [(0, 1), (0, 2), (0, 1), (0, 2), (1, 1), (0, 3), (1, 1)]:
        mind.brain.tell(Noted(text=f"{origin}"), origin=origin)
    assert [line.origin for line in mind.lines()] == [(0, 1), (0, 2), (1, 1), (0, 3)]


def test_lines_go_to_the_scribe_together() -> None:
    """A flush hands over what was told since the last, with its first seq, and nothing twice."""
    mind = Mind()
    mind.brain.flush()
    mind.brain.tell(Noted(text="a"))
    mind.brain.tell(Noted(text="b"))
    mind.brain.flush()
    mind.brain.flush()
    mind.brain.tell(Noted(text="c"))
    mind.brain.flush()
    assert [(first, len(lines)) for first, lines, _ in mind.scribe.calls] == [(1, 2), (3, 1)]


def test_turns_alone_wait_for_the_next_sync() -> None:
    """Turns reach the disk within a second; every other line is synced at once."""
    mind = Mind(RunState(saved_ns=UNIX_NS))
    mind.brain.tell(turn(0))
    mind.brain.flush()
    mind.brain.tell(turn(1))
    mind.brain.tell(Noted(text="a"))
    mind.brain.flush()
    mind.brain.tell(turn(2))
    mind.brain.flush()
    assert [sync for _, _, sync in mind.scribe.calls] == [False, True, False]


def test_an_order_is_due_when_its_line_is_durable() -> None:
    """No order is carried out before its line is on disk, and each is handed out once."""
    mind = Mind()
    mind.brain.tell(SAVE)
    mind.brain.tell(Asked(id="2", who="ada", do="set", args={"name": "clip", "value": 1}))
    mind.brain.flush()
    assert mind.brain.due() == []
    mind.brain.durable(1)
    assert mind.brain.due() == []
    mind.brain.durable(2)
    assert [pending.order for pending in mind.brain.due()] == [1]
    mind.brain.durable(4)
    (last,) = mind.brain.due()
    assert (last.order, last.body, last.reason) == (2, Set(name="clip", value=1), "asked by ada")
    assert mind.brain.due() == []
    assert [pending.order for pending in mind.brain.state.pending] == [1, 2]


def test_a_silent_store_holds_no_action() -> None:
    """After 5 s without an answer of the store orders are carried out all the same, and a line says so."""
    mind = Mind()
    mind.brain.tell(SAVE)
    mind.brain.flush()
    mind.time.advance(SILENT_NS - 1)
    assert mind.brain.due() == []
    mind.time.advance(1)
    assert [pending.order for pending in mind.brain.due()] == [1]
    seen = mind.lines()[-1].event
    assert isinstance(seen, ConditionSeen)
    assert (seen.kind, seen.node) == ("store_silent", "n0")
    assert mind.brain.due() == []


def test_an_order_that_is_durable_is_late_for_no_reason_of_the_stores() -> None:
    """Orders that were durable all along say nothing of silence, however late they are fetched."""
    mind = Mind()
    mind.brain.tell(SAVE)
    mind.brain.flush()
    mind.brain.durable(2)
    mind.time.advance(10 * SILENT_NS)
    assert len(mind.brain.due()) == 1
    assert len(mind.lines()) == 2


def test_durable_never_goes_back() -> None:
    """A late word of an older seq makes nothing undurable."""
    mind = Mind()
    mind.brain.tell(SAVE)
    mind.brain.flush()
    mind.brain.durable(2)
    mind.brain.durable(1)
    assert len(mind.brain.due()) == 1


def test_settled_is_when_all_that_was_told_is_on_disk() -> None:
    """A brain with lines to flush or to sync isn't settled; a store that is silent for long settles it too."""
    mind = Mind(RunState(seq=7))
    assert mind.brain.is_settled
    mind.brain.tell(Noted(text="a"))
    assert not mind.brain.is_settled
    mind.brain.flush()
    assert not mind.brain.is_settled
    mind.brain.durable(8)
    assert mind.brain.is_settled
    mind.brain.tell(Noted(text="b"))
    mind.brain.flush()
    mind.time.advance(SILENT_NS)
    assert mind.brain.is_settled


def test_the_orders_of_the_term_before_are_not_given_again() -> None:
    """A new brain knows what is pending, and hands out only what it orders itself."""
    before = Mind()
    before.brain.tell(SAVE)
    after = Mind(before.brain.state)
    after.brain.durable(before.brain.state.seq)
    assert after.brain.due() == []
    assert [pending.order for pending in after.brain.state.pending] == [1]
    after.brain.tell(OrderDone(order=1))
    assert list(after.brain.state.pending) == []
    after.brain.tell(Asked(id="3", who="ada", do="start"))
    assert [(each.order, each.body) for each in after.brain.state.pending] == [(2, Restart())]


def test_a_line_that_is_too_long_leaves_the_brain_as_it_was() -> None:
    """An event that no line can hold raises, and is not in the state nor in the journal: the next one is."""
    mind = Mind()
    with pytest.raises(JournalError, match="at most"):
        mind.brain.tell(Asked(id="1", who="eve", do="save", args={str(n): "x" * 60_000 for n in range(20)}))
    assert mind.brain.state == RunState()
    mind.brain.tell(Noted(text="a"))
    assert [line.seq for line in mind.lines()] == [1]


def test_time_that_stands_still_is_no_harm() -> None:
    """Lines of one instant have one time and keep their order."""
    mind = Mind()
    for text in "abc":
        mind.brain.tell(Noted(text=text))
    assert {line.at_ns for line in mind.lines()} == {UNIX_NS}
    assert [line.seq for line in mind.lines()] == [1, 2, 3]
