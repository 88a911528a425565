"""What stands in for processes in this folder: children that answer when told to, ranks with real slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surefoot.agent.child import Job, Reply
from surefoot.agent.memory import Memory, Offer
from surefoot.agent.start import Start
from surefoot.brain import Brain, Clock
from surefoot.checkpoint.layout import Box
from surefoot.checkpoint.slots import Word
from surefoot.core.events import AttemptStarted, Event, Restored
from surefoot.core.numbers import Lineage, SnapshotId, newness
from surefoot.core.state import RunState
from surefoot.journal.codec import decode
from surefoot.testing import ManualClock


class Child:
    """Takes jobs and does none; the test answers."""

    def __init__(self, deadline_s: float) -> None:
        self.jobs: list[Job] = []
        """Asked and not answered, oldest first."""
        self._replies: list[Reply] = []
        self.fd = None
        self.closed = False

    def ask(self, do: str, args: dict[str, Any], now_ns: int, fds: Sequence[int] = ()) -> int:
        self.jobs.append(Job(len(self.jobs), do, args, tuple(fds), now_ns))
        return self.jobs[-1].id

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    def poll(self, now_ns: int) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        self.closed = True

    # --- for the test -------------------------------------------------------------------------------

    def of(self, do: str) -> list[Job]:
        """Return the jobs of a kind that wait for their answer."""
        return [job for job in self.jobs if job.do == do]

    def answer(self, result: dict[str, Any] | None = None, error: str | None = None) -> Job:
        """Answer the oldest job."""
        job = self.jobs.pop(0)
        self._replies.append(Reply(job, None if error else result or {}, error))
        return job

    def dies(self) -> None:
        """Hand every job back: whether it was done isn't known."""
        self._replies += [Reply(job, None, "the child that did it ended", gone=True) for job in self.jobs]
        self.jobs.clear()


class Journal:
    """Takes the brain's lines."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, first_seq: int, lines: list[bytes], *, sync: bool) -> None:
        self.events += [decode(line).event for line in lines]


def offer(rank: int, *, elements: int = 8, shared: int = 4, hash: str = "same") -> Offer:
    """Return what a rank with a tensor of its own and a shared one says a snapshot of it consists of."""
    boxes = (Box("own", "F32", (elements,)), Box("shared", "F32", (shared,), replicated=True))
    return Offer(boxes, {"shared": hash}, 4096)


class Rig:
    """A brain and the memory of some ranks, in an attempt that has restored its beginning."""

    def __init__(self, run_dir: Path, ranks: int = 2, slots: int = 3) -> None:
        self.journal = Journal()
        self.time = ManualClock()
        clock = Clock(1_000, self.time.now_ns)
        self.brain = Brain(RunState(), self.journal, clock, "n0")
        self.start = Start(
            run_dir=run_dir, run="0" * 32, node="n0", term=3, state=self.brain.state, clock=clock, events=[]
        )
        self.memory = Memory(lambda id: newness(self.brain.state.lineage, id))
        self.slots = slots
        self.restored(((1, 0),))
        self.lay_out(*(offer(rank) for rank in range(ranks)))

    def lay_out(self, *offers: Offer) -> tuple[str, ...]:
        return self.memory.lay_out(offers, self.slots)

    def restored(self, lineage: Lineage) -> None:
        """The ranks hold a state; its branch is the lineage's last."""
        branch, step = lineage[-1]
        self.brain.tell(AttemptStarted(attempt=branch, world_size=2))
        self.brain.tell(Restored(branch=branch, lineage=lineage, step=step, batch=step, sample=step, tier=None))

    def events(self, kind: type[Event]) -> list[Any]:
        """Return what was told of a kind."""
        self.brain.flush()
        return [event for event in self.journal.events if isinstance(event, kind)]

    def granted(self, rank: int) -> int | None:
        assert self.memory._now is not None
        return self.memory._now.granted[rank]

    def word(self, rank: int, slot: int) -> Word | None:
        assert self.memory._now is not None
        return self.memory._now.slots[rank][slot].word

    def fill(self, rank: int, step: int, branch: int = 1, *, whole: bool = True) -> int:
        """A rank copies its state into the slot that it was granted; the agent hasn't heard of it."""
        slot = self.granted(rank)
        assert slot is not None
        assert self.memory._now is not None
        self.memory._now.slots[rank][slot].word = Word(branch, step, whole)
        return slot

    def stage(self, step: int, branch: int = 1) -> SnapshotId:
        """All ranks fill a slot and report it."""
        self.memory.grants()
        for rank in range(self.memory.ranks):
            self.memory.staged(rank, self.fill(rank, step, branch))
        return SnapshotId(step, branch)
