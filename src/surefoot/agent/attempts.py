"""The life of worker groups: hello, welcome, slots, exits, goodbye; and what orders do to them.

In the form beside another launcher an attempt begins when every rank of a new group has said hello.
A `restart` ends what is left of the old group; the launcher starts the next one.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from surefoot import wire
from surefoot.agent import joining
from surefoot.agent.goodbye import Goodbye
from surefoot.agent.group import Group, Rank
from surefoot.agent.memory import Memory, Offer
from surefoot.agent.orders import Orders
from surefoot.agent.start import Start
from surefoot.agent.writes import Writes
from surefoot.brain import Brain
from surefoot.core.events import (
    Asked,
    AttemptJoined,
    AttemptStarted,
    ConditionSeen,
    Configured,
    OrderDone,
    Restored,
    RunEnded,
    StepDone,
    WorkerExited,
)
from surefoot.core.orders import Restart
from surefoot.core.recovery import candidates
from surefoot.core.state import Pending
from surefoot.errors import AgentError, CheckpointError, ConfigError, JournalError, RunHeld, SurefootError
from surefoot.journal.codec import decode_event
from surefoot.journal.shapes import to_json
from surefoot.loop.beat import Beat

Message = dict[str, Any]

REPORT_NS = 100_000_000
"""How long an error that a rank reports waits for the death of a peer that it may come from."""

STATUS_NS = 30_000_000
"""How long an exit may wait for its status: who ended by which signal is worth it."""

RANKS_NS = 1_000_000_000
"""How often a turn's line says how long each rank took."""

GRACE_NS = 2_000_000_000
"""Given to a group that ends by an error of its own: a traceback is worth a moment."""


class Attempts:
    """The groups of ranks on this node, one after the other."""

    def __init__(self, start: Start, brain: Brain, memory: Memory, writes: Writes) -> None:
        self._start = start
        self._brain = brain
        self._memory = memory
        self._writes = writes
        self._group: Group | None = None
        self._goodbye: Goodbye | None = None
        self._orders = Orders(brain, memory, writes)
        self._branch = 0
        """The newest branch handed out."""
        self._changed: list[dict[str, Any]] = []
        self._idle_ns = time.monotonic_ns()
        self._ranks_ns = 0
        self.leaving = False
        """Whether there is nobody left to serve."""

    def take_up(self) -> None:
        """Begin with what an agent before this one left undone."""
        self._writes.clear_away(self._start.unfinished)
        self._orders.take_up()

    # --- sockets and exits --------------------------------------------------------------------------

    def channels(self) -> list[wire.Channel]:
        """Return the lines to the ranks that can still say something."""
        return [rank.channel for rank in self._ranks() if not rank.hung_up]

    def pidfds(self) -> list[int]:
        """Return what becomes readable when a rank's process ends."""
        return [rank.pidfd for rank in self._ranks() if not rank.dead]

    def _ranks(self) -> list[Rank]:
        return self._group.in_order() if self._group is not None else []

    @property
    def live(self) -> bool:
        """Whether ranks are training, or about to."""
        return self._group is not None and self._group.phase != "over"

    def send(self, number: int, message: Message) -> None:
        """Send a message to a rank, if there is one of that number."""
        if self._group is not None and number in self._group.ranks:
            self._group.ranks[number].channel.send(message)

    def listen(self) -> None:
        """Take in what the ranks have sent."""
        for rank in self._ranks():
            self._hear(rank)

    def _hear(self, rank: Rank) -> None:
        """Take in everything a rank has sent, also one that is dead by now."""
        while not rank.hung_up:
            try:
                rank.channel.flush()
                received = rank.channel.receive()
            except ConnectionError:
                rank.hung_up = True
                return
            if not received:
                return
            for message, fds in received:
                self._take(rank, message)
                for fd in fds:
                    os.close(fd)

    def _take(self, rank: Rank, message: Message) -> None:
        assert self._group is not None
        kind = message["kind"]
        if kind == "event":
            event = decode_event(message)
            if isinstance(event, StepDone):
                event = self._with_ranks(self._group, event)
            if isinstance(event, WorkerExited):
                rank.report = (event, message["n"], time.monotonic_ns())
                return
            try:
                self._brain.tell(event, origin=(rank.number, message["n"]))
            except JournalError as error:
                text = f"a line of rank {rank.number} can't be journalled and is left out: {error}"
                seen = ConditionSeen(node=self._start.node, device=None, kind="own_failure", text=text)
                self._brain.tell(seen)
            if isinstance(event, Restored):
                self._restart_is_done(event)
        elif kind == "staged":
            self._memory.staged(rank.number, message["slot"])
            self._writes.staged(message, rank.number, self._group.world_size)
        elif kind == "hello":
            rank.offer = Offer.of(message["layout"])
            self._lay_out(self._group)
        elif kind == "bye":
            rank.bye = message

    def _with_ranks(self, group: Group, event: StepDone) -> StepDone:
        """Say beside a turn, at most once a second, how long the ranks took: read off their pages."""
        now_ns = time.monotonic_ns()
        if group.world_size == 1 or now_ns - self._ranks_ns < RANKS_NS:
            return event
        self._ranks_ns = now_ns
        return replace(event, ranks=group.times_of(event.step))

    def _restart_is_done(self, event: Restored) -> None:
        if any(pending.order == event.order for pending in self._brain.state.pending):
            assert event.order is not None
            self._brain.tell(OrderDone(order=event.order, outcome=f"training goes on at step {event.step:,}"))

    def look_at_exits(self) -> None:
        """See whose process has ended; the first one without a goodbye condemns the group."""
        group, now_ns = self._group, time.monotonic_ns()
        for rank in self._ranks():
            if rank.dead or rank.alive:
                continue
            rank.ended_ns = rank.ended_ns or now_ns
            status = rank.exit_status()
            if status is None and now_ns - rank.ended_ns < STATUS_NS:
                continue  # its parent is about to collect it, and then we are told how it ended
            rank.dead = True
            self._hear(rank)
            if group is not None and group.phase not in ("over", "left"):
                for turn in rank.unreported(self._brain.state):
                    self._brain.tell(turn)
                if rank.report is not None:
                    self._judge_report(group, rank)
                elif group.phase != "joining":
                    self._brain.tell(rank.exited(self._start.node, status))
                self._over(group, graceful=False)

    def _judge_report(self, group: Group, rank: Rank) -> None:
        """Take in what a rank says of its own end."""
        assert rank.report is not None
        (event, n, _), rank.report = rank.report, None
        rank.failed = True
        self._brain.tell(event, origin=(rank.number, n))
        self._over(group, graceful=True)
        if event.error is not None:
            self._writes.record(f"rank-{rank.number:05d}.error.json", event.error)

    def _over(self, group: Group, *, graceful: bool) -> None:
        if group.phase != "over":
            group.phase = "over"
            group.kill_ns = time.monotonic_ns() + (GRACE_NS if graceful else 0)

    # --- joining ------------------------------------------------------------------------------------

    def hello(self, channel: wire.Channel, message: Message, fds: list[int]) -> None:
        """A rank introduces itself. Raises what it is refused with."""
        again = message["again"]
        group = self._group_for(message)
        if again is not None and again["attempt"] != self._brain.state.attempt.number:
            now = self._brain.state.attempt.number
            raise AgentError(
                f"{self._start.run_dir}: rank {message['rank']} is of attempt {again['attempt']}, the run is "
                f"at {now}: another group has taken its place"
            )
        if again is None and group.phase != "joining":
            raise AgentError(f"{self._start.run_dir}: rank {message['rank']} came after its group had begun")
        pid = channel.peer()[0]
        rank = Rank(message["rank"], channel, message, pid, os.pidfd_open(pid), Beat(fds[0]))
        group.ranks[rank.number] = rank
        if again is not None:
            self._rejoin(group, rank, again, fds[1:])
        elif group.complete:
            self._all_are_here(group)

    def _group_for(self, message: Message) -> Group:
        group = self._group
        if group is not None and group.id != message["group"]:
            if group.phase not in ("over", "left") and all(rank.alive for rank in group.ranks.values()):
                raise RunHeld(
                    f"{self._start.run_dir} is running already: attempt {self._brain.state.attempt.number} on "
                    f"{self._start.node}, pids {group.pids()}. Wait for it, stop it with `surefoot stop "
                    f"{self._start.run_dir}`, or use another directory"
                )
            if group.phase != "left":  # those may go, and one of them may be back: a notebook's cell run again
                # The old group has lost a rank: what is left of it ends before the new one begins.
                self.look_at_exits()
                group.kill()
            self._group_is_gone(group)
        if self._group is None:
            phase = "joining" if message["again"] is None else "rejoining"
            self._group = Group(message["group"], message["world_size"], phase)
        return self._group

    def _all_are_here(self, group: Group) -> None:
        """Every rank has said hello: settle what differs, and ask for a start."""
        state = self._brain.state
        if state.attempt.phase not in ("none", "ended"):
            tail = "the whole group was gone when this agent took over"
            self._brain.tell(WorkerExited(node=self._start.node, rank=0, tail=tail))
        hellos = [rank.hello for rank in group.in_order()]
        try:
            self._changed, declared = joining.settle(self._start, state, hellos)
        except ConfigError as error:
            self.refuse(group, error)
            return
        settings = {**joining.new_settings(state, hellos[0]), **declared}
        if settings:
            self._brain.tell(Configured(settings=settings))
        group.phase = "asked"
        args = {"world_size": group.world_size, "group": group.id}
        self._brain.tell(Asked(id=f"start-{group.id}", who=hellos[0]["who"], do="start", args=args))

    def refuse(self, group: Group, error: SurefootError) -> None:
        """Turn a group away, all of it with the same words."""
        for rank in group.in_order():
            rank.channel.send({"kind": "refuse", "error": type(error).__name__, "why": str(error)})
        self._group_is_gone(group)

    def _begin(self, group: Group, order: Pending) -> None:
        """Start the attempt on record; it is tried once the line is on disk."""
        state = self._brain.state
        assert isinstance(order.body, Restart)
        self._branch = max(self._branch, state.branches) + 1
        found = candidates(
            state.lineage,
            state.catalogue,
            self._memory.ids() if self._memory.ranks == group.world_size else (),
            branch=self._branch,
            not_after=order.body.source,
            suspects=state.suspects,
        )
        first = group.ranks[0].hello
        started = AttemptStarted(
            attempt=state.attempt.number + 1,
            world_size=group.world_size,
            nodes=(self._start.node,),
            restore=found[0].id if found else None,
            order=order.order,
        )
        self._brain.tell(started)
        joined = AttemptJoined(
            attempt=started.attempt,
            layout=joining.layout_hash([rank.hello for rank in group.in_order()]),
            data=first["data"],
            code=first["code"],
            changed=tuple(self._changed + joining.code_changes(state, first["code"])),
        )
        self._brain.tell(joined)
        self._writes.unit = first["data"]["unit"]
        self._writes.record("code.json", first["code"])
        group.phase = "starting"
        group.candidates = found

    def _welcome(self, group: Group) -> None:
        """Let the ranks in: what they may restore, newest first, and what holds for them."""
        messages, fds = joining.welcomes(
            self._start, self._brain.state, self._memory, group.candidates, self._branch, group.world_size
        )
        for rank, message in zip(group.in_order(), messages, strict=True):
            rank.channel.send(message, fds)
        group.phase = "running"
        self._orders.begun(group, acted=0, same_ranks=False)

    def _lay_out(self, group: Group) -> None:
        """Make slots, once every rank has said what a snapshot of it consists of."""
        if any(rank.offer is None for rank in group.in_order()) or not group.complete:
            return
        offers = [rank.offer for rank in group.in_order() if rank.offer is not None]
        try:
            diverged = self._memory.lay_out(offers, self._brain.state.settings.slots)
        except CheckpointError as error:
            self._brain.tell(ConditionSeen(node=self._start.node, device=None, kind="memory", text=str(error)))
            return
        if diverged:
            text = (
                f"{', '.join(diverged[:20])} should be the same on all ranks and isn't; each rank's own is kept"
            )
            self._brain.tell(
                ConditionSeen(node=self._start.node, device=None, kind="replicas_differ", text=text)
            )
        for rank in group.in_order():
            staged, fds = self._memory.handed_out(rank.number)
            boxes = [to_json(box) for box in staged]
            rank.channel.send({"kind": "slots", "staged": boxes}, fds)
            rank.offer = None

    def _rejoin(self, group: Group, rank: Rank, again: Message, fds: list[int]) -> None:
        """A rank of a running attempt, whose agent died, hands back what it has."""
        layout = rank.hello["layout"]
        rank.offer = Offer.of(layout) if layout is not None else None
        rank.slot_fds = fds
        rank.bye = again["bye"]
        known = self._brain.state.heard.get(str(rank.number), 0)
        rank.channel.send({"kind": "welcome", "known": known})
        if not group.complete or group.phase != "rejoining":
            return
        ranks = group.in_order()
        offers = [rank.offer for rank in ranks if rank.offer is not None]
        if len(offers) == len(ranks) and all(rank.slot_fds for rank in ranks):
            self._memory.take_over(offers, [rank.slot_fds for rank in ranks])
            for each in ranks:
                each.offer = None
        elif len(offers) == len(ranks):
            self._lay_out(group)
        group.phase = "running"
        acted = int(group.ranks[0].hello["again"]["acted"])
        self._orders.begun(group, acted=acted, same_ranks=True)

    # --- ticks and orders ---------------------------------------------------------------------------

    def grant(self) -> None:
        """Lend free slots."""
        if self._group is not None and self._group.phase == "running":
            for number, slot in self._memory.grants():
                self.send(number, {"kind": "grant", "slot": slot})

    def tick(self) -> None:
        """Move the group on: begin, let in, say goodbye, end what is over; leave after a while alone."""
        group, now_ns = self._group, time.monotonic_ns()
        for rank in self._ranks():
            # An error may be a symptom: the peer that was killed is seen to be gone a moment later.
            patience_ns = REPORT_NS if group is not None and group.world_size > 1 else 0
            if group is not None and rank.report is not None and now_ns - rank.report[2] >= patience_ns:
                self._judge_report(group, rank)
        if group is None:
            self._look_at_idle()
        elif group.phase == "asked" and (restart := self._orders.restart) is not None:
            self._begin(group, restart)
        elif group.phase == "starting" and self._brain.is_settled:
            self._welcome(group)
        elif group.phase == "running" and all(rank.bye is not None for rank in group.in_order()):
            self._goodbye = self._goodbye or Goodbye(group, self._brain, self._writes)
            if self._goodbye.tick():
                group.phase = "left"
        elif group.phase == "left":
            if all(rank.hung_up or rank.dead for rank in group.in_order()):
                self._group_is_gone(group)
        elif group.phase == "over":
            if time.monotonic_ns() >= group.kill_ns:
                group.kill()
            if all(rank.gone for rank in group.in_order()):
                self._group_is_gone(group)

    def carry_out(self, pending: Pending) -> None:
        """Carry out an order that is on record."""
        self._orders.carry_out(pending, self._group)

    # --- leaving ------------------------------------------------------------------------------------

    def _group_is_gone(self, group: Group) -> None:
        group.close()
        self._group = self._goodbye = None
        self._memory.withdraw()
        self._memory.wipe()
        self._writes.attempt_over()
        self._idle_ns = time.monotonic_ns()

    def _look_at_idle(self) -> None:
        """Leave at once after a finished run, else after a while: the next attempt may come."""
        state = self._brain.state
        alone_s = (time.monotonic_ns() - self._idle_ns) / 1e9
        finished = state.ended is not None and state.ended.word == "finished"
        if self._writes.busy or not (finished or alone_s > state.settings.linger_s):
            return
        if state.ended is None and state.attempt.number:
            fault = state.fault.signature if state.fault is not None else "its ranks are gone"
            self._brain.tell(RunEnded(word="failed", exit_code=None, reason=fault))
        self.leaving = True

    def kill(self) -> None:
        """End the ranks: the run is another's."""
        if self._group is not None:
            self._group.kill()

    def leave_if_idle(self) -> None:
        """Make room for another run in this directory. Raises RunHeld while ranks are alive."""
        group = self._group
        if group is not None and any(rank.alive for rank in group.in_order()):
            number = self._brain.state.attempt.number
            raise RunHeld(f"{self._start.run_dir} is running: attempt {number}, pids {group.pids()}")
        self.leaving = True

    def close(self) -> None:
        """Let go of ranks and slots."""
        if self._group is not None:
            self._group.close()
        self._memory.close()
