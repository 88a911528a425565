"""Whether a run that was struck came through: its trace, its end, its fold, its checkpoints.

surefoot's own word is not asked about the training: the script's trace is compared, the last writing of
each turn, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.chaos import traces
from surefoot.chaos.hearing import Heard
from surefoot.checkpoint.commit import discover, verify
from surefoot.checkpoint.store import DiskStore
from surefoot.core.state import RunState
from surefoot.journal import cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Calm:
    """An undisturbed run."""

    trace: Mapping[traces.Key, list[str]]
    took_s: float
    """From the start of its ranks to their end."""
    turns_s: tuple[float, ...]
    """When rank 0 was through with each turn."""


def judge(
    run_dir: Path, trace: Path, *, steps: int, always: bool, calm: Calm, heard: Iterable[Heard]
) -> tuple[str | None, int]:
    """Return what is wrong, or None, and how many hashes of the live fold could be compared.

    With `always` every writing of a turn has to be the undisturbed run's, not only the last.
    """
    got = traces.read(trace)
    problem = traces.first_difference(calm.trace, got) or (_strays(calm.trace, got) if always else None)
    if problem is not None:
        return problem, 0
    problem, compared, state = _of_fold(run_dir, list(heard))
    return problem or _of_end(state, steps) or _of_checkpoints(run_dir, steps), compared


def _strays(expected: Mapping[traces.Key, list[str]], got: Mapping[traces.Key, list[str]]) -> str | None:
    for key, told in got.items():
        for text in told:
            if text != expected[key][-1]:
                return f"{key} was once\n  {text}\nthe undisturbed run wrote\n  {expected[key][-1]}"
    return None


def _of_fold(run_dir: Path, heard: list[Heard]) -> tuple[str | None, int, RunState]:
    """Compare what was heard with a fold of the files in this process, and that with one from the cache."""
    compared = 0
    state, halfway = RunState(), RunState()
    wanted: dict[int, list[Heard]] = {}
    for each in heard:
        wanted.setdefault(each.seq, []).append(each)
    for state in cache.states(run_dir):
        for each in wanted.get(state.seq, ()):
            # A line that a later term cut away is none of the run's.
            if each.term == state.term:
                compared += 1
                if each.hash != cache.state_hash(state):
                    return f"the live fold and the files differ at line {each.seq}", compared, state
                halfway = state
    if halfway.seq:
        cache.store(run_dir, halfway)
    if cache.state_hash(cache.fold(run_dir)) != cache.state_hash(state):
        return f"the fold from the cache at line {halfway.seq} is another one", compared, state
    return None, compared, state


def _of_end(state: RunState, steps: int) -> str | None:
    if state.ended is None or state.ended.word != "finished" or state.step != steps:
        return f"the run stands at step {state.step} and ended as {state.ended}"
    clock = state.ledger
    spent = sum(clock.accounts.values())
    if spent != clock.mark_ns - clock.begin_ns or min(clock.accounts.values()) < 0:
        return f"the accounts don't add up to {clock.mark_ns - clock.begin_ns}: {clock.accounts}"
    return None


def _of_checkpoints(run_dir: Path, steps: int) -> str | None:
    store = DiskStore(run_dir / "checkpoints")
    whole = {found.name: found.manifest.step for found in discover(store) if found.manifest is not None}
    if steps not in whole.values():
        return f"no checkpoint of the last step, only {whole}"
    problems = [problem for name in whole for problem in verify(store, name)]
    return f"a committed checkpoint is damaged: {problems}" if problems else None
