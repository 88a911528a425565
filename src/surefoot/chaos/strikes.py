"""What a campaign strikes, and when: drawn from a seed, over the whole life of a run.

A strike comes at a boundary of the loop, at a point inside a phase on purpose, or at an instant. Every
choice of a seed hangs on the seed and on what is chosen alone, not on what else there was to choose from:
a point that is added to a phase changes few of the trials that have been drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from xxhash import xxh3_64_intdigest

from surefoot.chaos.faults import AGENT, CHILD, ENTER, HALFWAY, LEAVE, RANK, STORE, Point

T = TypeVar("T")

BOUNDARY, INSTANT, TRAIN = "boundary", "instant", "train"

ONE, ALL, THE_AGENT, THE_CHILD, EVERYTHING = "one rank", "all ranks", "the agent", "the mover", "everything"
VICTIMS = (ONE, ALL, THE_AGENT, THE_CHILD, EVERYTHING)

PER_TRIAL = 4
"""Strikes of one trial."""

COPY_MAX_S = 600e-6
"""About what it takes to copy the state into a slot: a strike falls anywhere in it."""


def _rank(when: str, call: str, inside: str = "") -> Point:
    return Point(RANK, when, f"surefoot.{call}", f"surefoot.{inside}" if inside else "")


def _agent(when: str, call: str, inside: str = "") -> Point:
    return Point(AGENT, when, f"surefoot.{call}", f"surefoot.{inside}" if inside else "")


def _child(when: str, call: str) -> Point:
    return Point(CHILD, when, f"surefoot.{call}")


def _store(operation: str) -> Point:
    return Point(CHILD, STORE, operation)


PHASES: dict[str, tuple[Point, ...]] = {
    "start": (
        _rank(ENTER, "loop.opening:choose_run"),
        _rank(LEAVE, "loop.opening:choose_run"),
        _rank(ENTER, "loop.link:Link.join"),
        _rank(ENTER, "loop.link:Link.wait_for", "loop.link:Link.join"),
        _rank(LEAVE, "loop.link:Link.join"),
        _agent(LEAVE, "wire:listen"),
        _agent(ENTER, "journal.lease:take"),
        _agent(LEAVE, "journal.lease:take"),
        _agent(LEAVE, "agent.start:begin"),
        _agent(ENTER, "agent.attempts:Attempts.hello"),
        _agent(LEAVE, "agent.attempts:Attempts.hello"),
        _agent(LEAVE, "agent.attempts:Attempts._begin"),
        _agent(ENTER, "agent.attempts:Attempts._welcome"),
        _agent(LEAVE, "wire:Channel.send", "agent.attempts:Attempts._welcome"),
        _agent(LEAVE, "agent.attempts:Attempts._welcome"),
    ),
    "restore": (
        _rank(ENTER, "loop.opening:restore"),
        _rank(ENTER, "loop.snapshots:Snapshots._copy_in"),
        _rank(ENTER, "torch.state:TorchState.copy_in", "loop.snapshots:Snapshots._copy_in"),
        _rank(LEAVE, "loop.snapshots:Snapshots._copy_in"),
        _rank(LEAVE, "loop.snapshots:Snapshots.restore_slots"),
        _rank(ENTER, "loop.snapshots:Snapshots.restore_disk"),
        _rank(LEAVE, "loop.opening:restore"),
        _rank(ENTER, "loop.attempt:Attempt.offer_layout"),
        _rank(LEAVE, "loop.attempt:Attempt.offer_layout"),
        _rank(ENTER, "loop.attempt:Attempt.stage_now"),
        _rank(LEAVE, "loop.attempt:Attempt.stage_now"),
        _agent(ENTER, "agent.attempts:Attempts._restart_is_done"),
        _agent(LEAVE, "agent.attempts:Attempts._restart_is_done"),
        _agent(ENTER, "agent.memory:Memory.lay_out"),
        _agent(LEAVE, "agent.memory:Memory.lay_out"),
    ),
    "staging": (
        _rank(ENTER, "torch.state:TorchState.copy_out", "loop.snapshots:Snapshots.stage"),
        _rank(LEAVE, "torch.state:TorchState.copy_out", "loop.snapshots:Snapshots.stage"),
        _rank(LEAVE, "loop.snapshots:Snapshots.stage"),
        _rank(LEAVE, "loop.attempt:Attempt.stage"),
        _agent(ENTER, "agent.memory:Memory.staged"),
        _agent(LEAVE, "agent.memory:Memory.staged"),
        _agent(LEAVE, "agent.writes:Writes.staged"),
    ),
    "writing": (
        _agent(LEAVE, "agent.writes:Writes._begin"),
        _store("create */rank-*"),
        _store("write */rank-*"),
        Point(CHILD, HALFWAY, "os:pwrite", "surefoot.checkpoint.writer:write_image"),
        _store("fsync */rank-*"),
        _store("rename */rank-*"),
    ),
    "commit": (
        _store("create */part-*"),
        _store("rename */part-*"),
        _child(ENTER, "checkpoint.commit:commit"),
        _store("create */manifest.json"),
        _store("write */manifest.json"),
        _store("fsync */manifest.json"),
        _store("rename */manifest.json"),
        _child(LEAVE, "checkpoint.commit:commit"),
        _agent(ENTER, "agent.writes:Writes._written"),
        _agent(LEAVE, "agent.writes:Writes._written"),
    ),
    "agreeing": (
        _rank(ENTER, "loop.boundary:Boundary._start"),
        _rank(LEAVE, "torch.ranks:TorchRanks.start_sum", "loop.boundary:Boundary._start"),
        _rank(LEAVE, "loop.boundary:Boundary._start"),
        _rank(ENTER, "loop.boundary:Boundary.drain"),
        _rank(LEAVE, "loop.boundary:Boundary.drain"),
        _rank(ENTER, "loop.boundary:Boundary._carry_out"),
        _rank(ENTER, "torch.ranks:TorchRanks.broadcast", "loop.boundary:Boundary._carry_out"),
        _rank(LEAVE, "loop.boundary:Boundary._carry_out"),
    ),
    "journal": (
        _agent(ENTER, "brain:Brain.flush"),
        _child(ENTER, "journal.files:Appender.append"),
        Point(CHILD, HALFWAY, "os:write", "surefoot.journal.files:Appender.append"),
        _child(LEAVE, "journal.files:Appender.append"),
        _child(ENTER, "journal.files:Appender.sync"),
        _child(LEAVE, "journal.files:Appender.sync"),
    ),
    "pruning": (
        _agent(ENTER, "agent.writes:Writes.prune"),
        _store("remove */manifest.json"),
        _store("remove */rank-*"),
        _store("rmdir *"),
        _agent(ENTER, "agent.writes:Writes._pruned"),
        _agent(LEAVE, "agent.writes:Writes._pruned"),
    ),
    "leaving": (
        _rank(ENTER, "loop.attempt:Attempt.leave"),
        _rank(ENTER, "loop.link:Link.wait_for", "loop.attempt:Attempt.leave"),
        _rank(LEAVE, "loop.attempt:Attempt.leave"),
        _rank(LEAVE, "loop.steps:Loop._close"),
        _agent(ENTER, "agent.goodbye:Goodbye.tick"),
        _agent(ENTER, "agent.goodbye:Goodbye._record"),
        _agent(LEAVE, "agent.goodbye:Goodbye._record"),
        _agent(LEAVE, "agent.goodbye:Goodbye.tick"),
        _agent(ENTER, "agent.agent:Agent._leave"),
        _agent(LEAVE, "agent.agent:Agent._leave"),
    ),
}
"""The phases of a run's life, and the points inside them."""

BOUNDARIES = (_rank(ENTER, "loop.boundary:Boundary.cross"), _rank(LEAVE, "loop.boundary:Boundary.cross"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """SIGKILL for its victims, at one point or instant."""

    aim: str
    """`BOUNDARY`, a phase, or `INSTANT`."""
    victims: str
    rank: int
    """The rank that has to come to a rank's point, and the one of `ONE`."""
    point: Point | None = None
    times: int = 1
    """It strikes when the point is come to for this time."""
    step: int = 0
    """Not before this turn is through."""
    delay_s: float = 0.0
    """After the process has gone on from the point."""
    part: float = 0.0
    """An instant: when an undisturbed run is through this part of its life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is trained."""

    ranks: int
    grouped: bool
    """Whether torch.distributed is used at all."""
    args: tuple[str, ...] = ()

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}{'' if self.grouped else ' without a group'}"
        return " ".join([ranks, *self.args])


SETUPS = (
    Setup(ranks=1, grouped=False),
    Setup(ranks=1, grouped=False, args=("--workers", "2", "--slots", "2")),
    Setup(ranks=1, grouped=True),
    Setup(ranks=2, grouped=True),
    Setup(ranks=2, grouped=True, args=("--workers", "2")),
    Setup(ranks=2, grouped=True, args=("--optimizer", "sgd", "--slots", "2")),
    Setup(ranks=4, grouped=True),
    Setup(ranks=4, grouped=True, args=("--optimizer", "sgd")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A trial: one run, struck again and again, started again whenever its ranks have ended."""

    name: str
    """What to ask for to have it again: a seed, or a point and victims."""
    setup: Setup
    strikes: tuple[Strike, ...]
    grace_s: float
    """How long ranks may live on beside one that has died before the launcher ends them."""
    overlapping: bool
    """Whether the next start doesn't wait for that."""

    @property
    def points(self) -> list[Point]:
        """Return the points of all strikes, each once."""
        return list(dict.fromkeys(strike.point for strike in self.strikes if strike.point is not None))


def draw(seed: int, steps: int) -> Plan:
    """Return a seed's trial of a run of so many steps."""
    setup = _choose(SETUPS, seed, "setup")
    aims = _aims(seed)
    return Plan(
        name=f"seed {seed}",
        setup=setup,
        strikes=tuple(_strike(aim, n, seed, setup, steps) for n, aim in enumerate(aims)),
        grace_s=_choose((0.0, 1.0), seed, "grace"),
        overlapping=_part(seed, "overlapping") < 0.2,
    )


def aimed(pattern: str, steps: int) -> list[Plan]:
    """Return trials that strike each point twice whose name matches the pattern, for each kind of victim."""
    plans = []
    for aim, points in PHASES.items():
        for point in points:
            own = {AGENT: (THE_AGENT,), CHILD: (THE_CHILD,), RANK: (ONE, THE_AGENT)}[point.process]
            for victims in (*own, ALL, EVERYTHING):
                name = f"{point}, {victims}"
                if fnmatchcase(name, pattern):
                    plans.append(_aimed(name, aim, point, victims, steps))
    return plans


def _aimed(name: str, aim: str, point: Point, victims: str, steps: int) -> Plan:
    setup = _choose([setup for setup in SETUPS if setup.ranks > 1], name, "setup")
    rank = int(_part(name, "rank") * setup.ranks)
    # An agent that lives on has no start to be struck in, and nothing is read from disk.
    first = EVERYTHING if aim == "start" or point.call.endswith("restore_disk") else ALL
    step = 2 + int(_part(name, "step") * steps / 4)
    strikes = [Strike(aim=BOUNDARY, victims=first, rank=0, point=BOUNDARIES[0], step=step)]
    for n in range(2):
        delay_s = _delay_s(point, name, n)
        strikes.append(Strike(aim=aim, victims=victims, rank=rank, point=point, times=1 + n, delay_s=delay_s))
    return Plan(name=name, setup=setup, strikes=tuple(strikes), grace_s=1.0, overlapping=False)


def _aims(seed: int) -> list[str]:
    """Return what a trial aims at: boundaries, instants, or a boundary and then points inside of phases."""
    kind = seed % 4
    if kind == 0:
        return [BOUNDARY] * PER_TRIAL
    if kind == 1:
        return [INSTANT] * PER_TRIAL
    return [BOUNDARY, *(_choose(tuple(PHASES), seed, "phase", n) for n in range(1, PER_TRIAL))]


def _strike(aim: str, n: int, seed: int, setup: Setup, steps: int) -> Strike:
    rank = int(_part(seed, "rank", n) * setup.ranks)
    victims = _choose(VICTIMS, seed, "victims", n)
    if aim == INSTANT:
        return Strike(aim=aim, victims=victims, rank=rank, part=_part(seed, "part", n))
    if aim == BOUNDARY:
        apart = steps // PER_TRIAL
        if seed % 4 == 0:
            # Over the seeds every boundary has its turn; within one they lie apart.
            step = seed // 4 % apart + n * apart
        else:
            # What comes behind it has a start to strike, and something to restore.
            step = 2 + int(_part(seed, "step", n) * apart)
            victims = _choose((ONE, ALL, EVERYTHING), seed, "victims", n)
        point = _choose(BOUNDARIES, seed, "point", n)
        return Strike(aim=aim, victims=victims, rank=rank, point=point, step=step)
    point = _choose(PHASES[aim], seed, "point", n)
    if point.process != RANK and _part(seed, "itself", n) < 0.5:
        victims = THE_AGENT if point.process == AGENT else THE_CHILD
    times = 1 + int(_part(seed, "times", n) * 2)
    delay_s = _delay_s(point, seed, n)
    return Strike(aim=aim, victims=victims, rank=rank, point=point, times=times, delay_s=delay_s)


def _delay_s(point: Point, *what: object) -> float:
    """Return how long after a point a strike falls: where state is copied, anywhere in it."""
    copying = point.when == ENTER and point.call.endswith((".copy_out", ".copy_in"))
    return _part("delay", *what) * COPY_MAX_S if copying else 0.0


def _part(*what: object) -> float:
    """Return a number from 0 to 1 that hangs on what it is for."""
    return xxh3_64_intdigest(repr(what).encode()) / 2.0**64


def _choose(options: Sequence[T], *what: object) -> T:
    """Return the option that draws the highest number for what it is for."""
    return max(options, key=lambda option: _part(*what, str(option)))
