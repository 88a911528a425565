"""One rank's membership in an attempt: joining it, its slots, its line to the agent, leaving it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from surefoot.checkpoint.layout import Box
from surefoot.core.events import Event
from surefoot.core.numbers import SnapshotId
from surefoot.core.settings import Settings
from surefoot.errors import CheckpointError
from surefoot.journal.codec import from_json
from surefoot.loop import beat as beats
from surefoot.loop.link import Link, Message
from surefoot.loop.opening import Place
from surefoot.loop.ranks import Ranks
from surefoot.loop.snapshots import Snapshots

JOIN_S = 600.0
"""How long a rank waits for the other ranks of its group to say hello."""

_POLL_S = 0.002


class Attempt:
    """What a rank knows of the attempt it is in, from the agent's welcome on."""

    def __init__(
        self, place: Place, hello: Message, snapshots: Snapshots, ranks: Ranks, step: Callable[[], int]
    ) -> None:
        self.place = place
        self._hello = hello
        self._snapshots = snapshots
        self._ranks = ranks
        self._step = step
        self._layout: dict[str, Any] | None = None
        self._bye: Message | None = None
        self._orders: deque[Message] = deque()
        self.acted = 0
        """The newest order for the ranks that was carried out here."""
        self.beat = beats.Beat(beats.make())
        self.beat.begin()
        self.beat.enter("start", 0, time.monotonic_ns())
        self.link = Link(place.run_dir, place.run_id, ranks.rank)
        try:
            self.welcome, self.descriptors = self.link.join(hello, [self.beat.fd], JOIN_S)
        except BaseException:
            self.close()
            raise
        self.link.resume_with(self._again)
        self.number: int = self.welcome["attempt"]
        self.branch: int = self.welcome["branch"]
        self.settings = from_json(Settings, self.welcome["settings"])
        self.stage_every = self.settings.stage_every_steps
        self.knobs: dict[str, Any] = dict(self.welcome["knobs"])
        self.skips = [(first, last) for first, last in self.welcome["skips"]]
        self.offset_ns = int(self.welcome["offset_ns"])
        """What to add to CLOCK_MONOTONIC for the brain's clock."""

    def now_ns(self) -> int:
        """Return the time on the brain's clock."""
        return time.monotonic_ns() + self.offset_ns

    def close_descriptors(self) -> None:
        """Give up the slots that the welcome lent to restore from."""
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []

    def emit(self, event: Event) -> None:
        """Report what has happened."""
        self.link.event(event)

    def emit_once(self, event: Event) -> None:
        """Report what has happened to all ranks: rank 0 speaks for them."""
        if self._ranks.rank == 0:
            self.link.event(event)

    # --- slots --------------------------------------------------------------------------------------

    def offer_layout(self) -> None:
        """Tell the agent what a snapshot of this rank consists of now; slots for it follow."""
        self._layout = self._snapshots.offer()
        hello, _ = self._again(slots=False)
        self.link.send(hello)

    def _again(self, *, slots: bool = True) -> tuple[Message, list[int]]:
        """Introduce this rank to an agent that may not know it: it has taken over from another."""
        descriptors = self._snapshots.descriptors if slots else []
        if slots:
            self._snapshots.withdraw()
        again = {
            "attempt": self.number,
            "branch": self.branch,
            "step": self._step(),
            "acted": self.acted,
            "slots": len(descriptors),
            "bye": self._bye,
        }
        fds = [self.beat.fd, *descriptors] if slots else []
        return {**self._hello, "again": again, "layout": self._layout}, fds

    def messages(self) -> None:
        """Take in what the agent sent since the last time."""
        for message, fds in self.link.poll():
            kind = message["kind"]
            if kind == "grant":
                self._snapshots.grant(message["slot"])
            elif kind == "slots":
                staged = [from_json(Box, box) for box in message["staged"]]
                self._snapshots.adopt(staged, fds)
            elif kind == "order" and message["order"] > self._newest_order:
                self._orders.append(message)

    @property
    def _newest_order(self) -> int:
        """The newest order heard of: an agent that took over sends again what it doesn't know to be done."""
        return max([self.acted, *(int(message["order"]) for message in self._orders)])

    @property
    def order(self) -> Message | None:
        """The order that the ranks carry out next; rank 0 only."""
        return self._orders[0] if self._orders else None

    def take_order(self) -> Message:
        """Return the next order and count it as carried out."""
        return self._orders.popleft()

    def stage(self, id: SnapshotId, *, save: bool, orders: list[int]) -> bool:
        """Copy the state into the granted slot and report it; False if the state has outgrown it."""
        self.beat.enter("stage", id.step, time.monotonic_ns())
        slot = self._snapshots.stage(id)
        if slot is None:
            return False
        self.link.send(
            {
                "kind": "staged",
                "slot": slot,
                "step": id.step,
                "branch": id.branch,
                "save": save,
                "orders": orders,
            }
        )
        return True

    def stage_now(self, id: SnapshotId, *, save: bool, orders: list[int]) -> None:
        """Wait until every rank has a slot and stage: outside of the loop, at its beginning and end.

        Raises CheckpointError on all ranks if one of them gets none in time.
        """
        deadline_ns = time.monotonic_ns() + int(self.settings.exit_save_s * 1e9)
        while True:
            self.messages()
            late = time.monotonic_ns() > deadline_ns
            flags = (not self._snapshots.has_slot, self._snapshots.outgrown, late)
            without, outgrown, given_up = self._ranks.start_sum([float(flag) for flag in flags]).result()
            if outgrown:
                self.offer_layout()
            elif not without:
                self.stage(id, save=save, orders=orders)
                return
            if given_up:
                raise CheckpointError(
                    f"{self.place.run_dir}: no memory slot for step {id.step:,} on some rank within "
                    f"{self.settings.exit_save_s:g} s; older checkpoints are untouched"
                )
            time.sleep(_POLL_S)

    # --- leaving ------------------------------------------------------------------------------------

    def leave(
        self, word: str, reason: str, exit_code: int, head: SnapshotId, *, save: bool, orders: list[int]
    ) -> str | None:
        """Say goodbye and wait until the state at `head` is durable; return why it isn't, or None."""
        self.beat.enter("end", head.step, time.monotonic_ns())
        self._bye = {
            "kind": "bye",
            "word": word,
            "reason": reason,
            "exit_code": exit_code,
            "step": head.step,
            "branch": head.branch,
            "save": save,
            "orders": orders,
        }
        self.link.send(self._bye)
        gone, _ = self.link.wait_for("gone", self.settings.exit_save_s)
        why: str | None = gone["why"]
        return why

    def close(self) -> None:
        """Hang up and let slots and beat page go."""
        self.link.close()
        self._snapshots.release()
        self.beat.close()
        os.close(self.beat.fd)
