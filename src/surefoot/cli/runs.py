"""Looking at a run from outside: its state from the files, and what can be seen of its processes.

Nothing here changes a run, and a run that is written while it is read is read all the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from surefoot.core.events import Line
from surefoot.core.settings import Settings
from surefoot.core.state import RunState
from surefoot.errors import AgentError, ForeignRun
from surefoot.journal import cache, files, lease, rundir
from surefoot.journal.rundir import RunFile
from surefoot.loop.link import ask
from surefoot.views.status import Fold, Signs

NEWEST_LINES = 2_000
"""Of the journal, for what the fold doesn't keep: since when, and what was seen."""

_LOOKS_AGAIN = 3
_AGAIN_S = 0.05
_ANSWER_S = 2.0
_BEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """A run as it is now."""

    path: Path
    file: RunFile
    state: RunState
    signs: Signs
    fold: Fold
    now_ns: int
    """The reader's clock, never before the newest line."""

    @property
    def held(self) -> bool:
        """Whether an agent holds the run, so that it is asked through its inbox."""
        return self.signs.evidence in ("alive", "stopped")


def run_file(path: Path) -> RunFile:
    """Return what makes a directory a run. Raises ForeignRun where there is none, with what may be meant."""
    if not (path / "run.json").exists():
        if not path.exists():
            what = "there is no such directory"
        elif not path.is_dir():
            what = "it is a file"
        else:
            what = "it has no run.json"
        below = sorted(file.parent.name for file in path.glob("*/run.json"))
        hint = f"; the runs in it: {', '.join(below[:8])}" if below else ""
        raise ForeignRun(f"{path} is no run: {what}. Expected the directory that Run(...) was given{hint}")
    found = rundir.read(path)
    assert found is not None, f"{path} was moved while it was looked at"
    return found


def look(path: Path) -> Seen:
    """Return the run as it is now; raises ForeignRun, JournalError."""
    file = run_file(path)
    # Evidence first: a run that ends in between is then seen to have ended, not to be lost.
    term, signs, fold = _signs(path, file)
    state = cache.fold(path)
    for _ in range(_LOOKS_AGAIN):
        if term == state.term:
            break
        time.sleep(_AGAIN_S)  # a term begins just now
        term, signs, fold = _signs(path, file)
        state = cache.fold(path)
    if fold is None:
        fold = Fold(seq=state.seq, hash=cache.state_hash(state), source="files")
    return Seen(path, file, state, signs, fold, max(time.time_ns(), state.at_ns))


def newest_lines(path: Path, state: RunState, count: int = NEWEST_LINES) -> list[Line]:
    """Return about so many of the journal's newest lines."""
    seq = state.seq - count
    term = next((term for term, _ in reversed(state.terms) if files.counts(path, term, seq)), None)
    return list(files.read(path, after=(term, seq) if term is not None else None))


def _signs(path: Path, file: RunFile) -> tuple[int, Signs, Fold | None]:
    """Return the newest term, what is seen of its holder, and the live state's name if an agent answers."""
    holder = lease.holder(path)
    if holder is None:
        return 0, Signs(), None
    evidence = holder.evidence
    if evidence == "unknown":
        evidence = "alive" if _counts_on(path, holder) else "silent"
    fold, live = None, None
    if evidence == "alive":
        try:
            answer = ask(file.run, "fold", _ANSWER_S)
        except (OSError, AgentError):
            pass  # on another node, in another container, or just leaving
        else:
            fold = Fold(seq=answer["seq"], hash=answer["hash"], source="agent")
            live = bool(answer["live"])
    seen = Signs(evidence=evidence, node=holder.lease.node, pid=holder.lease.pid, live=live)
    return holder.lease.term, seen, fold


def _counts_on(path: Path, holder: lease.Holder) -> bool:
    """Watch the counter of a holder that can't be seen from here, for as long as a taker would."""
    until = time.monotonic() + Settings().lease_s
    while time.monotonic() < until:
        time.sleep(_BEAT_S)
        now = lease.holder(path)
        if now is None or now.beat != holder.beat or now.lease.term != holder.lease.term:
            return True
    return False


class RunPath(click.Path):
    """The RUN of every command: a directory, completed as one."""

    name = "run"

    def __init__(self) -> None:
        super().__init__(file_okay=True, path_type=Path)


RUN = click.argument("run", metavar="RUN", type=RunPath())
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
