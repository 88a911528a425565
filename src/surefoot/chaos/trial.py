"""One trial of a campaign: a run is struck, started again until it has finished, and then judged.

The trial stands at the post that its processes report to, and kills what its plan says while they wait
there. Meanwhile it asks the live agent for the hash of its fold, to compare it with one of the files.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import tempfile
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from surefoot.chaos import processes, traces
from surefoot.chaos.faults import Coming, Post
from surefoot.chaos.hearing import Hearing
from surefoot.chaos.strikes import ALL, EVERYTHING, INSTANT, ONE, THE_AGENT, THE_CHILD, TRAIN, Plan, Strike
from surefoot.chaos.verdict import Calm, judge
from surefoot.chaos.warm import Warm
from surefoot.loop.beat import Beat

STALL_S = 60.0
"""A start that takes so long hangs."""

STARTS_MAX = 40

LEAVE_S = 30.0
"""How long the agent of a finished run may take to leave."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - each trial makes a folder of its own there
_POLL_MS = 5
_STACK_S = 0.5
"""For a process that is aborted to print where it stood."""

_PHASES = {"start": "start", "restore": "restore", "stage": "staging", "agree": "agreeing", "end": "leaving"}
"""Phase on a rank's beat page → what a campaign calls it; the others are the turns themselves."""


@dataclass(slots=True, kw_only=True)
class Struck:
    """A strike that fell."""

    phase: str
    where: str
    victims: str
    start: int
    step: int
    """The newest turn that was through."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a trial."""

    name: str
    setup: str
    starts: int = 0
    struck: list[Struck] = field(default_factory=list)
    missed: int = 0
    """Strikes whose point nobody came to any more."""
    compared: int = 0
    """Hashes of the live fold that were compared with the files'."""
    took_s: float = 0.0
    problem: str | None = None
    """Why it failed; None: finished, equal to the last bit, agent and files of one mind."""
    kept: str | None = None
    """Where everything of a failed trial lies."""


@dataclass(slots=True)
class _Rank:
    """One rank of one start."""

    number: int
    pid: int
    pidfd: int
    code: int | None = None
    """How it ended, -n by signal n; None while it runs."""


class Trial:
    """One run, and what is done to it. Without `calm`, an undisturbed run, there is nothing to compare."""

    def __init__(self, warm: Warm, plan: Plan, steps: int, calm: Calm | None) -> None:
        # Short, for the paths of sockets are limited; in memory, for nobody pulls the plug of the machine.
        self.folder = Path(tempfile.mkdtemp(prefix="sf-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.outcome = Outcome(name=plan.name, setup=str(plan.setup))
        self.trace = self.folder / "trace"
        self._run_dir = self.folder / "run"
        self._warm = warm
        self._plan = plan
        self._steps = steps
        self._calm = calm
        self._dice = random.Random(plan.name)
        self._points = plan.points
        self._due = list(plan.strikes)
        self._times = Counter[Strike]()
        """How often the point of a strike that is due was come to."""
        self._post = Post(self.folder / "post")
        self._hearing = Hearing(self._run_dir, self.folder)
        self._tail = traces.Tail(self.trace)
        self._through: dict[int, int] = {}
        """Rank → the turn that it wrote down last."""
        self.began_s = self.ended_s = 0.0
        """When the newest start began, and when its ranks had ended."""
        self.turns_s: dict[int, float] = {}
        """When rank 0 of the newest start was through with each turn."""
        self._ranks: list[_Rank] = []
        """Of the newest start, and what is left of those before it."""

    def run(self) -> Outcome:
        """Do it; a trial that succeeded leaves nothing behind."""
        began_s, outcome = time.monotonic(), self.outcome
        try:
            outcome.problem = self._train() or self._judge()
        finally:
            self._end_everything()
        outcome.took_s = time.monotonic() - began_s
        outcome.missed = len(self._due)
        if outcome.problem is not None:
            outcome.kept = str(self.folder)
        elif self._calm is not None:
            self.clear()
        return outcome

    def clear(self) -> None:
        """Remove the trial's folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- starts -----------------------------------------------------------------------------------------

    def _train(self) -> str | None:
        """Start the run until it has finished and nobody serves it; return why it didn't come to that."""
        while self.outcome.starts < STARTS_MAX:
            before = len(self.outcome.struck)
            ranks = self._start()
            if (problem := self._follow(ranks)) is not None:
                return problem
            struck = self.outcome.struck[before:]
            codes = [rank.code for rank in ranks]
            if any(code != 0 for code in codes) and not struck:
                return f"start {self.outcome.starts}: the ranks ended with {codes}, and nobody had been struck"
            if all(code == 0 for code in codes):
                if not self._wait_until(lambda: not self._agents(), LEAVE_S):
                    return f"the agent of the finished run is there after {LEAVE_S:g} s"
                if len(self.outcome.struck) == before + len(struck):
                    return None
        return f"not finished after {STARTS_MAX} starts"

    def _start(self) -> list[_Rank]:
        """Start all ranks; what is left of the last start lives on only where starts overlap."""
        self.outcome.starts += 1
        self.began_s = time.monotonic()
        self.turns_s.clear()
        start, setup = self.outcome.starts, self._plan.setup
        args = ["--dir", str(self._run_dir), "--steps", str(self._steps), "--trace", str(self.trace)]
        args += ["--rendezvous", f"file://{self.folder}/ranks-{start}", *setup.args]
        ranks = []
        for number in range(setup.ranks):
            env = {"XDG_RUNTIME_DIR": str(self.folder)}
            if setup.grouped:
                env |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(setup.ranks)}
            pid = self._warm.fork(
                args,
                env=env,
                folder=self.folder,
                log=self.folder / f"rank-{number}-{start}.log",
                points=self._points,
                post=self.folder / "post",
            )
            ranks.append(_Rank(number, pid, os.pidfd_open(pid)))
        self._ranks = [rank for rank in self._ranks if rank.code is None] + ranks
        return ranks

    def _follow(self, ranks: list[_Rank]) -> str | None:
        """Strike what is due until the start is over; return why it hangs, if it does."""
        failed_s: float | None = None
        while any(rank.code is None for rank in ranks):
            self._look()
            now_s = time.monotonic()
            if any(rank.code for rank in ranks):
                failed_s = failed_s or now_s
                if self._overlaps:
                    break
                if now_s - failed_s >= self._plan.grace_s:
                    self._kill(rank.pid for rank in ranks if rank.code is None)
            elif self._armed and self._armed[0].point is None and self._is_the_instant(self._armed[0], now_s):
                self._strike(self._armed[0])
            if now_s - self.began_s > STALL_S:
                return self._stalled()
        self.ended_s = time.monotonic()
        if not self._overlaps or not any(rank.code for rank in ranks):
            self._kill(rank.pid for rank in self._ranks if rank.code is None)
            self._look()
        return None

    @property
    def _overlaps(self) -> bool:
        """Whether the next start may begin beside ranks of this one; of those still joining nobody knows."""
        return self._plan.overlapping and bool(self.turns_s)

    def _look(self) -> None:
        """Wait a moment for what happens, and take it in."""
        poll = select.poll()
        for rank in self._ranks:
            if rank.code is None:
                poll.register(rank.pidfd, select.POLLIN)
        poll.register(self._post, select.POLLIN)
        poll.poll(_POLL_MS)
        for rank in self._ranks:
            if rank.code is None and select.select([rank.pidfd], [], [], 0)[0]:
                rank.code = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
                os.close(rank.pidfd)
        for line in self._tail.lines():
            (_, step, number), _ = traces.parse(line)
            self._through[number] = step
            if number == 0:
                self.turns_s[step] = time.monotonic()
        for coming in self._post.coming():
            self._meet(coming)
        self._hearing.tick()

    def _wait_until(self, what: Callable[[], bool], timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while not what():
            if time.monotonic() > until_s:
                return False
            self._look()
        return True

    def _stalled(self) -> str:
        """Have every process print where it stands, and return what is known of it."""
        family = processes.descendants()
        where = {rank.number: _phase_of(rank.pid)() for rank in self._ranks if rank.code is None}
        for process in family:
            if process.pid != self._warm.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGABRT)
        time.sleep(_STACK_S)
        return f"start {self.outcome.starts} hangs, after turns {self._through}, in phases {where}"

    # --- strikes ----------------------------------------------------------------------------------------

    def _meet(self, coming: Coming) -> None:
        """Strike if somebody has come to a point that is due, else let it go on."""
        due = [strike for strike in self._armed if self._is_due(strike, coming)]
        self._times.update(due)
        for strike in due:
            if self._times[strike] >= strike.times:
                self._strike(strike, coming)
                break
        coming.release()

    @property
    def _armed(self) -> list[Strike]:
        """What may fall now: first the plan's first, then all the others as they come."""
        return self._due[:1] if len(self._due) == len(self._plan.strikes) else self._due

    def _is_the_instant(self, strike: Strike, now_s: float) -> bool:
        """Tell whether this start is where an undisturbed run is at that part of its life.

        That is so long after its beginning, or after the same turn: a machine is not always as fast.
        """
        assert self._calm is not None
        at_s = strike.part * self._calm.took_s
        turn = bisect(self._calm.turns_s, at_s) - 1
        if turn < 0:
            return now_s - self.began_s >= at_s
        through = [through_s for step, through_s in self.turns_s.items() if step >= turn]
        return bool(through) and now_s - through[0] >= at_s - self._calm.turns_s[turn]

    def _is_due(self, strike: Strike, coming: Coming) -> bool:
        if strike.point is None or self._points[coming.point] != strike.point:
            return False
        number = next((rank.number for rank in self._ranks if rank.pid == coming.pid), strike.rank)
        return number == strike.rank and self._through.get(number, -1) >= strike.step

    def _strike(self, strike: Strike, coming: Coming | None = None) -> None:
        """Kill the victims, while whoever has come to the point stands there, or a moment later."""
        self._due.remove(strike)
        victims = self._victims(strike, coming)
        phase_of = _phase_of(self._alive(strike.rank)) if coming is None else lambda: strike.aim
        if coming is not None and strike.delay_s:
            coming.release()
            time.sleep(strike.delay_s)
        self._kill(victims)
        where = str(strike.point) if strike.point is not None else INSTANT
        step = self._through.get(strike.rank, -1)
        self.outcome.struck.append(
            Struck(phase=phase_of(), where=where, victims=strike.victims, start=self.outcome.starts, step=step)
        )

    def _victims(self, strike: Strike, coming: Coming | None) -> list[int]:
        """Return the pids of what is to be killed; where there is no agent, the rank."""
        ranks = [rank.pid for rank in self._ranks if rank.code is None]
        agents = self._agents()
        children = [child.pid for child in processes.descendants() if child.parent in agents]
        found = {
            ONE: [self._alive(strike.rank)],
            ALL: ranks,
            THE_AGENT: agents,
            THE_CHILD: self._dice.sample(children, min(1, len(children))),
            EVERYTHING: [*ranks, *agents, *children],
        }[strike.victims]
        if strike.victims == THE_CHILD and coming is not None and coming.pid in children:
            found = [coming.pid]
        self._dice.shuffle(found)
        return [pid for pid in found if pid] or [pid for pid in [self._alive(strike.rank)] if pid]

    def _alive(self, number: int) -> int:
        """Return the pid of the newest rank of that number, 0 if it has ended."""
        return next((r.pid for r in reversed(self._ranks) if r.number == number and r.code is None), 0)

    def _agents(self) -> list[int]:
        """Return the pids of the run's agents, also of one that is only beginning."""
        return [process.pid for process in processes.descendants() if process.args[-1:] == [str(self._run_dir)]]

    def _kill(self, pids: Iterable[int]) -> None:
        processes.kill(pids)

    def _end_everything(self) -> None:
        self._post.close()
        self._hearing.close()
        while family := [p.pid for p in processes.descendants() if p.pid != self._warm.pid]:
            self._kill(family)
            processes.reap(family)
        for rank in self._ranks:
            if rank.code is None:
                os.close(rank.pidfd)

    # --- the end ----------------------------------------------------------------------------------------

    def _judge(self) -> str | None:
        if self._calm is None:
            return None
        problem, self.outcome.compared = judge(
            self._run_dir,
            self.trace,
            steps=self._steps,
            always=self._plan.setup.ranks <= 2,
            calm=self._calm,
            heard=self._hearing.heard,
        )
        return problem


def _phase_of(pid: int) -> Callable[[], str]:
    """Return how to read a rank's phase off its beat page, also when it is dead by then."""
    beat: Beat | None = None
    folder = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            if str(link.readlink()).startswith("/memfd:surefoot-beat"):
                fd = os.open(link, os.O_RDWR)
                beat = Beat(fd)
                os.close(fd)
    return lambda: _PHASES.get(beat.phase, TRAIN) if beat is not None and beat.valid else "start"
