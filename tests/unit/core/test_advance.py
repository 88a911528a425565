"""The judgement, case by case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.histories import World, folded, moments

from surefoot.core.advance import advance
from surefoot.core.events import (
    Asked,
    AttemptStarted,
    ChangeExpected,
    Event,
    KnobSet,
    Line,
    NodeJoined,
    Noted,
    OrderDone,
    Ordered,
    PhaseEntered,
    Restored,
    RunEnded,
    SignalReceived,
    SnapshotCommitted,
    SnapshotMarked,
    StepDone,
    WorkerExited,
    WorkerSilent,
)
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Mark, Order, Prune, Restart, Save, Set, Stop, Write
from surefoot.core.snapshots import find
from surefoot.core.state import RunState


def told(state: RunState, event: Event, at_ns: int | None = None) -> tuple[RunState, list[Order]]:
    """Return the state after an event, and the orders it advises."""
    line = Line(state.seq + 1, state.at_ns + 1 if at_ns is None else at_ns, event)
    state, advice = advance(state, line)
    return state, [each.body for each in advice]


def begun(**settings: Any) -> World:
    """Return a run that has restored its beginning, saved and called good."""
    world = World(**{"stage_every_steps": 5, "save_every_s": 1e6} | settings)
    world.start()
    world.load()
    world.settle()
    world.write()
    world.train(2, ns=0)
    world.settle()
    return world


def saved(world: World, *steps: int) -> World:
    """Train to each of these steps, and save there."""
    for step in steps:
        assert world.ranks is not None
        world.train(step - world.ranks.step - 1)
        world.ask("save")
        world.settle()
        world.train(1)
        world.write()
        world.settle()
    return world


def durable(world: World) -> list[int]:
    return sorted(snapshot.id.step for snapshot in world.state.catalogue)


def events(world: World, kind: type[Event]) -> list[Any]:
    return [line.event for line in world.lines if isinstance(line.event, kind)]


def ordered(world: World, kind: type[Order]) -> list[Any]:
    return [event.body for event in events(world, Ordered) if isinstance(event.body, kind)]


# --- beginning and going on -----------------------------------------------------------------------------


def test_the_beginning_is_saved_and_good() -> None:
    """A fresh start saves the state at step 0, and it counts as good when a turn is on record."""
    world = begun()
    assert ordered(world, Write) == [Write(snapshot=SnapshotId(0, 1))]
    snapshot = find(world.state.catalogue, SnapshotId(0, 1))
    assert snapshot is not None
    assert (snapshot.mark, world.state.pending) == ("good", ())


def test_every_attempt_follows_a_restart() -> None:
    """The first attempt, one after a crash and one of another launcher each have a restart of their own."""
    world = begun()
    world.crash()
    world.start()
    world.load()
    world.leave("stopped", 83)
    world.start()
    started = events(world, AttemptStarted)
    by_number = {event.order: event for event in events(world, Ordered)}
    assert [each.attempt for each in started] == [1, 2, 3]
    assert len({each.order for each in started}) == 3
    assert all(isinstance(by_number[each.order].body, Restart) for each in started)
    assert [by_number[each.order].reason for each in started] == [
        "started by launcher",
        "crash: signal 9, rank 0 at step 1",
        "started by launcher",
    ]


def test_a_kill_costs_what_lies_behind_the_newest_common_state() -> None:
    """After a crash the run goes on from memory, on a new branch, and the turns behind it are lost."""
    world = begun()
    world.train(7, ns=10)
    world.crash(page=True)
    world.start()
    world.load()
    assert world.state.head == SnapshotId(5, 2)
    assert world.state.lineage == ((1, 0), (2, 5))
    assert world.state.ledger.accounts["lost"] == 40


def test_a_dead_machine_costs_what_lies_behind_the_newest_checkpoint() -> None:
    """Without its memory the run goes on from disk."""
    world = saved(begun(), 13)
    world.train(7)
    world.agent_dies(machine=True)
    world.start()
    world.load()
    assert world.state.head == SnapshotId(13, 2)


def test_the_first_exit_condemns_the_group() -> None:
    """Exits after the first are symptoms: one fault, one restart, one write of what memory holds."""
    world = begun()
    world.crash(error="ValueError")
    state = world.state
    after, advice = told(state, WorkerExited(node="n0", rank=1, signal=6))
    assert (advice, after.fault) == ([], state.fault)
    assert state.fault is not None
    assert state.fault.signature == "ValueError: at #: #"
    assert [type(each.body) for each in state.pending] == [Write, Restart]


def test_a_restart_that_was_begun_and_not_done_is_begun_again() -> None:
    """An attempt that dies before it holds the state leaves its restart pending: no second one is ordered."""
    world = begun()
    world.crash()
    world.start()
    world.crash()
    world.start()
    assert len(ordered(world, Restart)) == 2
    assert [each.order for each in events(world, AttemptStarted)[1:]] == [world.state.attempt.order] * 2


def test_a_finished_run_stays_finished_until_it_does_another_turn() -> None:
    """What finished, and at which n, is known over starts that do nothing; a turn forgets it."""
    world = begun()
    world.leave()
    assert world.state.finished == (2, None)
    world.start()
    world.load()
    world.leave()
    assert world.state.finished == (2, None)
    world.start()
    world.load()
    world.train(2)
    assert world.state.finished is None
    assert world.state.ended is None


def test_rates_never_mix_attempts() -> None:
    """A session begins with an attempt's first turn: its rate knows nothing of the time before (D31)."""
    world = begun()
    world.train(9, ns=1_000)
    world.crash()
    world.clock.advance(10**12)
    world.start()
    world.load()
    assert world.state.session is None
    world.train(5, ns=100)
    session, last = world.state.session, world.state.last
    assert session is not None
    assert last is not None
    assert (last.end_ns - session.end_ns) / (last.step - session.step) == 100


# --- bad checkpoints ------------------------------------------------------------------------------------


def died_loading(world: World, times: int, **how: Any) -> None:
    for _ in range(times):
        world.start()
        world.crash(**how)
        world.settle()


def test_a_checkpoint_that_ends_every_load_is_passed_over() -> None:
    """After so many abrupt deaths while loading one it is suspect and kept, and the older one is used (D30)."""
    world = saved(begun(), 10, 20)
    world.agent_dies(machine=True)
    died_loading(world, 2)
    assert [each.restore.step for each in events(world, AttemptStarted)[1:]] == [20, 20]
    mark = events(world, SnapshotMarked)[-1]
    assert (mark.step, mark.mark, mark.why) == (20, "suspect", "a test says so")
    world.start()
    world.load()
    assert world.state.head == SnapshotId(10, 4)
    assert durable(world) == [0, 10, 20]


def test_an_error_that_is_reported_is_not_the_checkpoints_fault() -> None:
    """An exception while loading (a renamed layer, Ctrl-C) never makes a checkpoint suspect."""
    world = saved(begun(), 10)
    world.agent_dies(machine=True)
    died_loading(world, 5, error="StateMismatch")
    assert (world.state.tries, world.state.suspects) == ({}, ())
    world.start()
    world.load()
    assert world.state.head == SnapshotId(10, 7)


def test_a_load_that_works_forgets_the_deaths_before() -> None:
    """Deaths count in a row: one load that comes through begins the count anew."""
    world = saved(begun(), 10)
    world.agent_dies(machine=True)
    died_loading(world, 1)
    assert world.state.tries == {"10.1": 1}
    world.start()
    world.load()
    assert world.state.tries == {}


def test_a_machine_that_dies_while_loading_counts() -> None:
    """The start was on record before the checkpoint was tried, so the next agent knows of it."""
    world = saved(begun(), 10)
    world.agent_dies(machine=True)
    world.start()
    world.agent_dies(machine=True)
    world.start()
    assert world.state.tries == {"10.1": 1}


def restored(*over: dict[str, Any], step: int = 10, tier: str = "DISK") -> Restored:
    return Restored(
        branch=2, lineage=((1, 0), (2, step)), step=step, batch=step, sample=step, tier=tier, passed_over=over
    )


def over(step: int, why: str = "bad bits") -> dict[str, Any]:
    return {"what": f"step {step}", "why": why, "step": step, "branch": 1}


def test_what_was_passed_over_is_suspect() -> None:
    """Snapshots that couldn't be restored are marked with the reason; what isn't one is only told."""
    _, advice = told(RunState(), restored(over(30), {"what": "a directory", "why": "no manifest"}, over(20)))
    assert advice == [Mark(snapshot=SnapshotId(step, 1), mark="suspect") for step in (30, 20)]


def test_both_copies_of_a_snapshot_are_marked_once() -> None:
    """A snapshot that was bad in memory and on disk gets one mark: marks hold for all copies."""
    _, advice = told(RunState(), restored(over(30), over(30)))
    assert advice == [Mark(snapshot=SnapshotId(30, 1), mark="suspect")]


def test_a_bad_copy_of_what_was_restored_makes_nothing_suspect() -> None:
    """Where the copy in memory was bad and the one on disk was restored, the snapshot is as good as ever."""
    _, advice = told(RunState(), restored(over(10)))
    assert advice == []


# --- saves ----------------------------------------------------------------------------------------------


def test_a_save_is_ordered_once_while_it_is_due() -> None:
    """A due save is one order until it is over, however many turns pass meanwhile."""
    world = begun(save_every_steps=10)
    world.train(30)
    assert len(ordered(world, Save)) == 1
    world.settle()
    world.train(12)
    world.write()
    world.settle()
    world.train(9)
    assert durable(world)[:2] == [0, 33]
    assert len(ordered(world, Save)) == 2


def test_a_checkpoint_of_another_history_puts_off_no_save() -> None:
    """A write that ends after its turns were rolled back doesn't count as a save of this lineage."""
    world = begun(save_every_steps=20)
    state, _ = told(world.state, SnapshotCommitted(step=300, branch=9, tier="DISK", bytes=1))
    assert (state.saved_step, state.saved_ns) == (world.state.saved_step, world.state.saved_ns)
    assert find(state.catalogue, SnapshotId(300, 9)) is not None


def test_a_save_that_failed_is_counted_until_one_succeeds() -> None:
    """Failures in a row are known, and the next checkpoint ends the row."""
    world = begun()
    for expected in (1, 2):
        world.ask("save")
        world.settle()
        world.train(2)
        world.write(fails=True)
        assert world.state.save_failures == expected
    saved(world, 20)
    assert world.state.save_failures == 0


def test_a_copy_in_another_tier_is_the_same_snapshot() -> None:
    """A second commit adds its tier; mark, pin and kept time stay."""
    world = saved(begun(), 10)
    state, _ = told(world.state, SnapshotMarked(step=10, branch=1, mark="pinned"))
    before = find(state.catalogue, SnapshotId(10, 1))
    state, _ = told(state, SnapshotCommitted(step=10, branch=1, tier="BUCKET", bytes=100))
    after = find(state.catalogue, SnapshotId(10, 1))
    assert before is not None
    assert after is not None
    assert after == replace(before, tiers=("BUCKET", "DISK"), at_ns=after.at_ns)


def test_a_snapshot_that_became_suspect_before_it_was_durable_is_suspect() -> None:
    """A mark of what is in memory only holds for the copy on disk when that comes."""
    state, _ = told(RunState(lineage=((1, 0),)), SnapshotMarked(step=10, branch=1, mark="suspect"))
    state, _ = told(state, SnapshotCommitted(step=10, branch=1, tier="DISK", bytes=1))
    assert state.catalogue[0].mark == "suspect"
    state, _ = told(state, SnapshotMarked(step=10, branch=1, mark="good"))
    assert (state.catalogue[0].mark, state.suspects) == ("good", ())


def test_old_checkpoints_go_and_each_is_ordered_once() -> None:
    """With keep = 2 two stay beside the good ones; what is being deleted isn't ordered again."""
    world = saved(begun(keep=2, probation_steps=2), 10, 20, 30, 40, 50)
    assert durable(world) == [30, 40, 50]
    assert [body.snapshot.step for body in ordered(world, Prune)] == [0, 10, 20]
    world.train(4)
    world.settle()
    state, advice = told(world.state, SnapshotCommitted(step=60, branch=1, tier="DISK", bytes=1))
    assert advice == [Prune(snapshot=SnapshotId(30, 1))]
    state, _ = told(state, Ordered(order=state.orders + 1, body=advice[0], reason="r"))
    _, advice = told(state, SnapshotCommitted(step=61, branch=1, tier="DISK", bytes=1))
    assert SnapshotId(30, 1) not in [body.snapshot for body in advice if isinstance(body, Prune)]


# --- orders and people ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("do", "args", "body"),
    [
        ("save", {}, Save(why="asked by ada@n0")),
        ("write", {"step": 3, "branch": 1}, Write(snapshot=SnapshotId(3, 1))),
        ("set", {"name": "clip", "value": 0.5}, Set(name="clip", value=0.5)),
        ("stop", {}, Stop(word="stopped", exit_code=83, why="asked by ada@n0")),
        (
            "stop",
            {"word": "preempted", "exit_code": 75, "why": "w"},
            Stop(word="preempted", exit_code=75, why="w"),
        ),
        ("start", {}, Restart()),
    ],
)
def test_what_people_ask_for_is_ordered(do: str, args: dict[str, Any], body: Order) -> None:
    """Each request leads to its order, and the reason says who asked."""
    state, advice = advance(RunState(), Line(1, 1, Asked(id="1", who="ada@n0", do=do, args=args)))
    assert [each.body for each in advice] == [body]
    assert advice[0].reason == args.get("why", "started by ada@n0" if do == "start" else "asked by ada@n0")
    assert replace(state, seq=0, at_ns=0) == RunState()


@pytest.mark.parametrize(
    ("do", "args"),
    [
        ("set", {}),
        ("set", {"name": "clip"}),
        ("set", {"name": "stage_every", "value": "soon"}),
        ("set", {"name": "stage_every", "value": 0}),
        ("write", {"step": "soon", "branch": 1}),
        ("stop", {"exit_code": "now"}),
        ("stop", {"exit_code": float("inf")}),
        ("accept_change", {"keys": 3}),
        ("fly", {}),
    ],
)
def test_a_request_that_makes_no_sense_moves_nothing(do: str, args: dict[str, Any]) -> None:
    """It is on record and leads to no order: it must not end the brain, and the next one, and the next."""
    state, advice = told(RunState(), Asked(id="1", who="eve", do=do, args=args))
    assert (replace(state, seq=0, at_ns=0), advice) == (RunState(), [])


def test_a_yes_holds_for_one_attempt() -> None:
    """Changes that were agreed to are known over terms until an attempt has made them."""
    world = begun()
    world.leave("stopped", 83)
    world.ask("accept_change", keys=["seed", "optimizer.lr"])
    world.ask("accept_change", keys=["seed"])
    world.agent_dies(ends=True)
    assert world.state.accepted == ("optimizer.lr", "seed")
    world.start()
    assert list(world.state.accepted) == []


def test_a_knob_is_what_it_was_set_to_over_crashes_and_rollbacks() -> None:
    """A knob is set at a boundary, and no restore rewinds it."""
    world = begun()
    world.ask("set", name="clip", value=0.5)
    world.settle()
    world.train(3)
    assert world.state.knobs == {"clip": 0.5}
    world.crash()
    world.start()
    world.load()
    assert world.state.knobs == {"clip": 0.5}


def test_a_skip_that_was_carried_out_stays_on_every_branch() -> None:
    """A rollback's range is left out from its outcome on, in order, and restores don't bring it back."""
    world = begun()
    world.train(12)
    world.roll_back(0, skip=True)
    assert list(world.state.skips) == []
    world.train(1)
    assert world.state.skips == ((80, 88),)
    world.crash()
    world.start()
    world.load(passed=1)
    assert world.state.skips == ((80, 88),)


def test_an_order_outlives_its_agent() -> None:
    """What was ordered and not carried out is pending in the next term, under its own number."""
    world = begun()
    world.ask("save")
    world.ask("set", name="clip", value=1)
    world.settle()
    pending = world.state.pending
    assert len(pending) == 2
    world.agent_dies()
    assert world.state.pending == pending
    world.train(4)
    world.write()
    assert list(world.state.pending) == []
    assert [event.order for event in events(world, OrderDone)][-2:] == [
        each.order for each in reversed(pending)
    ]


def test_an_outcome_of_an_unknown_order_changes_nothing() -> None:
    """An outcome that comes twice, or of an order that a cut took away, is no news."""
    state, advice = told(RunState(), OrderDone(order=7))
    assert (replace(state, seq=0, at_ns=0), advice) == (RunState(), [])


@pytest.mark.parametrize(
    "event",
    [
        Noted(text="t"),
        ChangeExpected(text="t"),
        SignalReceived(node="n", rank=None, signal=15),
        WorkerSilent(node="n", rank=0, phase="train", silent_ns=1, limit_ns=1),
        NodeJoined(node="n"),
    ],
)
def test_what_is_only_told_moves_nothing(event: Event) -> None:
    """Remarks and sights are lines of the journal and nothing else yet."""
    before = begun().state
    state, advice = told(before, event)
    assert (replace(state, seq=before.seq, at_ns=before.at_ns), advice) == (before, [])


def test_a_rank_is_known_by_its_newest_line_of_this_attempt() -> None:
    """The newest n of each rank is known, and a new attempt counts anew."""
    state, _ = advance(RunState(), Line(1, 1, Noted(text="a"), (0, 3)))
    state, _ = advance(state, Line(2, 2, StepDone(branch=1, step=0, batch=1, sample=1, end_ns=1), (1, 9)))
    assert state.heard == {"0": 3, "1": 9}
    state, _ = told(state, AttemptStarted(attempt=2, world_size=2))
    assert state.heard == {}


def test_phases_and_knobs_are_as_told() -> None:
    """A phase lasts until the next turn ends; a knob has the value it was set to."""
    state, _ = told(RunState(), PhaseEntered(phase="eval"))
    state, _ = told(state, KnobSet(name="lr", value=3, from_step=1))
    assert (state.phase, state.knobs) == ("eval", {"lr": 3})
    state, _ = told(state, StepDone(branch=1, step=0, batch=1, sample=1, end_ns=9))
    assert state.phase == ""


# --- time -----------------------------------------------------------------------------------------------


def accounts(world: World) -> dict[str, int]:
    return {name: ns for name, ns in world.state.ledger.accounts.items() if ns}


def test_the_time_of_a_plain_run() -> None:
    """Start, first turn, turns, the wait for the last save, and the time until somebody comes again."""
    world = World(save_every_s=1e6)
    world.clock.advance(1_000)
    world.start()
    world.clock.advance(500)
    world.load()
    world.train(1, ns=70)
    world.train(4, ns=10)
    assert world.ranks is not None
    world._drain(world.ranks)
    world.clock.advance(300)
    world.leave()
    world.clock.advance(9_000)
    world.start()
    assert accounts(world) == {"start_up": 1_570, "step": 40, "stall": 300, "away": 9_000}


def test_the_time_of_a_crash() -> None:
    """What passed since the last turn is detection; then come spawn, restore and a first turn."""
    world = begun()
    before = accounts(world)
    world.train(5, ns=10)
    world.clock.advance(200)
    world.crash(page=True)
    world.clock.advance(3_000)
    world.start()
    world.clock.advance(400)
    world.load()
    world.train(2, ns=50)
    world.crash(page=True)
    after = accounts(world)
    gained = {name: ns - before.get(name, 0) for name, ns in after.items() if ns != before.get(name, 0)}
    assert gained == {
        "step": 80,
        "lost": 20,
        "detect": 200,
        "restart:spawn": 3_000,
        "restart:restore": 400,
        "restart:first_step": 50,
    }


def test_a_line_that_comes_late_stops_no_restart_clock() -> None:
    """Rank 0 may report a turn after another rank's death: the time after it is still the restart's."""
    world = begun()
    world.train(3, ns=10)
    world.crash(error="ValueError", late=True)
    before = accounts(world)
    assert world.state.step == 5
    world.clock.advance(5_000)
    world.start()
    after = accounts(world)
    assert after["restart:spawn"] == 6_000
    assert after["step"] == before["step"]


def test_a_dead_machine_is_away_until_the_next_term() -> None:
    """Nobody held the run between the last line and the next term."""
    world = begun()
    world.train(3, ns=10)
    world.settle()
    world.clock.advance(7_000)
    world.agent_dies(machine=True)
    world.clock.advance(40)
    world.start()
    assert (accounts(world)["away"], accounts(world)["detect"]) == (7_010, 40)


def test_a_rollback_in_a_live_run_is_its_own_account() -> None:
    """The way back is `rollback`; the first turn after it is a turn like any other."""
    world = begun()
    world.train(8, ns=10)
    world.roll_back(0)
    world.clock.advance(500)
    world.train(1, ns=10)
    world.train(2, ns=10)
    found = accounts(world)
    assert world.state.ledger.mark_ns - world.state.ledger.begin_ns == sum(found.values())
    assert "restart:first_step" not in found
    assert world.state.attempt.phase == "running"


def test_a_checkpoint_can_be_durable_before_its_last_turn_is_on_record() -> None:
    """A quick write overtakes the line of the turn before it; its kept time has that turn all the same."""
    world = begun()
    world.train(10, ns=100)
    world.ask("save")
    world.settle()
    world.train(1, ns=100)
    world.write()
    before = find(world.state.catalogue, SnapshotId(13, 1))
    assert world.state.step == 12
    world.train(1, ns=100)
    after = find(world.state.catalogue, SnapshotId(13, 1))
    assert before is not None
    assert after is not None
    assert (before.kept_ns, after.kept_ns) == (1_000, 1_100)
    world.agent_dies(machine=True)
    world.start()
    world.load()
    assert world.state.head == SnapshotId(13, 2)
    assert world.state.ledger.kept_ns == 1_100


def test_memory_that_is_older_than_the_newest_checkpoint_still_counts() -> None:
    """Going back to a memory snapshot behind a durable one loses all turns behind it, not some."""
    world = begun(stage_every_steps=300, slots=3)
    saved(world, 1_000)
    world.mark(1, "suspect")
    world.crash(page=True)
    world.start()
    world.load(passed=1)
    assert world.state.head == SnapshotId(600, 2)
    kept = [
        each.line.event.end_ns - each.before.ledger.mark_ns
        for each in moments(world.lines)
        if isinstance(each.line.event, StepDone) and 0 < each.line.event.step < 600
    ]
    assert len(kept) == 599
    assert world.state.ledger.kept_ns == sum(kept)


def test_the_end_of_a_run_is_told() -> None:
    """Word, code and reason of the end are known until the next start."""
    state, _ = told(begun().state, RunEnded(word="gave up", exit_code=80, reason="r"))
    assert state.ended == RunEnded(word="gave up", exit_code=80, reason="r")
    assert (state.attempt.phase, state.finished) == ("ended", None)
    state, _ = told(state, AttemptStarted(attempt=2, world_size=1))
    assert state.ended is None


def test_the_clock_of_the_journal_never_goes_back() -> None:
    """A machine whose clock was set back years goes on where the journal ends."""
    world = begun()
    world.agent_dies(machine=True)
    world.start()
    times = [line.at_ns for line in world.lines]
    assert times == sorted(times)
    assert folded(world.lines) == world.state
