"""The demo: a real training is killed again and again, and ends equal to the undisturbed one, bit for bit.

The example (examples/train_gpt.py) is an ordinary script that writes its own trace: samples and loss of
every turn and rank, and at the end a hash of the weights. It runs twice. The second time one rank, all of
them and the agent are killed at instants drawn from a seed, and the same command is started again
whenever it has ended. Then the traces are compared; surefoot's own word isn't asked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surefoot.chaos import agent, traces
from surefoot.chaos.kills import Kill, draw
from surefoot.chaos.ranks import Launch
from surefoot.errors import ConfigError

STALL_S = 120.0
"""A start that comes through no turn for so long hangs."""

LEAVE_S = 30.0
"""How long the agent of a finished run may take to leave."""

_POLL_S = 0.005


@dataclass(slots=True, kw_only=True)
class Trained:
    """One run of the example, from its first start to its end."""

    name: str
    """Its directory below the demo's; beside it lies NAME.trace."""
    starts: int = 0
    kills: list[Kill] = field(default_factory=list)
    """Those that struck."""
    took_s: float = 0.0
    start_s: float = 0.0
    """From its newest start to the first turn that was through."""
    step_s: float = 0.0
    """One turn of its newest start."""
    problem: str | None = None
    """Why it didn't come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of the demo."""

    place: str
    """Where both runs are."""
    seed: int
    undisturbed: Trained
    disturbed: Trained
    problem: str | None
    """What kept it from its end, or the first difference; None: equal to the last bit."""
    turns: int
    """What was compared: each turn of each rank."""
    again: int
    """How many of them the disturbed run did more than once."""
    weights: str
    """The hash that the disturbed run ended with; "" if it didn't."""


def example(name: str) -> Path:
    """Return a script that is trained: the repository's, of which a wheel holds a copy beside this file."""
    here, path = Path(__file__), Path("examples", name)
    return next(place / path for place in (here.parent, here.parents[3]) if (place / path).exists())


class Demo:
    """Trains the example twice below `place`, which is empty or not there yet."""

    def __init__(self, place: Path, *, steps: int, ranks: int = 2, say: Callable[[str], None]) -> None:
        if place.exists() and any(place.iterdir()):
            raise ConfigError(
                f"{place} is not empty. Expected an empty directory for the demo, or one that it may make; "
                "name another"
            )
        self._place = place.absolute()
        self._steps = steps
        self._ranks = ranks
        self._say = say
        self._began_s = time.monotonic()

    def run(self, seed: int, kills: int) -> Outcome:
        """Train undisturbed, train disturbed, compare."""
        self._tell(f"undisturbed: {self._ranks} ranks, {self._steps} steps")
        calm = self._train(Trained(name="undisturbed"), [], calm=None)
        wild = Trained(name="disturbed")
        if calm.problem is None:
            self._tell(f"disturbed: the same again, with {kills} kills of seed {seed}")
            plan = draw(seed, kills, steps=self._steps, ranks=self._ranks)
            self._train(wild, plan, calm=calm)
        expected, got = (traces.read(self._place / f"{each.name}.trace") for each in (calm, wild))
        problem = calm.problem or wild.problem or traces.first_difference(expected, got)
        lines = (self._steps + 1) * self._ranks
        if problem is None and len(expected) != lines:
            problem = f"the traces tell of {len(expected)} turns and weights, not of {lines}"
        turns = [told for key, told in got.items() if key[0] == traces.STEP]
        return Outcome(
            place=str(self._place),
            seed=seed,
            undisturbed=calm,
            disturbed=wild,
            problem=problem,
            turns=len(turns),
            again=sum(len(told) > 1 for told in turns),
            weights=got.get((traces.WEIGHTS, self._steps, 0), [""])[-1],
        )

    def _train(self, trained: Trained, plan: Sequence[Kill], calm: Trained | None) -> Trained:
        """Start the example, strike, and start it again, until it has ended by itself."""
        run_dir, trace = self._place / trained.name, self._place / f"{trained.name}.trace"
        command = [
            *(sys.executable, str(example("train_gpt.py")), "--dir", str(run_dir)),
            *("--steps", str(self._steps), "--trace", str(trace)),
        ]
        began_s = time.monotonic()
        due = list(plan)
        tail = traces.Tail(trace)
        ended = False
        try:
            while not ended and trained.problem is None:
                trained.starts += 1
                logs = self._place / "logs" / f"{trained.name}-{trained.starts}"
                with Launch(command, self._ranks, logs) as launch:
                    start = _Start(launch, run_dir, trained, tail, self._tell)
                    start.follow(due, calm)
                    codes = launch.codes
                ended = not any(codes) and trained.problem is None
                if not (ended or start.struck or trained.problem):
                    trained.problem = f"the ranks ended with {codes}, and none had been killed"
                if trained.problem is not None:
                    trained.problem = (
                        f"{trained.name}, start {trained.starts}: {trained.problem}\n{_last_words(logs)}"
                    )
            if ended and not agent.left(run_dir, LEAVE_S):
                trained.problem = f"{trained.name}: its agent is there {LEAVE_S:g} s after the end"
        finally:
            trained.took_s = time.monotonic() - began_s
            if not ended or trained.problem is not None:
                agent.end(run_dir)
        return trained

    def _tell(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began_s:6.1f} s  {text}")


class _Start:
    """One start of the ranks: follows it to its end, and kills what is due."""

    def __init__(
        self,
        launch: Launch,
        run_dir: Path,
        trained: Trained,
        tail: traces.Tail,
        tell: Callable[[str], None],
    ) -> None:
        self._launch = launch
        self._run_dir = run_dir
        self._trained = trained
        self._tail = tail
        self._words = traces.Tail(launch.log(0))
        self._tell = tell
        self._began_s = time.monotonic()
        self._first: tuple[int, float] | None = None
        """The first turn that was through, and when."""
        self._newest: tuple[int, float] | None = None
        self._reached_s: float | None = None
        """When the turn of the next kill was through."""
        self.struck = False
        """Whether ranks were killed: the agent's death ends none."""

    def follow(self, due: list[Kill], calm: Trained | None) -> None:
        """Return once all ranks have ended, or hang; takes what strikes from `due`."""
        while not self._launch.wait(_POLL_S):
            self._look()
            if time.monotonic() - (self._newest[1] if self._newest else self._began_s) > STALL_S:
                self._trained.problem = f"no turn for {STALL_S:g} s, {self._at()}"
                return
            if due and calm is not None and self._is_due(due[0], calm) and self._strike(due[0]):
                self._reached_s = None
                del due[0]
        self._look()

    def _look(self) -> None:
        now_s = time.monotonic()
        for line in self._tail.lines():
            (word, step, rank), _ = traces.parse(line)
            if word == traces.STEP and rank == 0:
                self._newest = (step, now_s)
                self._first = self._first or self._newest
        if self._first is not None and self._newest is not None:
            self._trained.start_s = self._first[1] - self._began_s
            self._trained.step_s = (now_s - self._first[1]) / (1 + self._newest[0] - self._first[0])
        for text in self._words.lines():
            if text.startswith(("surefoot: ", "step ")):
                self._tell(f"  {text.removeprefix(f'surefoot: {self._run_dir}: ')}")

    def _is_due(self, kill: Kill, calm: Trained) -> bool:
        now_s = time.monotonic()
        if self.struck and (kill.ranks or kill.step is None):
            return False  # these ranks are dying: it is for the next ones
        if kill.step is None:
            return now_s - self._began_s >= kill.part * calm.start_s
        if self._reached_s is None and self._newest is not None and self._newest[0] >= kill.step:
            self._reached_s = self._newest[1]
        return self._reached_s is not None and now_s - self._reached_s >= kill.part * calm.step_s

    def _strike(self, kill: Kill) -> bool:
        """Kill, and return whether it was there to be killed."""
        if kill.ranks:
            self._launch.kill(kill.ranks)
            self.struck = True
        elif agent.kill(self._run_dir) is None:
            return False
        self._trained.kills.append(kill)
        self._tell(f"  killed {kill.what}, {self._at()}")
        return True

    def _at(self) -> str:
        return f"after step {self._newest[0]}" if self._newest is not None else "while the ranks were starting"


def _last_words(logs: Path) -> str:
    """Return the end of what each rank printed."""
    tails = {log.name: log.read_text(errors="replace").splitlines()[-12:] for log in sorted(logs.glob("*.log"))}
    return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in tails.items())
