"""Histories of runs: journals as a real run writes them, made without processes, disks or time.

`World` is everything around the brain, which is the real one: ranks that train, stage and die, an
agent that carries out orders and dies, memory, a disk, a launcher, a person. Each of its verbs is
something that happens; one that can't happen just now does nothing, so that any sequence of them is
a history, and Hypothesis can draw and shrink them (`histories`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from surefoot.brain import Brain, Clock
from surefoot.core.advance import Advice, advance
from surefoot.core.events import (
    Asked,
    AttemptJoined,
    AttemptStarted,
    Configured,
    Event,
    KnobSet,
    Line,
    Noted,
    OrderDone,
    Ordered,
    OrderFailed,
    PhaseEntered,
    Restored,
    RunEnded,
    SaveFailed,
    SnapshotCommitted,
    SnapshotMarked,
    StepDone,
    TermEnded,
    TermStarted,
    WorkerExited,
)
from surefoot.core.numbers import SnapshotId, fork, newness, place_in
from surefoot.core.orders import DISK, HOST, Mark, Prune, Restart, Rollback, Save, Set, Stop, Write
from surefoot.core.recovery import Candidate, candidates
from surefoot.core.snapshots import find
from surefoot.core.state import Pending, RunState
from surefoot.journal.codec import decode
from surefoot.testing import ManualClock

SAMPLES = 8
"""A turn's."""

UNIX_NS = 1_700_000_000_000_000_000
"""The wall clock when a world begins."""


def folded(lines: Iterable[Line], state: RunState | None = None) -> RunState:
    """Return the state after the lines, as a fold comes by it: advice is ignored."""
    state = state or RunState()
    for line in lines:
        state, _ = advance(state, line)
    return state


@dataclass(frozen=True)
class Moment:
    """One line, the state before and after it, and what `advance` advised."""

    before: RunState
    line: Line
    after: RunState
    advice: tuple[Advice, ...]


def moments(lines: Iterable[Line]) -> list[Moment]:
    """Return a journal line by line."""
    state, found = RunState(), []
    for line in lines:
        before = state
        state, advice = advance(state, line)
        found.append(Moment(before, line, state, advice))
    return found


@dataclass
class Term:
    """What one agent wrote; behind `cut` its successor went on without it."""

    number: int
    first_seq: int
    raw: list[bytes] = field(default_factory=list)
    cut: int | None = None


@dataclass
class Group:
    """The ranks of one attempt, all in step."""

    branch: int
    found: tuple[Candidate, ...]
    """What they may restore, until they have."""
    order: int
    loading: bool = True
    step: int = 0
    began_at: int = 0
    unreported: list[StepDone] = field(default_factory=list)
    """Turns that are over and whose vector isn't read."""
    sent: list[Event] = field(default_factory=list)
    """What rank 0 told the agent; its n is the place, from 1."""
    orders: deque[Pending] = field(default_factory=deque)
    acted: int = 0
    save_due: bool = False
    save_orders: list[int] = field(default_factory=list)


Move = tuple[str, dict[str, Any]]
"""A verb of `World` and its arguments."""


class World:
    """A run and all that happens to it."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock(1_000_000)
        self.settings = settings
        self.terms: list[Term] = []
        self.disk: dict[SnapshotId, int] = {}
        """Checkpoints and the order that each was written for."""
        self.memory: list[SnapshotId] = []
        self.ranks: Group | None = None
        self.writes: deque[tuple[SnapshotId, list[int]]] = deque()
        self.branch = 0
        self.played: list[Move] = []
        self.agent_starts()

    def play(self, moves: Iterable[Move]) -> None:
        """Let one thing happen after the other."""
        for verb, arguments in moves:
            self.played.append((verb, arguments))
            getattr(self, verb)(**arguments)

    def __repr__(self) -> str:
        """Return code that makes it happen again."""
        verbs = "".join(f"; w.{verb}(**{arguments})" for verb, arguments in self.played)
        return f"w = World(**{self.settings}){verbs}"

    # --- the journal --------------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """The lines that count, as they are read back."""
        return [decode(raw) for term in self.terms for raw in term.raw[: term.cut]]

    def append(self, first_seq: int, lines: list[bytes], *, sync: bool) -> None:
        """Be the brain's scribe: on disk is what `settle` says is."""
        term = self.terms[-1]
        assert first_seq == term.first_seq + len(term.raw)
        term.raw += lines

    @property
    def state(self) -> RunState:
        """What the brain knows."""
        return self.brain.state

    def tell(self, *events: Event) -> None:
        """The agent tells the brain."""
        for event in events:
            self.brain.tell(event)
        self.brain.flush()

    def settle(self) -> None:
        """Everything reaches the disk, and what was ordered is carried out, until nothing is."""
        while True:
            self.brain.flush()
            self.durable = self.state.seq
            self.brain.durable(self.durable)
            orders = self.brain.due()
            if not orders:
                return
            self._carry_out(orders)

    def silence(self) -> None:
        """The store takes no line for long: orders are carried out without waiting for it."""
        self.clock.advance(6_000_000_000)
        self._carry_out(self.brain.due())
        self.brain.flush()

    # --- the agent ----------------------------------------------------------------------------------

    def agent_starts(self, *, clock_s: int = 0) -> None:
        """An agent takes the next term: it folds, looks at the disk, and takes up what is pending.

        The machine's clock may have been set, by `clock_s`.
        """
        state = folded(self.lines)
        number = self.terms[-1].number + 1 if self.terms else 1
        self.terms.append(Term(number, state.seq + 1))
        unix_ns = UNIX_NS + clock_s * 1_000_000_000 + self.clock.now_ns()
        self.brain = Brain(state, self, Clock(unix_ns, self.clock.now_ns, state.at_ns), "n0")
        self.durable = state.seq
        self.writes.clear()
        after = {"term": state.term, "seq": state.seq}
        self.tell(TermStarted(format=1, term=number, after=after, node="n0"))
        self._reconcile(state)
        self._carry_out([pending for pending in state.pending if not isinstance(pending.body, Restart)])
        if self.ranks is not None:
            self._rejoin(self.ranks)
        self.brain.flush()

    def _reconcile(self, state: RunState) -> None:
        self.disk = {id: order for id, order in self.disk.items() if state.term_of(order) is not None}
        known = {snapshot.id for snapshot in state.catalogue}
        self.tell(*(_committed(id) for id in self.disk if id not in known))
        self.tell(*(_marked(id, "gone") for id in sorted(known) if id not in self.disk))

    def _rejoin(self, ranks: Group) -> None:
        if ranks.acted > self.state.orders:
            self.crash()  # they did what was never ordered: its line was lost with the agent that gave it
            return
        for n, event in enumerate(ranks.sent, 1):
            self.brain.tell(event, origin=(0, n))
        ranks.orders.clear()
        self._hand_to_ranks()
        # What was staged for an order may not have been written by the agent that died.
        for pending in self.state.pending:
            if isinstance(pending.body, Save) and pending.order <= ranks.acted:
                self._write(None, pending.order)

    def _carry_out(self, orders: Sequence[Pending]) -> None:
        for pending in orders:
            body, order = pending.body, pending.order
            if body.RANKS:
                if self.ranks is not None and order > self.ranks.acted and pending not in self.ranks.orders:
                    self.ranks.orders.append(pending)
                elif self.ranks is None and isinstance(body, Stop):
                    self.tell(OrderDone(order=order), RunEnded(word=body.word, exit_code=body.exit_code))
            elif isinstance(body, Write):
                self._write(body.snapshot, order)
            elif isinstance(body, Prune):
                self.disk.pop(body.snapshot, None)
                self.tell(_marked(body.snapshot, "gone"), OrderDone(order=order))
            elif isinstance(body, Mark):
                self.tell(_marked(body.snapshot, body.mark), OrderDone(order=order))

    def _hand_to_ranks(self) -> None:
        written = {order for _, orders in self.writes for order in orders}
        self._carry_out([p for p in self.state.pending if p.body.RANKS and p.order not in written])

    def _write(self, id: SnapshotId | None, order: int) -> None:
        id = self._newest() if id is None else id
        if id is None or (id not in self.memory and id not in self.disk):
            self.tell(OrderFailed(order=order, outcome="nobody has it"))
        elif id in self.disk:
            self.tell(OrderDone(order=order))
        else:
            self.writes.append((id, [order]))

    def _newest(self) -> SnapshotId | None:
        lineage = self.state.lineage
        here = [id for id in self.memory if newness(lineage, id)[0] >= 0]
        return max(here, key=lambda id: newness(lineage, id), default=None)

    def write(self, *, fails: bool = False) -> None:
        """The mover comes to the end of a write."""
        if not self.writes:
            return
        id, orders = self.writes.popleft()
        if fails:
            in_a_row = self.state.save_failures + 1
            self.tell(SaveFailed(step=id.step, branch=id.branch, tier=DISK, error="full", in_a_row=in_a_row))
            self.tell(*(OrderFailed(order=order, outcome="full") for order in orders))
            return
        if id not in self.disk:
            self.disk[id] = orders[0]
            self.tell(_committed(id))
        self.tell(*(OrderDone(order=order) for order in orders))

    def agent_dies(
        self, keeps: float = 1.0, *, machine: bool = False, ends: bool = False, clock_s: int = 0
    ) -> None:
        """The agent is gone, and with the machine everything in memory; another one begins.

        Of the lines that weren't durable the share `keeps` reached the disk all the same. An agent
        that nobody needs any more may also end in peace.
        """
        if ends and self.ranks is None:
            self.tell(TermEnded())
            self.settle()
        term = self.terms[-1]
        durable = max(self.durable - term.first_seq + 1, 1)
        term.cut = durable + round(keeps * (len(term.raw) - durable))
        if machine:
            self.ranks = None
            self.memory.clear()
        elif ends:
            self.memory.clear()
        self.agent_starts(clock_s=clock_s)

    # --- ranks --------------------------------------------------------------------------------------

    def start(self) -> None:
        """A launcher starts the ranks: all say hello, and the attempt is on record."""
        if self.ranks is not None:
            return
        if self.state.attempt.phase not in ("none", "ended"):
            self.tell(WorkerExited(node="n0", rank=0, tail="gone before this agent came"))
        if not self.state.attempt.number:
            settings = {key: [value, "Run(...)"] for key, value in self.settings.items()}
            self.tell(Configured(settings={**settings, "optimizer.lr": [0.1, "script"]}))
        self.tell(Asked(id="start", who="launcher", do="start"))
        self.settle()
        state = self.state
        restart = next(pending for pending in state.pending if isinstance(pending.body, Restart))
        assert isinstance(restart.body, Restart)
        self.branch = max(self.branch, state.branches) + 1
        found = candidates(
            state.lineage,
            state.catalogue,
            self.memory,
            branch=self.branch,
            not_after=restart.body.source,
            suspects=state.suspects,
        )
        number, first = state.attempt.number + 1, found[0].id if found else None
        started = AttemptStarted(attempt=number, world_size=1, restore=first, order=restart.order)
        self.tell(started, AttemptJoined(attempt=number, layout="", data={"level": "exact"}, code={}))
        self.settle()
        self.ranks = Group(self.branch, found, restart.order)
        self._hand_to_ranks()

    def load(self, passed: int = 0) -> None:
        """The ranks restore what they may; the first `passed` turn out unreadable, if others follow."""
        ranks = self.ranks
        if ranks is None or not ranks.loading:
            return
        if not ranks.found and self.state.commits:
            self.crash(error="NoUsableSnapshot")
            return
        passed = min(passed, max(0, len(ranks.found) - 1))
        over = tuple(
            {"what": f"{each.id} in {each.tier}", "why": "bad", "step": each.id.step, "branch": each.id.branch}
            for each in ranks.found[:passed]
        )
        ranks.loading = False
        if ranks.found:
            chosen = ranks.found[passed]
            self._restore(ranks, chosen.id.step, chosen.lineage, chosen.tier, over, ranks.order)
        else:
            self._restore(ranks, 0, ((ranks.branch, 0),), None, over, ranks.order)
        self._stage(ranks)

    def _restore(
        self,
        ranks: Group,
        step: int,
        lineage: tuple[tuple[int, int], ...],
        tier: str | None,
        over: tuple[dict[str, Any], ...],
        order: int,
    ) -> None:
        ranks.step = ranks.began_at = step
        event = Restored(
            branch=ranks.branch,
            lineage=lineage,
            step=step,
            batch=step,
            sample=step * SAMPLES,
            tier=tier,
            passed_over=over,
            order=order,
        )
        self._emit(ranks, event)
        if any(pending.order == order for pending in self.state.pending):
            self.tell(OrderDone(order=order))

    def _emit(self, ranks: Group, *events: Event) -> None:
        for event in events:
            ranks.sent.append(event)
            self.brain.tell(event, origin=(0, len(ranks.sent)))
        self.brain.flush()

    def say_again(self) -> None:
        """A rank sends again what it doesn't know to be on disk."""
        if self.ranks is not None:
            for n, event in enumerate(self.ranks.sent, 1):
                self.brain.tell(event, origin=(0, n))
            self.brain.flush()

    def train(self, turns: int = 1, ns: int = 1_000, *, odd: bool = False, **parts: Any) -> None:
        """The ranks do some turns; a loss depends on the step alone, unless it is odd."""
        for _ in range(turns):
            ranks = self.ranks
            if ranks is None or ranks.loading:
                return
            self.clock.advance(ns)
            done = StepDone(
                branch=ranks.branch,
                step=ranks.step,
                batch=ranks.step + 1,
                sample=(ranks.step + 1) * SAMPLES,
                loss=1 / (ranks.step + 1) + odd,
                end_ns=self.clock.now_ns() + self.brain_offset_ns,
                **parts,
            )
            ranks.step += 1
            ranks.unreported.append(done)
            self._boundary(ranks)

    @property
    def brain_offset_ns(self) -> int:
        """What to add to CLOCK_MONOTONIC."""
        return self.brain._clock.offset_ns

    def _boundary(self, ranks: Group) -> None:
        """Read the vector that was started a turn ago, and act on it."""
        *reported, newest = ranks.unreported
        ranks.unreported = [newest]
        self._emit(ranks, *reported)
        if ranks.orders:
            self._act(ranks, ranks.orders.popleft())
        if self.ranks is not None and (
            ranks.save_due or ranks.step % self.state.settings.stage_every_steps == 0
        ):
            self._stage(ranks)

    def _act(self, ranks: Group, pending: Pending) -> None:
        ranks.acted = pending.order
        match pending.body:
            case Save():
                ranks.save_due = True
                ranks.save_orders.append(pending.order)
            case Set(name=name, value=value):
                self._emit(ranks, KnobSet(name=name, value=value, from_step=ranks.step))
                self._emit(ranks, OrderDone(order=pending.order))
            case Stop(word=word, exit_code=exit_code):
                self.leave(word, exit_code, orders=[pending.order])
            case Rollback(to=to, branch=branch):
                self._roll_back(ranks, to, branch, pending.order)

    def _roll_back(self, ranks: Group, to: SnapshotId, branch: int, order: int) -> None:
        gone = to not in self.memory and to not in self.disk
        if gone or branch <= ranks.branch or place_in(self.state.lineage, to) is None:
            self._emit(ranks, OrderFailed(order=order, outcome="the run has gone another way"))
            return
        self._drain(ranks)
        ranks.branch = branch
        tier = HOST if to in self.memory else DISK
        self._restore(ranks, to.step, fork(self.state.lineage, to, branch), tier, (), order)

    def _drain(self, ranks: Group) -> None:
        unreported, ranks.unreported = ranks.unreported, []
        self._emit(ranks, *unreported)

    def _stage(self, ranks: Group) -> None:
        """All ranks copy their state into a slot, if one is free."""
        id = SnapshotId(ranks.step, ranks.branch)
        if id not in self.memory:
            keep = {self._newest(), *(id for id, _ in self.writes)}
            if len(self.memory) >= self.state.settings.slots:
                free = sorted(set(self.memory) - keep, key=lambda id: newness(self.state.lineage, id))
                if not free:
                    return
                self.memory.remove(free[0])
            self.memory.append(id)
        for order in ranks.save_orders:
            self._write(id, order)
        ranks.save_due, ranks.save_orders = False, []

    def crash(self, *, page: bool = False, late: bool = False, error: str | None = None) -> None:
        """A rank's process ends: without a word, or with an error.

        Rank 0's last turns may be told by its page, or by itself before it hears that another is gone.
        """
        ranks = self.ranks
        if ranks is None:
            return
        if error is not None:
            self._emit(ranks, WorkerExited(node="n0", rank=0, error={"type": error, "message": "at 0x7f: 3"}))
        else:
            if page:
                self.tell(*ranks.unreported)
            self.tell(WorkerExited(node="n0", rank=0, signal=9))
        if late:
            self.clock.advance(1_000)
            self._drain(ranks)
        self.ranks = None

    def leave(self, word: str = "finished", exit_code: int = 0, orders: Sequence[int] = ()) -> None:
        """All ranks say goodbye, and may go when their last state is durable."""
        ranks = self.ranks
        if ranks is None or ranks.loading:
            return
        self._drain(ranks)
        id = SnapshotId(ranks.step, ranks.branch)
        if ranks.began_at != ranks.step:
            self._stage(ranks)
            if id in self.memory:
                args = {"step": id.step, "branch": id.branch}
                self.tell(Asked(id="end", who="the end of the run", do="write", args=args))
                self.settle()
        while self.writes:
            self.write()
        self.tell(*(OrderDone(order=order) for order in orders))
        self.tell(RunEnded(word=word, exit_code=exit_code))
        self.ranks = None

    # --- people -------------------------------------------------------------------------------------

    def ask(self, do: str, **args: Any) -> None:
        """A person or a program asks for something."""
        self.tell(Asked(id=do, who="ada@n0", do=do, args=args))

    def note(self, text: str) -> None:
        """A person writes into the logbook; the loop enters a phase."""
        self.tell(Noted(text=text, who="ada@n0"), PhaseEntered(phase=text))

    def mark(self, index: int, mark: str) -> None:
        """A person, or a policy of another version, marks a snapshot."""
        if self.state.catalogue:
            snapshot = self.state.catalogue[index % len(self.state.catalogue)]
            self.tell(_marked(snapshot.id, mark))

    def roll_back(self, index: int, *, skip: bool = False) -> None:
        """A policy of another version orders a rollback."""
        ranks, state = self.ranks, self.state
        if ranks is None or ranks.loading or any(isinstance(p.body, Rollback) for p in state.pending):
            return
        found = candidates(
            state.lineage, state.catalogue, self.memory, branch=self.branch + 1, suspects=state.suspects
        )
        if not found:
            return
        self.branch += 1
        to = found[index % len(found)].id
        left_out = (to.step * SAMPLES, (to.step + 1) * SAMPLES, "sample") if skip else None
        body = Rollback(to=to, branch=self.branch, skip=left_out)
        self.tell(Ordered(order=state.orders + 1, body=body, reason="a spike"))
        self.settle()
        self._hand_to_ranks()


def _committed(id: SnapshotId) -> SnapshotCommitted:
    return SnapshotCommitted(step=id.step, branch=id.branch, tier=DISK, bytes=100, write_ns=10)


def _marked(id: SnapshotId, mark: str) -> SnapshotMarked:
    return SnapshotMarked(step=id.step, branch=id.branch, mark=mark, why="a test says so")


def is_durable(state: RunState, id: SnapshotId) -> bool:
    """Whether the catalogue has the snapshot on disk."""
    snapshot = find(state.catalogue, id)
    return snapshot is not None and DISK in snapshot.tiers


# --- drawn histories ------------------------------------------------------------------------------------

NS = st.integers(0, 400_000_000)


def _move(verb: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Move]:
    return st.tuples(st.just(verb), st.fixed_dictionaries(arguments))


BOOL = st.booleans()
TRAIN = _move(
    "train", turns=st.integers(1, 9), ns=NS, data_ns=NS, stall_ns=NS, odd=st.just(False),
    phase_ns=st.dictionaries(st.sampled_from(["eval", "upload"]), NS, max_size=2),
)  # fmt: skip
SHARE = st.sampled_from([0.0, 0.3, 1.0])
MOVES: st.SearchStrategy[Move] = st.one_of(
    TRAIN,
    TRAIN,
    _move("train", turns=st.integers(1, 4), ns=NS, odd=BOOL),
    _move("write"),
    _move("write", fails=BOOL),
    _move("settle"),
    _move("start"),
    _move("load", passed=st.integers(0, 3)),
    _move("crash", page=BOOL),
    _move("crash", error=st.sampled_from([None, "ValueError"]), late=BOOL),
    _move("agent_dies", keeps=SHARE, ends=BOOL),
    _move("agent_dies", keeps=SHARE, machine=st.just(True), clock_s=st.sampled_from([0, -99_999, 3_600])),
    _move("say_again"),
    _move("silence"),
    _move("ask", do=st.sampled_from(["save", "save", "stop", "start", "rollback"])),
    _move("ask", do=st.just("set"), name=st.sampled_from(["clip", "lr"]), value=st.integers(0, 9)),
    _move("ask", do=st.just("accept_change"), keys=st.lists(st.sampled_from(["optimizer.lr", "seed"]))),
    _move("note", text=st.sampled_from(["eval", "a remark"])),
    _move("mark", index=st.integers(0, 5), mark=st.sampled_from(["pinned", "unpinned", "suspect"])),
    _move("roll_back", index=st.integers(0, 5), skip=BOOL),
    _move("leave"),
)


def go_on(passed: int = 0) -> list[Move]:
    """Get a run going again: what comes next has somebody to happen to."""
    return [("start", {}), ("load", {"passed": passed}), ("train", {"turns": 3, "ns": 1_000})]


SETTINGS = st.fixed_dictionaries(
    {
        "stage_every_steps": st.integers(1, 5),
        "slots": st.integers(2, 4),
        "save_every_s": st.sampled_from([0.5, 300.0]),
        "save_every_steps": st.none() | st.integers(1, 8),
        "keep": st.sampled_from([-1, 1, 2, 3]),
        "probation_steps": st.integers(0, 6),
        "restore_tries_max": st.integers(1, 3),
    }
)


few = settings(max_examples=40)
"""For tests over whole histories: each is hundreds of lines, and there are many such tests."""


@st.composite
def histories(draw: st.DrawFn) -> World:
    """Draw a run with all that happened to it: at its own pace, or with a quick store."""
    world = World(**draw(SETTINGS))
    world.play(go_on())
    # A list with no least size is short nearly always; one of several can still shrink to nothing.
    least = draw(st.sampled_from([0, 10, 25]))
    after: list[Move] = [("settle", {}), ("write", {})] if draw(BOOL) else []
    for move in draw(st.lists(MOVES, min_size=least, max_size=50)):
        world.play([move, *after])
        if world.ranks is None and draw(BOOL):
            world.play(go_on(draw(st.sampled_from([0, 0, 1, 2]))))
    return world
