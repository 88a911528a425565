"""The testing kit: time that only a test moves, and faults at chosen steps.

For tests of surefoot and of scripts that use it. Nothing here is a mock: the clock is a clock, and a
killed process is dead.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class ManualClock:
    """A clock that stands still until it is told to move; fits wherever a clock is passed in."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return the time; for what wants `time.monotonic_ns`."""
        return self._now_ns

    def now_s(self) -> float:
        """Return the time in seconds; for what wants `time.monotonic`."""
        return self._now_ns / 1e9

    def advance(self, ns: int) -> None:
        """Let time pass. Raises ValueError for less than none: this clock is monotonic."""
        if ns < 0:
            raise ValueError(f"a monotonic clock was told to go back by {-ns} ns")
        self._now_ns += ns

    def sleep(self, seconds: float) -> None:
        """Let time pass; for what wants `time.sleep`."""
        self.advance(round(seconds * 1e9))


@dataclass(frozen=True, slots=True)
class _Fault:
    kind: str
    step: int
    rank: int | None
    """None strikes every rank."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults that a training loop brings upon itself, to see that its run survives them.

        plan = FaultPlan(once=Path("struck")).kill(rank=1, step=7).nan(step=9)
        for step in run.steps(100):
            plan.before_step(rank, step)
            ...
            loss = plan.loss(rank, step, loss)

    A restarted run comes by the same step again. With `once`, a folder that outlives the process, a
    fault strikes a rank a single time; without it, every time.
    """

    once: Path | None = None
    faults: tuple[_Fault, ...] = ()

    def kill(self, *, step: int, rank: int | None = None) -> FaultPlan:
        """Return the plan with a SIGKILL of a rank, or of every one, before its turn `step`."""
        return replace(self, faults=(*self.faults, _Fault("kill", step, rank)))

    def nan(self, *, step: int, rank: int | None = None) -> FaultPlan:
        """Return the plan with the loss of turn `step` spoilt on a rank, or on every one."""
        return replace(self, faults=(*self.faults, _Fault("nan", step, rank)))

    def before_step(self, rank: int, step: int) -> None:
        """Do what is planned before a turn; after a kill it doesn't return."""
        if self._strikes("kill", rank, step):
            os.kill(os.getpid(), signal.SIGKILL)

    def loss(self, rank: int, step: int, loss: T) -> T:
        """Return the loss of a turn, or NaN times the loss: so are the gradients of a tensor."""
        spoilt: Any = loss
        return spoilt * float("nan") if self._strikes("nan", rank, step) else loss

    def _strikes(self, kind: str, rank: int, step: int) -> bool:
        planned = _Fault(kind, step, rank) in self.faults or _Fault(kind, step, None) in self.faults
        if not planned or self.once is None:
            return planned
        self.once.mkdir(parents=True, exist_ok=True)
        try:
            # Before it strikes: afterwards nobody may be left to write it down.
            (self.once / f"{kind}-rank-{rank}-step-{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
