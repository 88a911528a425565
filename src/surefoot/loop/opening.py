"""How a group of ranks joins its run: which directory, which agent, which state to begin with.

Rank 0 decides about the directory and tells the others, so that all join the same run or all raise
the same error. Then every rank says hello; the agent answers when all have, with the snapshots that
may be restored, newest first. A candidate counts only if every rank could restore it: if one finds
a bad chunk all go on to the next, and what was passed over is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from surefoot import errors
from surefoot.checkpoint.layout import Box
from surefoot.core.numbers import SnapshotId
from surefoot.core.recovery import Candidate
from surefoot.errors import NoUsableSnapshot, RunHeld, SurefootError
from surefoot.journal import lease, rundir
from surefoot.journal.shapes import from_json
from surefoot.loop.link import ask
from surefoot.loop.ranks import Ranks
from surefoot.loop.snapshots import Snapshots

LEAVE_S = 10.0
"""How long a fresh start waits for the old run's agent to leave."""


@dataclass(frozen=True, slots=True)
class Place:
    """The run that a group joins."""

    run_dir: Path
    run_id: str
    group: str
    """Names this launch of the ranks: a second launch of the same run has another."""
    moved: str | None = None
    """Where a fresh start has moved the old run, if it has."""


def choose_run(directory: Path, name: str, *, fresh: bool, ranks: Ranks) -> Place:
    """Return the run to join, made if there is none; the same on all ranks.

    `fresh` moves an old run aside, once per launch and never at a restart, and deletes nothing.
    """
    answer: dict[str, Any] = {}
    if ranks.rank == 0:
        try:
            answer = _decide(directory.absolute(), name, fresh=fresh and _first_start())
        except (SurefootError, OSError) as error:
            answer = {"error": type(error).__name__, "why": str(error)}
    answer = json.loads(ranks.broadcast(json.dumps(answer).encode() if ranks.rank == 0 else None))
    if "error" in answer:
        kind = getattr(errors, answer["error"], None)
        raise (kind if isinstance(kind, type) else errors.StoreUnavailable)(answer["why"])
    return Place(Path(answer["dir"]), answer["run"], answer["group"], answer["moved"])


def _decide(directory: Path, name: str, *, fresh: bool) -> dict[str, Any]:
    old = rundir.read(directory)
    moved = None
    if fresh and old is not None:
        _make_leave(directory, old.run)
        moved = rundir.move_aside(directory)
    file = rundir.create(directory, name)
    return {
        "dir": str(directory),
        "run": file.run,
        "group": secrets.token_hex(8),
        "moved": str(moved) if moved else None,
    }


def _make_leave(directory: Path, run: str) -> None:
    """Have an agent that only waits for a next attempt leave; raises RunHeld if the run is alive."""
    deadline_s = time.monotonic() + LEAVE_S
    while (holder := lease.holder(directory)) is not None and holder.evidence not in ("ended", "gone"):
        # Silence: it is on its way out already, or it isn't on this node.
        with contextlib.suppress(OSError):
            answer = ask(run, "leave")
            if answer["kind"] == "refuse":
                raise RunHeld(answer["why"])
        if time.monotonic() > deadline_s:
            raise RunHeld(
                f"{directory} is held by pid {holder.lease.pid} on {holder.lease.node} and can't be moved "
                "aside: stop it first, or use another directory"
            )
        time.sleep(0.02)


def _first_start() -> bool:
    """Whether this is a launch's first start, not a launcher's restart of it."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0) == 0


def hello(place: Place, ranks: Ranks, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the words with which a rank introduces itself to its agent."""
    return {
        "kind": "hello",
        "group": place.group,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "pid": os.getpid(),
        "who": who(),
        "code": code() if ranks.rank == 0 else {},
        "again": None,
        "layout": None,
        **facts,
    }


def code() -> dict[str, Any]:
    """Return what is known of the script without running anything: path, hash, git head."""
    path = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    script = Path(path).absolute() if path else None
    found: dict[str, Any] = {"script": str(script) if script else "", "argv": sys.argv[1:]}
    loaded = ((name, getattr(sys.modules.get(name), "__version__", None)) for name in _PACKAGES)
    found["packages"] = {name: str(version) for name, version in loaded if version}
    try:
        if script is not None and script.is_file():
            found["hash"] = xxhash.xxh3_64_hexdigest(script.read_bytes())
            found["git"] = _git_head(script)
    except OSError:
        found["hash"] = ""
    return found


def hash_of(boxes: Iterable[Box]) -> str:
    """Return 16 hex digits over names, dtypes and shapes: what the script made, before any restore."""
    listed = sorted(f"{box.name} {box.dtype} {box.shape} {box.whole}" for box in boxes)
    return str(xxhash.xxh3_64_hexdigest("\n".join(listed).encode()))


def _git_head(script: Path) -> str:
    for folder in script.parents:
        head = folder / ".git" / "HEAD"
        if head.is_file():
            text = head.read_text().strip()
            reference = folder / ".git" / text.removeprefix("ref: ")
            return reference.read_text().strip() if reference.is_file() else text
    return ""


_PACKAGES = ("surefoot", "torch", "numpy", "transformers", "jax")
"""Whose versions change what is computed, as far as they are loaded."""


def who() -> str:
    """Return user and host, as `asked` and `noted` name them."""
    return f"{os.environ.get('USER') or os.environ.get('LOGNAME') or os.getuid()}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a group begins with."""

    plain: dict[str, Any] | None
    """This rank's plain values; None for a fresh start."""
    candidate: Candidate | None
    """What was restored."""
    saved_ns: int | None
    """When it was made durable, on the brain's clock; None if it is in memory only."""
    passed_over: tuple[dict[str, Any], ...]


def restore(
    welcome: dict[str, Any], fds: list[int], snapshots: Snapshots, ranks: Ranks, run_dir: Path
) -> Beginning:
    """Restore the newest candidate that every rank can read.

    Raises NoUsableSnapshot listing what was passed over: progress that can't be read never becomes
    a fresh start.
    """
    passed: list[dict[str, Any]] = list(welcome["passed_over"])
    candidates = welcome["restore"]
    for candidate in candidates:
        own = [fds[index] for index in candidate["fds"]]
        plain, problem = _try(candidate, own, snapshots, run_dir)
        failed = ranks.start_sum(
            [float(problem is not None and rank == ranks.rank) for rank in range(ranks.world_size)]
        ).result()
        if not any(failed):
            lineage = tuple((branch, step) for branch, step in candidate["lineage"])
            used = Candidate(SnapshotId(candidate["step"], candidate["branch"]), candidate["tier"], lineage)
            return Beginning(plain, used, candidate["at_ns"], tuple(passed))
        if isinstance(problem, errors.StateMismatch | errors.UnstorableState):
            # The script's state is another one: every older snapshot would differ in the same way.
            raise problem
        named = ", ".join(str(rank) for rank, bad in enumerate(failed) if bad)
        why = str(problem) if problem is not None else f"rank {named} could not restore it"
        id = SnapshotId(candidate["step"], candidate["branch"])
        passed.append(
            {"what": f"{id} in {candidate['tier']}", "why": why, "step": id.step, "branch": id.branch}
        )
    if passed or welcome["progressed"]:
        listed = "\n".join(f"  {over['what']}: {over['why']}" for over in passed) or "  (none found)"
        raise NoUsableSnapshot(
            f"{run_dir}: this run has made progress, but none of its snapshots can be used:\n{listed}\n"
            "Mend or bring back one of them, or start over with --fresh (nothing is deleted)."
        )
    return Beginning(None, None, None, ())


def _try(
    candidate: dict[str, Any], fds: list[int], snapshots: Snapshots, run_dir: Path
) -> tuple[dict[str, Any] | None, Exception | None]:
    try:
        if candidate["tier"] == "HOST":
            held = [from_json(Box, box) for box in candidate["held"]]
            return snapshots.restore_slots(fds, held), None
        return snapshots.restore_disk(run_dir, candidate["name"]), None
    except (SurefootError, OSError) as error:
        return None, error


_LESS_THAN_EXACT = {
    "order_only": "the data goes on in the same order, with other random draws in it",
    "drawn": "the data can only be read from its beginning: up to its place it is drawn and discarded",
}
"""What a resume says of data of a level that isn't exact."""


def first_lines(
    welcome: dict[str, Any], beginning: Beginning, step: int, now_ns: int, data_level: str
) -> list[str]:
    """Return what the user reads first: where the run goes on, from what, and what has changed since."""
    lines = [f"passed over {over['what']}: {over['why']}" for over in beginning.passed_over]
    candidate = beginning.candidate
    if candidate is None:
        again = "; nothing had been saved" if welcome["attempt"] > 1 else ""
        return [*lines, f"attempt {welcome['attempt']} starts at step 0{again}"]
    if beginning.saved_ns is not None:
        saved = f"saved {_ago((now_ns - beginning.saved_ns) / 1e9)} ago"
    else:
        saved = "from memory"
    changed = [change for change in welcome["changed"] if change["key"] != "code.git"]
    since = "".join(f"; {_of_change(change)}" for change in changed)
    lines.append(f"resuming at step {step:,}, {saved}{since}. Start over: --fresh")
    return lines + ([_LESS_THAN_EXACT[data_level]] if data_level in _LESS_THAN_EXACT else [])


def _of_change(change: dict[str, Any]) -> str:
    if change["key"] == "code.hash":
        return f"{Path(sys.argv[0]).name or 'the script'} changed since"
    return f"{change['key']} is now {change['now']!r} (was {change['was']!r})"


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


NO_DATA: dict[str, Any] = {
    "kind": "none", "unit": "batch", "length": None, "level": "exact", "fingerprint": "", "batch_size": None,
}  # fmt: skip
"""What the journal says of a run without `data=`: positions count turns."""
