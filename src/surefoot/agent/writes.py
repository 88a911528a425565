"""What the mover is asked to do: write and commit snapshots, prune, keep records.

One write at a time. A save that can't be written is an event and a counter, and the order that
wanted it has failed; training goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from surefoot.agent.child import Child, Reply
from surefoot.agent.memory import Memory
from surefoot.agent.start import Start, versions
from surefoot.brain import Brain
from surefoot.checkpoint.records import directory
from surefoot.core.events import Asked, OrderDone, OrderFailed, SaveFailed, SnapshotCommitted, SnapshotMarked
from surefoot.core.numbers import SnapshotId, newness, place_in
from surefoot.core.orders import DISK, Write
from surefoot.core.snapshots import find
from surefoot.journal.shapes import to_json

DEADLINE_S = 1800.0
"""A mover that is silent longer is replaced, and the write counts as failed."""


@dataclass(slots=True)
class _Write:
    id: SnapshotId
    orders: list[int]
    under_way: bool = False


@dataclass(slots=True)
class _Staging:
    """One snapshot that the ranks are handing over."""

    ranks: set[int] = field(default_factory=set)
    save: bool = False
    orders: set[int] = field(default_factory=set)


class Writes:
    """The writing side of the agent."""

    def __init__(self, start: Start, brain: Brain, memory: Memory) -> None:
        self._start = start
        self._brain = brain
        self._memory = memory
        self._child = Child(DEADLINE_S)
        self._queue: deque[_Write] = deque()
        self._stagings: dict[SnapshotId, _Staging] = {}
        self._prunes: dict[SnapshotId, list[int]] = {}
        self.unit = "batch"
        """What the run's positions count (formats §1)."""
        self.failed: dict[SnapshotId, str] = {}
        """Why the newest try to write a snapshot failed."""

    @property
    def fd(self) -> int | None:
        """The descriptor to wait on."""
        return self._child.fd

    def staged(self, message: dict[str, Any], rank: int, world_size: int) -> None:
        """A rank has filled a slot; when all have, what should be saved is written."""
        id = SnapshotId(message["step"], message["branch"])
        staging = self._stagings.setdefault(id, _Staging())
        staging.ranks.add(rank)
        staging.save = staging.save or message["save"]
        staging.orders |= set(message["orders"])
        if len(staging.ranks) < world_size:
            return
        self._stagings = {other: kept for other, kept in self._stagings.items() if other.step > id.step}
        if staging.orders:
            self.write(id, sorted(staging.orders))
        elif staging.save:
            self.ask(id, "the script")

    def ask(self, id: SnapshotId, who: str) -> None:
        """Have the brain order a write that somebody wants; without an order nothing is written."""
        args = {"step": id.step, "branch": id.branch}
        self._brain.tell(Asked(id=f"write-{id.step}.{id.branch}", who=who, do="write", args=args))

    def write(self, id: SnapshotId | None, orders: Sequence[int]) -> None:
        """Write a snapshot that is, or is about to be, whole in memory; None is the newest there."""
        id = self._memory.newest() if id is None else id
        if id is None:
            self._over(orders, failed="no rank's memory holds a whole snapshot")
        elif self.is_durable(id):
            self._over(orders, done=f"{id} is durable already")
        else:
            self._queue.append(_Write(id, list(orders)))

    def is_durable(self, id: SnapshotId) -> bool:
        """Whether the run directory holds the snapshot."""
        snapshot = find(self._brain.state.catalogue, id)
        return snapshot is not None and DISK in snapshot.tiers

    def is_queued(self, id: SnapshotId) -> bool:
        """Whether it waits to be written, or is being written."""
        return any(write.id == id for write in self._queue)

    def knows(self, order: int) -> bool:
        """Whether an order's write waits or is under way."""
        return any(order in write.orders for write in self._queue)

    def attempt_over(self) -> None:
        """The ranks are gone: what they hadn't all staged never will be."""
        self._stagings.clear()
        whole = set(self._memory.ids())
        for write in [write for write in self._queue if not write.under_way and write.id not in whole]:
            self._queue.remove(write)
            self._over(write.orders, failed=f"the attempt ended before all ranks had staged {write.id}")

    def prune(self, id: SnapshotId, order: int) -> None:
        """Delete a checkpoint."""
        name = self._start.names.get(id)
        if name is None:
            self._over([order], failed=f"no directory of {id} is known")
            return
        self._prunes[id] = [order]
        args = {"run_dir": str(self._start.run_dir), "directory": name, "step": id.step, "branch": id.branch}
        self._child.ask("prune", args, time.monotonic_ns())

    def clear_away(self, directories: Sequence[str]) -> None:
        """Give back the space of what never became a checkpoint, or has ceased to be one."""
        for name in directories:
            args = {"run_dir": str(self._start.run_dir), "directory": name}
            self._child.ask("clear_away", args, time.monotonic_ns())

    def record(self, name: str, content: dict[str, Any]) -> None:
        """Keep something of the attempt beside the journal."""
        path = f"{self._brain.state.attempt.number:04d}/{name}"
        args = {"run_dir": str(self._start.run_dir), "name": path, "content": content}
        self._child.ask("record", args, time.monotonic_ns())

    @property
    def busy(self) -> bool:
        """Whether anything is queued or under way."""
        return bool(self._queue) or self._child.busy

    def tick(self) -> None:
        """Take in what came back and begin the next write."""
        for reply in self._child.poll(time.monotonic_ns()):
            if reply.job.do == "write":
                self._written(reply)
            elif reply.job.do == "prune":
                self._pruned(reply)
        if not any(write.under_way for write in self._queue):
            self._begin_next()
        ordered = (pending.body for pending in self._brain.state.pending)
        due = {body.snapshot for body in ordered if isinstance(body, Write) and body.snapshot is not None}
        self._memory.wanted = tuple(sorted(due | {write.id for write in self._queue}))

    def _begin_next(self) -> None:
        """Begin the first write of what memory holds; what its ranks are still staging waits.

        A save may find its snapshot overwritten by the time it is its turn: then the newest one is
        written, which is worth more.
        """
        state, newest, whole = self._brain.state, self._memory.newest(), set(self._memory.ids())
        for write in self._queue:
            if write.id not in whole and newest is not None and self._is_newer(newest, write.id):
                write.id = newest
            if write.id in whole:
                self._begin(write)
                return
            if state.attempt.phase in ("none", "ended"):
                self._queue.remove(write)
                self._over(write.orders, failed=f"no rank is left to stage {write.id}")
                return

    def _is_newer(self, id: SnapshotId, other: SnapshotId) -> bool:
        lineage = self._brain.state.lineage
        return newness(lineage, id) > newness(lineage, other)

    def _begin(self, write: _Write) -> None:
        if self.is_durable(write.id):
            self._queue.remove(write)
            self._over(write.orders, done=f"{write.id} is durable already")
            return
        state, id = self._brain.state, write.id
        write.under_way = True
        self._memory.lock(id)
        place = place_in(state.lineage, id)
        lineage = state.lineage if place is None else state.lineage[: place + 1]
        common = {
            "run": self._start.run,
            "step": id.step,
            "branch": id.branch,
            "attempt": state.attempt.number,
            "term": self._start.term,
            "order": write.orders[0],
        }
        args = {
            "run_dir": str(self._start.run_dir),
            "directory": directory(id.step, id.branch, self._start.term),
            "common": common,
            "node": self._start.node,
            "lineage": lineage,
            "unit": self.unit,
            "held": [[to_json(box) for box in boxes] for boxes in self._memory.held(id)],
            "at_ns": self._start.clock.now_ns(),
            "versions": versions(),
            "skips": state.skips,
        }
        self._child.ask("write", args, time.monotonic_ns(), self._memory.descriptors(id))

    def _written(self, reply: Reply) -> None:
        write = next(write for write in self._queue if write.under_way)
        self._queue.remove(write)
        id = write.id
        self._memory.unlock(id)
        if reply.result is None:
            error = reply.error or "unknown"
            self.failed[id] = error
            in_a_row = self._brain.state.save_failures + 1
            failed = SaveFailed(step=id.step, branch=id.branch, tier=DISK, error=error, in_a_row=in_a_row)
            self._brain.tell(failed)
            self._over(write.orders, failed=error)
            return
        self.failed.pop(id, None)
        self._start.names[id] = reply.job.args["directory"]
        self._start.written_ns[id] = reply.job.args["at_ns"]
        total, write_ns = int(reply.result["bytes"]), int(reply.result["write_ns"])
        committed = SnapshotCommitted(step=id.step, branch=id.branch, tier=DISK, bytes=total, write_ns=write_ns)
        self._brain.tell(committed)
        self._over(write.orders, done=f"{id} is durable")

    def _pruned(self, reply: Reply) -> None:
        id = SnapshotId(reply.job.args["step"], reply.job.args["branch"])
        orders = self._prunes.pop(id, [])
        if reply.error is not None:
            self._over(orders, failed=reply.error)
            return
        self._start.names.pop(id, None)
        self._brain.tell(SnapshotMarked(step=id.step, branch=id.branch, mark="gone", why="pruned"))
        self._over(orders, done=f"{id} deleted")

    def _over(self, orders: Sequence[int], *, done: str | None = None, failed: str | None = None) -> None:
        for order in orders:
            if failed is not None:
                self._brain.tell(OrderFailed(order=order, outcome=failed))
            else:
                self._brain.tell(OrderDone(order=order, outcome=done or ""))

    def close(self) -> None:
        """End the child."""
        self._child.close()
