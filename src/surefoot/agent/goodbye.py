"""The end of a group that leaves by itself: its last state made durable, its end recorded, it may go."""

from __future__ import annotations

from surefoot.agent.group import Group
from surefoot.agent.writes import Writes
from surefoot.brain import Brain
from surefoot.core.events import OrderDone, RunEnded
from surefoot.core.numbers import SnapshotId


class Goodbye:
    """Sees a group off, tick by tick. Every rank has said `bye`."""

    def __init__(self, group: Group, brain: Brain, writes: Writes) -> None:
        self._group = group
        self._brain = brain
        self._writes = writes
        self._byes = [rank.bye for rank in group.in_order() if rank.bye is not None]
        first = self._byes[0]
        self._head = SnapshotId(first["step"], first["branch"])
        self._asked = False
        self._recorded = False
        steps = sorted({bye["step"] for bye in self._byes})
        self._lost: str | None = None
        """Why the last state isn't durable."""
        if len(steps) > 1:
            self._lost = f"the ranks left at different steps: {', '.join(map(str, steps))}"

    def tick(self) -> bool:
        """Go on; True when the ranks have been told that they may go."""
        if self._lost is None and not self._saved():
            return False
        if not self._recorded:
            self._record()
            return False
        if not self._brain.is_settled or self._writes.busy:
            return False
        for rank in self._group.in_order():
            rank.channel.send({"kind": "gone", "why": self._lost})
        return True

    def _saved(self) -> bool:
        """Whether the last state is durable, or known to be lost; asks for its write once."""
        trained = self._brain.state.last is not None
        if (not trained and self._head.step > 0) or self._writes.is_durable(self._head):
            return True  # what was restored is what there is
        if self._writes.is_queued(self._head):
            return False
        if self._head in self._writes.failed:
            self._lost = self._writes.failed[self._head]
            return True
        if not self._asked:
            self._asked = True
            self._writes.ask(self._head, "the end of the run")
        return False

    def _record(self) -> None:
        self._recorded = True
        first = self._byes[0]
        for order in sorted({order for bye in self._byes for order in bye["orders"]}):
            self._brain.tell(OrderDone(order=order, outcome=f"left at step {self._head.step:,}"))
        lost = f"; the last save was lost: {self._lost}" if self._lost is not None else ""
        ended = RunEnded(word=first["word"], exit_code=first["exit_code"], reason=first["reason"] + lost)
        self._brain.tell(ended)
