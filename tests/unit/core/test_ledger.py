"""The accounts, by hand: where each nanosecond goes."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.core import ledger
from surefoot.core.events import StepDone
from surefoot.core.ledger import Ledger, begin, charge, instead_of_step, kept_at, rewind, settle


def turn(clock: Ledger, step: int, end_ns: int, **parts: Any) -> Ledger:
    return ledger.step(clock, StepDone(branch=1, step=step, batch=step, sample=step, end_ns=end_ns, **parts))


def running(end_ns: int = 100) -> Ledger:
    """A clock in the middle of training."""
    return charge(begin(Ledger(), 0), end_ns, "step")


def turns(clock: Ledger, count: int, ns: int = 10, first: int = 0) -> Ledger:
    for step in range(first, first + count):
        clock = turn(clock, step, clock.mark_ns + ns)
    return clock


def test_time_runs_into_one_account_at_a_time() -> None:
    """What passes goes to where the run was; the new account gets what comes."""
    clock = charge(charge(begin(Ledger(), 1_000), 1_300, "restart:spawn"), 1_350, "restart:restore")
    assert clock.accounts == {"start_up": 300, "restart:spawn": 50}
    assert (clock.mark_ns, clock.where) == (1_350, "restart:restore")


def test_time_never_runs_back() -> None:
    """A line of the same instant, or one that says it is earlier, charges nothing and takes nothing away."""
    clock = charge(running(100), 100, "away")
    assert (clock.accounts, clock.where) == ({"start_up": 100}, "away")
    assert charge(clock, 40, "step").accounts == {"start_up": 100}
    assert turn(running(100), 0, 90).accounts == {"start_up": 100, "step": 0}


def test_a_turn_pays_for_what_it_waited_for() -> None:
    """Data, stalls and phases are charged to their own accounts, the rest of the turn to `step`."""
    clock = turn(running(100), 0, 200, data_ns=20, stall_ns=10, phase_ns={"eval": 30})
    assert clock.accounts == {"start_up": 100, "data_wait": 20, "stall": 10, "phase:eval": 30, "step": 40}
    assert clock.kept_ns == 40


def test_parts_cannot_exceed_the_turn() -> None:
    """What a rank reports beyond the time that passed is cut, in order; below zero counts as none."""
    clock = turn(running(100), 0, 200, data_ns=70, stall_ns=70, phase_ns={"eval": 5})
    assert clock.accounts == {"start_up": 100, "data_wait": 70, "stall": 30, "step": 0}
    assert turn(running(100), 0, 200, data_ns=-9).accounts == {"start_up": 100, "step": 100}


@pytest.mark.parametrize("where", ["start_up", "restart:first_step"])
def test_an_attempts_first_turn_belongs_to_its_start(where: str) -> None:
    """Warm-up is no training; what the first turn waited for is still told apart."""
    clock = turn(charge(running(100), 100, where), 0, 200, data_ns=10)
    assert clock.accounts == {"start_up": 100, "data_wait": 10, "step": 0} | {
        where: 90 + (100 if where == "start_up" else 0)
    }
    assert (clock.kept_ns, clock.where) == (0, "step")


def test_step_time_is_what_turns_took() -> None:
    """What follows the last turn is charged elsewhere; what isn't training keeps its account."""
    waiting = instead_of_step(turns(running(), 1), "stall")
    assert charge(waiting, 160, "away").accounts == {"start_up": 100, "step": 10, "stall": 50}
    assert instead_of_step(charge(running(), 100, "away"), "stall").where == "away"


def test_a_rewind_loses_the_turns_behind_it() -> None:
    """Turns from the restored step on are lost, those before it kept, and the sum is the same."""
    clock = rewind(turns(running(), 10), 7, None)
    assert clock.accounts == {"start_up": 100, "step": 70, "lost": 30}
    assert clock.kept_ns == 70
    again = turns(clock, 3, ns=20, first=7)
    assert again.accounts == {"start_up": 100, "step": 130, "lost": 30}


def test_a_second_rollback_behind_the_first_resume() -> None:
    """Turns that were done twice are lost once each time, and the last time is kept."""
    clock = rewind(turns(running(), 10), 5, None)
    clock = rewind(turns(clock, 5, first=5), 3, None)
    assert clock.accounts == {"start_up": 100, "step": 30, "lost": 120}


def test_a_resume_at_the_next_step_loses_nothing() -> None:
    """A stop with a save, an outage and a resume: the outage is away, and no turn is lost."""
    clock = charge(instead_of_step(turns(running(), 10), "stall"), 200, "away")
    clock = charge(charge(clock, 10_000, "start_up"), 10_050, "restart:first_step")
    clock = turns(rewind(clock, 10, 100), 2, first=10)
    assert clock.accounts == {"start_up": 150, "step": 110, "away": 9_800, "restart:first_step": 10}
    assert clock.ettr == 110 / 270


def test_one_stall_inside_a_turn_is_no_training() -> None:
    """A turn that waited nearly all its time for a snapshot has nearly no step time."""
    clock = turn(running(0), 0, 3_600, stall_ns=3_590)
    assert (clock.accounts["step"], clock.accounts["stall"]) == (10, 3_590)


def test_turns_behind_a_checkpoint_are_forgotten_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a durable checkpoint holds is remembered as a total: the ledger stays small, and exact."""
    monkeypatch.setattr(ledger, "_BLOCK", 4)
    clock = turns(running(), 23)
    assert [len(block) for block in clock.blocks] == [4] * 5
    settled = settle(clock, 13)
    assert [block[0][0] for block in settled.blocks] == [12, 16]
    assert settle(settled, 13) is settled
    assert kept_at(clock, 13) == 130
    behind = rewind(settled, 5, kept_at(clock, 5))
    assert (behind.kept_ns, behind.accounts["lost"], behind.blocks, behind.recent) == (50, 180, (), ())
    assert rewind(settled, 14, None).kept_ns == 140


def test_a_rewind_cuts_blocks_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rewind into a block the turns before it are remembered as before."""
    monkeypatch.setattr(ledger, "_BLOCK", 4)
    whole = turns(running(), 23)
    for step in range(24):
        clock = rewind(whole, step, None)
        remembered = [each for block in (*clock.blocks, clock.recent) for each in block]
        assert remembered == [(n, 10) for n in range(step)]
        assert all(len(block) == 4 for block in clock.blocks)
        assert clock.kept_ns == 10 * step


def test_the_ratio_counts_held_time() -> None:
    """ETTR is kept step time over held time; time away is not held, and no time has no ratio."""
    assert begin(Ledger(), 5).ettr is None
    clock = charge(instead_of_step(turns(running(), 10), "stall"), 200, "away")
    assert charge(clock, 10_000, "start_up").ettr == 0.5
