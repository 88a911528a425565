"""What the ranks do together between two turns: read the vector of a turn ago, act, start the next.

All ranks read the same numbers, so all stage, carry out the same order, or leave at the same boundary.
No collective of ours but the one vector, and the broadcast of an order when there is one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from surefoot.core.events import Event, KnobSet, OrderDone, OrderFailed, SignalReceived
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Save, Set, Stop
from surefoot.journal.shapes import load_order
from surefoot.loop.agree import Agreed, Word
from surefoot.loop.attempt import Attempt
from surefoot.loop.exits import Exits
from surefoot.loop.ranks import Pending, Ranks
from surefoot.loop.snapshots import Snapshots
from surefoot.loop.turns import Turns


@dataclass(frozen=True, slots=True)
class Leave:
    """The ranks agreed to leave."""

    word: str
    reason: str
    exit_code: int


STOPPED = Leave("stopped", "stopped by a person (Ctrl-C)", 83)
PREEMPTED = Leave("preempted", "the machine is about to be taken away (SIGTERM)", 75)


class Boundary:
    """The boundaries of one attempt, seen from one rank."""

    def __init__(
        self,
        attempt: Attempt,
        ranks: Ranks,
        snapshots: Snapshots,
        turns: Turns,
        exits: Exits,
        head: Callable[[], SnapshotId],
        say: Callable[[str], None],
    ) -> None:
        self._attempt = attempt
        self._ranks = ranks
        self._snapshots = snapshots
        self._turns = turns
        self._exits = exits
        self._head = head
        self._say = say
        self._began_at = head().step
        self._pending: Pending | None = None
        self._save_due = self._stage_due = False
        self._own = False
        """Whether steps are so long that a vector is read at its own boundary."""
        self.save_wanted = False
        """This rank asks for a save; every rank will stage."""
        self.save_orders: list[int] = []
        """Orders that the next staging carries out."""
        self.swaps = 0
        """How often averaged weights are swapped in just now."""
        self.knob_names: set[str] = set()
        """The knobs that the loop has asked for."""
        self.leave: Leave | None = None
        """Set when the ranks have agreed to leave."""

    def cross(self, turn_ns: int) -> None:
        """Do what is to be done at a boundary; the turn before it took `turn_ns`."""
        began_ns = time.monotonic_ns()
        # First what was agreed: a slot that it promises may be withdrawn by what comes from the agent.
        self.drain()
        self._attempt.messages()
        if self.leave is None:
            self._start(turn_ns)
            if self._own:
                self.drain()
        self._turns.stall(time.monotonic_ns() - began_ns)

    def last(self) -> None:
        """Report and act on everything up to here: the ranks have agreed to leave, or the loop is over."""
        self.drain()
        if self._turns.unreported:
            self._start(0)
            self.drain()

    def _start(self, turn_ns: int) -> None:
        """Start the vector that tells the state after this boundary."""
        attempt = self._attempt
        while self._exits.received:
            signal = self._exits.received.pop(0)
            attempt.emit(SignalReceived(node=os.uname().nodename, rank=self._ranks.rank, signal=signal))
        order = attempt.order
        word = Word(
            loss=self._turns.loss,
            weight=self._turns.weight,
            grad_norm=self._turns.grad_norm,
            reporting=float(self._turns.norms),
            save=self.save_wanted,
            stop=self._exits.stop,
            preempt=self._exits.preempt,
            without_slot=self.swaps > 0 or not self._snapshots.has_slot,
            outgrown=self._may_have_grown and self._snapshots.outgrown,
            order=order["order"] if order is not None else 0,
            own_boundary=self._ranks.rank == 0 and turn_ns > attempt.settings.own_boundary_s * 1e9,
        )
        self.save_wanted = False
        self._turns.sent()
        self._pending = self._ranks.start_sum(word.vector())

    @property
    def _may_have_grown(self) -> bool:
        """Optimizer state is lazy: look after an attempt's first turns and around each staging."""
        step, every = self._head().step, self._attempt.stage_every
        return (
            self._save_due
            or self._stage_due
            or step - self._began_at <= 2
            or (step + 1) % every == 0
            or step % every == 0
        )

    def drain(self) -> None:
        """Read the vector under way, if there is one, report the turns it covers, and act on it."""
        if self._pending is None:
            return
        attempt, step = self._attempt, self._head().step
        attempt.beat.enter("agree", step, time.monotonic_ns())
        agreed = Agreed.of(self._pending.result())
        self._pending = None
        self._own = agreed.own_boundary
        for line in self._turns.agreed(agreed):
            attempt.emit_once(line)
        if agreed.order > attempt.acted:
            self._carry_out(agreed.order)
        self._save_due = self._save_due or agreed.save
        # What can't be staged at its boundary, for want of a slot, is staged at the next that has one.
        self._stage_due = self._stage_due or agreed.outgrown or step % attempt.stage_every == 0
        if agreed.outgrown:
            attempt.offer_layout()
        elif agreed.may_stage and not self.swaps and (self._save_due or self._stage_due):
            self._stage()
        if agreed.preempt:
            self.leave = PREEMPTED
        elif agreed.stop:
            self.leave = STOPPED

    def _stage(self) -> None:
        if self._snapshots.outgrown:
            return  # the next vector says so, and all ranks lay out anew
        if self._attempt.stage(self._head(), save=self._save_due, orders=self.save_orders):
            if self._save_due:
                self._say(f"saving step {self._head().step:,}")
            self._save_due = self._stage_due = False
            self.save_orders = []

    def _carry_out(self, number: int) -> None:
        """Carry out an order on all ranks at this boundary; rank 0 has it, the others are told."""
        attempt, step = self._attempt, self._head().step
        raw = json.dumps(attempt.take_order()).encode() if self._ranks.rank == 0 else None
        message = json.loads(self._ranks.broadcast(raw))
        attempt.acted = number
        body = load_order(message)
        outcome: Event | None = None
        match body:
            case Save():
                self._save_due = True
                self.save_orders = [*self.save_orders, number]
            case Stop(word=word, exit_code=exit_code, why=why):
                self.leave = Leave(word, why, exit_code)
                self.save_orders = [*self.save_orders, number]
            case Set(name="stage_every", value=value):
                attempt.stage_every = int(value)
                outcome = OrderDone(order=number, outcome=f"from step {step:,} on")
            case Set(name=name, value=value) if name in self.knob_names:
                attempt.knobs[name] = value
                attempt.emit_once(KnobSet(name=name, value=value, from_step=step, why=message["reason"]))
                outcome = OrderDone(order=number, outcome=f"{name} = {value!r} from step {step:,} on")
            case Set(name=name):
                known = ", ".join(sorted(self.knob_names)) or "none"
                outcome = OrderFailed(
                    order=number, outcome=f"the loop has no knob {name!r}; it asks for: {known}"
                )
            case _:
                outcome = OrderFailed(order=number, outcome=f"this version can't carry out {body.DO!r}")
        if outcome is not None:
            attempt.emit_once(outcome)
