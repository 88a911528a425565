"""The judgement over whole histories: orders, restores, suspects, and what a person may throw at it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.histories import World, few, folded, histories, moments

from surefoot.core import advance as judgement
from surefoot.core.advance import advance
from surefoot.core.events import (
    Asked,
    AttemptStarted,
    Configured,
    KnobSet,
    Line,
    OrderDone,
    Ordered,
    OrderFailed,
    Restored,
    SnapshotMarked,
    StepDone,
)
from surefoot.core.numbers import SnapshotId, place_in
from surefoot.core.orders import Mark, Order, Prune, Restart, Rollback, Save, Write
from surefoot.core.snapshots import find
from surefoot.core.state import RunState

REWOUND = {"step", "batch", "sample", "last", "session", "exactness", "lineage", "ledger"}
"""What training computed, and what is measured by it (invariant 6)."""

OF_A_RESTORE = {"seq", "at_ns", "heard", "branches", "attempt", "fault", "tries", "saved_step", "saved_ns"}
"""What says that a restore has happened."""


@few
@given(histories())
def test_a_restore_rewinds_what_was_computed_and_nothing_decided(world: World) -> None:
    """A restore moves the position back; settings, knobs, skips, marks, orders, budgets and terms stay."""
    for moment in moments(world.lines):
        if isinstance(moment.line.event, Restored):
            before, after, event = moment.before, moment.after, moment.line.event
            changed = {f.name for f in fields(RunState) if getattr(before, f.name) != getattr(after, f.name)}
            assert changed <= REWOUND | OF_A_RESTORE
            assert (after.step, after.batch, after.sample) == (event.step, event.batch, event.sample)
            assert after.head == SnapshotId(event.step, event.branch)
            assert (after.last, after.session, after.fault) == (None, None, None)
            assert all(step < event.step for step, _ in after.exactness.trail)


@few
@given(histories())
def test_the_position_is_what_was_told_last(world: World) -> None:
    """Step, batch and sample are those of the newest turn or restore, and nothing else moves them."""
    expected = (0, 0, 0)
    for moment in moments(world.lines):
        event = moment.line.event
        if isinstance(event, StepDone):
            expected = (event.step + 1, event.batch, event.sample)
        elif isinstance(event, Restored):
            expected = (event.step, event.batch, event.sample)
        assert (moment.after.step, moment.after.batch, moment.after.sample) == expected


@few
@given(histories())
def test_orders_are_neither_lost_nor_doubled(world: World) -> None:
    """Orders are numbered without gaps over all terms, and pending is what was ordered and isn't over."""
    pending: dict[int, Order] = {}
    given = 0
    for moment in moments(world.lines):
        event = moment.line.event
        if isinstance(event, Ordered):
            given += 1
            assert event.order == given
            pending[event.order] = event.body
        elif isinstance(event, OrderDone | OrderFailed):
            pending.pop(event.order, None)
        assert moment.after.orders == given
        assert {each.order: each.body for each in moment.after.pending} == pending
        assert [each.order for each in moment.after.pending] == sorted(pending)


@few
@given(histories())
def test_an_order_is_over_once(world: World) -> None:
    """No order is reported done or failed twice, whoever dies in between."""
    over = [line.event.order for line in world.lines if isinstance(line.event, OrderDone | OrderFailed)]
    assert len(over) == len(set(over))


@few
@given(histories())
def test_an_order_belongs_to_the_term_that_gave_it(world: World) -> None:
    """`term_of` names the term in which each order stands in the journal, and knows no other order."""
    given: dict[int, int] = {}
    for moment in moments(world.lines):
        if isinstance(moment.line.event, Ordered):
            given[moment.line.event.order] = moment.after.term
    assert {order: world.state.term_of(order) for order in given} == given
    assert world.state.term_of(0) is None
    assert world.state.term_of(len(given) + 1) is None


def names(body: Order) -> SnapshotId | None:
    """Return the snapshot that an order would have used or deleted."""
    match body:
        case Write(snapshot=id) | Prune(snapshot=id):
            return id
        case Restart(source=id):
            return id
        case Rollback(to=id):
            return id
        case Mark(snapshot=id, mark="good"):
            return id
    return None


@few
@given(histories())
def test_advice_never_names_a_suspect(world: World) -> None:
    """No advice uses, praises or deletes a suspect snapshot, marks one again, or names one twice."""
    for moment in moments(world.lines):
        suspects = {s.id for s in moment.after.catalogue if s.mark == "suspect"} | set(moment.after.suspects)
        for advice in moment.advice:
            assert names(advice.body) not in suspects, advice
        marks = [(a.body.snapshot, a.body.mark) for a in moment.advice if isinstance(a.body, Mark)]
        assert len(marks) == len(set(marks))
        assert not {id for id, mark in marks if mark == "suspect"} & suspects
        assert all(advice.reason for advice in moment.advice)


@few
@given(histories())
def test_advice_is_about_what_is_there(world: World) -> None:
    """Only what is durable is called good or deleted, only the lineage's is called good, and nothing twice."""
    for moment in moments(world.lines):
        for advice in moment.advice:
            match advice.body:
                case Mark(snapshot=id, mark="good"):
                    assert find(moment.after.catalogue, id) is not None
                    assert place_in(moment.after.lineage, id) is not None
                    old = moment.after.step - id.step >= moment.after.settings.probation_steps
                    assert old or id.step == 0
                case Prune(snapshot=id):
                    assert find(moment.after.catalogue, id) is not None
                case _:
                    continue
            assert advice.body not in [pending.body for pending in moment.after.pending]


@few
@given(histories())
def test_nothing_is_forgotten_on_probation(world: World) -> None:
    """After each turn every durable snapshot of the lineage past its probation is marked, or about to be."""
    for moment in moments(world.lines):
        if not isinstance(moment.line.event, StepDone):
            continue
        state = moment.after
        bodies = [*(p.body for p in state.pending), *(a.body for a in moment.advice)]
        praised = {body.snapshot for body in bodies if isinstance(body, Mark)}
        for snapshot in state.catalogue:
            old = state.step - snapshot.id.step >= state.settings.probation_steps
            if old and place_in(state.lineage, snapshot.id) is not None:
                assert snapshot.mark or snapshot.id in praised


@few
@given(histories())
def test_one_restart_and_one_save_at_a_time(world: World) -> None:
    """A restart is never advised beside a pending one, nor is a save that only time asks for."""
    for moment in moments(world.lines):
        bodies = [advice.body for advice in moment.advice]
        before = [pending.body for pending in moment.before.pending]
        assert sum(isinstance(body, Restart) for body in bodies + before) <= 1 or not bodies
        if isinstance(moment.line.event, StepDone):
            assert sum(isinstance(body, Save) for body in bodies) <= 1
            assert not (any(isinstance(b, Save) for b in bodies) and any(isinstance(b, Save) for b in before))


@few
@given(histories(), st.booleans())
def test_history_wins_over_judgement(world: World, always: bool) -> None:
    """Whatever another version would have advised, folding the journal gives the same state."""
    expected = folded(world.lines)
    with pytest.MonkeyPatch.context() as patch:
        everything = tuple(snapshot.id for snapshot in expected.catalogue) if always else ()
        patch.setattr(judgement, "save_due", lambda _: "always" if always else None)
        patch.setattr(judgement, "past_probation", lambda _: everything)
        patch.setattr(judgement, "prunable", lambda *_: everything)
        assert folded(world.lines) == expected


@few
@given(histories())
def test_a_line_that_comes_twice_counts_once(world: World) -> None:
    """What the ranks send again, all of it, changes nothing."""
    before, count = world.state, len(world.lines)
    world.say_again()
    assert (world.state, len(world.lines)) == (before, count)


@few
@given(histories())
def test_knobs_and_settings_are_what_was_told_last(world: World) -> None:
    """Every knob and every setting has the newest value of the journal, over all restores and terms."""
    knobs: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for line in world.lines:
        if isinstance(line.event, KnobSet):
            knobs[line.event.name] = line.event.value
        elif isinstance(line.event, Configured):
            told |= {key: value for key, (value, _) in line.event.settings.items()}
    assert world.state.knobs == knobs
    ours = {f.name: getattr(world.state.settings, f.name) for f in fields(world.state.settings)}
    assert {**ours, **world.state.declared} | told == {**ours, **world.state.declared}


@few
@given(histories())
def test_tries_count_deaths_while_loading(world: World) -> None:
    """A snapshot's tries are the attempts in a row that died while loading it, those with an error apart."""
    tries: dict[SnapshotId, int] = {}
    loading: SnapshotId | None = None
    for moment in moments(world.lines):
        event = moment.line.event
        if isinstance(event, AttemptStarted):
            loading = event.restore
        elif isinstance(event, Restored) and moment.before.attempt.phase != "running":
            if moment.before.attempt.restore is not None:
                tries.pop(moment.before.attempt.restore, None)
            loading = None
        elif moment.before.attempt.phase != "ended" and moment.after.attempt.phase == "ended":
            if loading is not None and moment.after.fault is not None and moment.after.fault.blame != "user":
                tries[loading] = tries.get(loading, 0) + 1
            loading = None
        got = {SnapshotId(*map(int, name.split("."))): n for name, n in moment.after.tries.items()}
        assert got == tries


@few
@given(histories())
def test_suspects_are_marked_and_unmarked_by_marks_alone(world: World) -> None:
    """A snapshot is suspect from its mark until it is called good, also one that isn't durable yet."""
    suspects: set[SnapshotId] = set()
    for moment in moments(world.lines):
        event = moment.line.event
        if isinstance(event, SnapshotMarked):
            id = SnapshotId(event.step, event.branch)
            suspects = (
                suspects | {id}
                if event.mark == "suspect"
                else suspects - {id}
                if event.mark == "good"
                else suspects
            )
        assert set(moment.after.suspects) == suspects
        marked = {s.id for s in moment.after.catalogue if s.mark == "suspect"}
        assert marked == suspects & {s.id for s in moment.after.catalogue}


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
WORDS = st.sampled_from(["step", "branch", "name", "value", "why", "word", "exit_code", "keys", "x"])


@given(
    st.sampled_from(["save", "write", "set", "stop", "start", "accept_change", "rollback", "mode", ""]),
    st.dictionaries(WORDS, NONSENSE, max_size=4),
)
def test_nobody_can_ask_the_brain_to_death(do: str, args: dict[str, Any]) -> None:
    """A request may hold anything: one that makes no sense is on record, and that is all."""
    state = RunState(step=3, lineage=((1, 0),))
    after, advice = advance(state, Line(1, 1, Asked(id="1", who="eve", do=do, args=args)))
    assert replace(after, seq=0, at_ns=0, accepted=()) == state
    assert len(advice) <= 1
