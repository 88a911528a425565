"""What orders do on a node: hand them to the ranks, to the mover, or carry them out here.

An order is carried out whole or started over: what an agent had not finished when it died is taken
up by the one after it, and what ranks had not done goes to the next ones.
"""

from __future__ import annotations

from typing import Any

from surefoot.agent.group import Group
from surefoot.agent.memory import Memory
from surefoot.agent.writes import Writes
from surefoot.brain import Brain
from surefoot.core.events import OrderDone, OrderFailed, RunEnded, SnapshotMarked
from surefoot.core.orders import Mark, Prune, Restart, Save, Stop, Write
from surefoot.core.state import Pending
from surefoot.journal.shapes import dump_order


class Orders:
    """The orders of a run, from the moment their line is on disk."""

    def __init__(self, brain: Brain, memory: Memory, writes: Writes) -> None:
        self._brain = brain
        self._memory = memory
        self._writes = writes
        self._on_record = brain.state.orders
        """The newest order that may be acted on."""

    @property
    def restart(self) -> Pending | None:
        """The order that the next attempt carries out; one that was begun and not done is begun again."""
        pending = self._brain.state.pending
        found = (p for p in pending if isinstance(p.body, Restart) and p.order <= self._on_record)
        return next(found, None)

    def carry_out(self, pending: Pending, group: Group | None) -> None:
        """Carry out an order that is on record, or hand it to those who do."""
        body, order = pending.body, pending.order
        self._on_record = max(self._on_record, order)
        match body:
            case Restart():
                pass  # the launcher starts the ranks; their hello begins the attempt
            case Write(snapshot=snapshot):
                self._writes.write(snapshot, [order])
            case Prune(snapshot=id):
                self._writes.prune(id, order)
            case Mark(snapshot=id, mark=mark):
                marked = SnapshotMarked(step=id.step, branch=id.branch, mark=mark, why=pending.reason)
                self._brain.tell(marked)
                self._brain.tell(OrderDone(order=order, outcome=f"{id} is {mark}"))
            case _ if body.RANKS and group is not None and group.phase in ("running", "rejoining"):
                self._to_ranks(pending, group)
            case Stop(word=word, exit_code=exit_code, why=why) if group is None:
                self._brain.tell(OrderDone(order=order, outcome="nothing was running"))
                self._brain.tell(RunEnded(word=word, exit_code=exit_code, reason=why))
            case _ if not body.RANKS:
                outcome = f"this version can't carry out {body.DO!r}"
                self._brain.tell(OrderFailed(order=order, outcome=outcome))

    def take_up(self) -> None:
        """Take up what an agent before this one left undone and no rank is needed for."""
        attempt = self._brain.state.attempt
        for pending in self._brain.state.pending:
            if isinstance(pending.body, Mark | Prune):
                self.carry_out(pending, None)
            elif pending.order == attempt.order and attempt.phase == "running":
                outcome = f"training goes on at step {self._brain.state.step:,}"
                self._brain.tell(OrderDone(order=pending.order, outcome=outcome))

    def begun(self, group: Group, *, acted: int, same_ranks: bool) -> None:
        """Give the ranks what is still to be done, once they are in.

        Ranks that have seen an agent die may have staged for an order (up to `acted`) what that one
        could not write any more; with new ranks it is lost, unless memory holds it.
        """
        for pending in self._brain.state.pending:
            body, order = pending.body, pending.order
            if body.RANKS and order > acted:
                self._to_ranks(pending, group)
            elif isinstance(body, Save) and same_ranks:
                self._writes.write(None, [order])
            elif isinstance(body, Write) and not self._writes.knows(order):
                if same_ranks or body.snapshot is None or body.snapshot in self._memory.ids():
                    self._writes.write(body.snapshot, [order])
                else:
                    self._brain.tell(OrderFailed(order=order, outcome="its memory was lost with its agent"))

    def _to_ranks(self, pending: Pending, group: Group) -> None:
        order: dict[str, Any] = {"kind": "order", "order": pending.order, "reason": pending.reason}
        group.ranks[0].channel.send({**order, **dump_order(pending.body)})
