"""A campaign: many trials of kills, each drawn from a seed; its summary says what was hit.

    python -m surefoot.chaos.campaign --seed 7                          one trial, again
    python -m surefoot.chaos.campaign --points '*commit*'                at these points
    python -m surefoot.chaos.campaign --seeds 0:400 --points '*' --jobs 2 --least 5 --json out/soak.json

A phase that was hit too seldom fails a campaign as a difference does: what wasn't struck wasn't tried.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from surefoot.chaos import traces
from surefoot.chaos.demo import example
from surefoot.chaos.strikes import BOUNDARIES, BOUNDARY, INSTANT, PHASES, TRAIN, Plan, Setup, aimed, draw
from surefoot.chaos.trial import Outcome, Trial
from surefoot.chaos.verdict import Calm
from surefoot.chaos.warm import Warm

STEPS = 32

ALL_POINTS = (*BOUNDARIES, *(point for points in PHASES.values() for point in points))


class Campaign:
    """Trials of one script, one after the other, from one warm process."""

    def __init__(self, script: Path) -> None:
        self._warm = Warm(script)
        self._calm: dict[Setup, Calm] = {}
        """What an undisturbed run of each setup did."""

    def trial(self, plan: Plan) -> Outcome:
        """Do a trial; the first of a setup has an undisturbed run before it."""
        calm = self._calm.get(plan.setup)
        if calm is None:
            outcome, calm = self._undisturbed(plan.setup)
            if calm is None:
                return outcome
            self._calm[plan.setup] = calm
        return Trial(self._warm, plan, STEPS, calm).run()

    def _undisturbed(self, setup: Setup) -> tuple[Outcome, Calm | None]:
        plan = Plan(name="undisturbed", setup=setup, strikes=(), grace_s=0.0, overlapping=False)
        trial = Trial(self._warm, plan, STEPS, None)
        outcome = trial.run()
        if outcome.problem is not None:
            return outcome, None
        calm = Calm(
            trace=traces.read(trial.trace),
            took_s=trial.ended_s - trial.began_s,
            turns_s=tuple(through_s - trial.began_s for through_s in trial.turns_s.values()),
        )
        trial.clear()
        return outcome, calm

    def close(self) -> None:
        """End the warm process."""
        self._warm.close()


_campaign: Campaign | None = None
"""Of a process of the pool."""


def _begin(script: Path) -> None:
    global _campaign
    _campaign = Campaign(script)


def _trial(plan: Plan) -> Outcome:
    assert _campaign is not None
    return _campaign.trial(plan)


def trials(script: Path, plans: Sequence[Plan], jobs: int) -> Iterable[Outcome]:
    """Do every trial, `jobs` at a time, and yield what came of each in their order."""
    if jobs == 1:
        campaign = Campaign(script)
        try:
            yield from map(campaign.trial, plans)
        finally:
            campaign.close()
        return
    with ProcessPoolExecutor(jobs, initializer=_begin, initargs=(script,)) as pool:
        yield from pool.map(_trial, plans)


def summary(outcomes: Sequence[Outcome], least: int) -> dict[str, Any]:
    """Return what a campaign comes to; with `least`, what was struck less often counts as a failure."""
    struck = [strike for outcome in outcomes for strike in outcome.struck]
    phases = Counter(strike.phase for strike in struck)
    points = Counter(strike.where for strike in struck)
    seldom = [phase for phase in (BOUNDARY, *PHASES) if phases[phase] < least]
    boundaries = {strike.step for strike in struck if strike.phase == BOUNDARY}
    if least and (missing := set(range(STEPS)) - boundaries):
        seldom.append(f"boundaries {sorted(missing)}")
    return {
        "commit": _commit(),
        "trials": len(outcomes),
        "failed": {outcome.name: outcome.problem for outcome in outcomes if outcome.problem is not None},
        "too_seldom": seldom,
        "starts": sum(outcome.starts for outcome in outcomes),
        "kills": len(struck),
        "missed": sum(outcome.missed for outcome in outcomes),
        "folds_compared": sum(outcome.compared for outcome in outcomes),
        "setups": dict(Counter(outcome.setup for outcome in outcomes)),
        "victims": dict(Counter(strike.victims for strike in struck)),
        "phases": {phase: phases[phase] for phase in (BOUNDARY, *PHASES, TRAIN)},
        "points": {str(point): points[str(point)] for point in ALL_POINTS},
        "instants": points[INSTANT],
        "took_s": round(sum(outcome.took_s for outcome in outcomes), 1),
        "names": [outcome.name for outcome in outcomes],
    }


def _commit() -> str:
    """Return the commit that was tried, with a + behind it if files differ from it; "" outside of a clone."""
    told = [
        subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
        ).stdout.strip()
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
    ]
    return f"{told[0]}{'+' if told[1] else ''}"


def told(outcome: Outcome) -> str:
    """Return a trial in a line, with its strikes below it if it failed."""
    where = ", ".join(f"{strike.phase} ({strike.victims})" for strike in outcome.struck)
    word = "ok" if outcome.problem is None else "FAILED"
    line = f"{outcome.name}: {word}, {outcome.setup}, {outcome.starts} starts, {outcome.took_s:.1f} s"
    line = f"{line}: {where}"
    if outcome.problem is None:
        return line
    strikes = "".join(f"\n  start {s.start}, turn {s.step}: {s.where}, {s.victims}" for s in outcome.struck)
    return f"{line}{strikes}\n{outcome.problem}\neverything lies in {outcome.kept}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; 0 if every trial came through and every phase was hit."""
    parser = argparse.ArgumentParser(
        prog="python -m surefoot.chaos.campaign", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seed", type=int, action="append", default=[], help="do this trial")
    parser.add_argument("--seeds", type=_range, default=[], metavar="A:B", help="do these trials")
    parser.add_argument(
        "--points", action="append", default=[], metavar="PATTERN", help="do the trials of these points"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (%(default)s)")
    parser.add_argument("--least", type=int, default=0, help="how often each phase has to be hit (%(default)s)")
    parser.add_argument("--seconds", type=float, help="begin no trial after so long")
    parser.add_argument("--script", type=Path, default=example("train_tiny.py"), help="what is trained")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary to it")
    args = parser.parse_args(argv)
    began_s = time.monotonic()
    plans = [draw(seed, STEPS) for seed in [*args.seed, *args.seeds]]
    plans += [plan for pattern in args.points for plan in aimed(pattern, STEPS)]
    outcomes = []
    for outcome in trials(args.script.absolute(), plans, args.jobs):
        outcomes.append(outcome)
        sys.stdout.write(f"{told(outcome)}\n")
        sys.stdout.flush()
        if args.seconds is not None and time.monotonic() - began_s > args.seconds:
            break
    found = summary(outcomes, args.least)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 1 if found["failed"] or found["too_seldom"] else 0


def _range(text: str) -> list[int]:
    first, last = map(int, text.split(":"))
    return list(range(first, last))


if __name__ == "__main__":
    sys.exit(main())
